"""The translator: an LSTM encoder-decoder with attention, and its loss.

The dtype policy of Keras decides how weights, activations and gradients are stored.
Two things are FP32 whatever the policy: the softmax of the attention and the cross
entropy.
"""

from typing import Any

import keras
import tensorflow as tf
from keras import layers, ops
from translation.decoder import AdditiveDecoder, LuongDecoder, dense
from translation.encoder import Encoder, uniform
from translation.vocabulary import PAD

DECODERS = {"luong": LuongDecoder, "additive": AdditiveDecoder}


class Perplexity(keras.metrics.Metric):
    """exp(total cross entropy / number of target tokens), the end mark included."""

    def __init__(self, name: str = "perplexity") -> None:
        super().__init__(name=name, dtype="float32")
        self.entropy = self.add_weight(name="entropy", initializer="zeros")
        self.tokens = self.add_weight(name="tokens", initializer="zeros")

    def update_state(self, entropy: tf.Tensor, weights: tf.Tensor) -> None:
        """Adds the cross entropy [batch, time] of the tokens whose weight is 1."""
        self.entropy.assign_add(ops.sum(entropy * weights))
        self.tokens.assign_add(ops.sum(weights))

    def result(self) -> tf.Tensor:
        return ops.exp(self.entropy / ops.maximum(self.tokens, 1.0))


class Translator(keras.Model):
    """Maps (source ids, decoder input ids) to decoder outputs [batch, time, units].

    `logits` maps those outputs to words. The two are apart because sampled softmax
    needs the outputs and not the logits of every word.

    Args:
        source_size: Integer. The number of source ids.
        target_size: Integer. The number of target ids.
        units: Integer. The width of every layer.
        num_layers: Integer. The number of LSTMs in the encoder and in the decoder.
        bidirectional: Whether the encoder reads in both directions.
        attention: `"luong"` or `"additive"`.
        dropout: Float. The share of each LSTM's inputs that is dropped.
        output_bias: Whether the output layer has a bias.
        sampled_softmax: Integer. The number of sampled words in the training loss;
            0 computes the full softmax.
        loss: `"sum"`, the cross entropy of a sentence, or `"mean"`, that of its mean
            token. Either is averaged over the batch.
    """

    def __init__(
        self,
        source_size: int,
        target_size: int,
        *,
        units: int,
        num_layers: int,
        bidirectional: bool,
        attention: str,
        dropout: float,
        output_bias: bool,
        sampled_softmax: int,
        loss: str,
    ) -> None:
        super().__init__()
        self.target_size = target_size
        self.units = units
        self.sampled_softmax = sampled_softmax
        self.loss_per = loss
        self.source_words = layers.Embedding(source_size, units, uniform())
        self.target_words = layers.Embedding(target_size, units, uniform())
        self.encoder = Encoder(units, num_layers, bidirectional, dropout)
        self.decoder = DECODERS[attention](units, num_layers, dropout)
        self.output_layer = dense(target_size, use_bias=output_bias)
        self.perplexity = Perplexity()

    def build(self, input_shape: Any = None) -> None:
        sequence, words = (None, None), (None, None, self.units)
        self.source_words.build(sequence)
        self.target_words.build(sequence)
        self.encoder.build(words)
        self.decoder.build(words, (None, None, self.encoder.output_units))
        self.output_layer.build(words)
        self.built = True

    @property
    def metrics(self) -> list[keras.metrics.Metric]:
        return [*super().metrics, self.perplexity]

    def encode(self, source: tf.Tensor, training: bool = False) -> tuple[Any, ...]:
        """Returns what `Decoder.start` returns for the source ids [batch, time]."""
        mask = ops.not_equal(source, PAD)
        words = self.source_words(source)
        memory, states = self.encoder(words, mask=mask, training=training)
        return self.decoder.start(memory, mask, states)

    def call(self, inputs: tuple[Any, ...], training: bool = False) -> tf.Tensor:
        source, previous = inputs
        shared, carry = self.encode(source, training=training)
        words = self.target_words(previous)
        return self.decoder(words, shared, carry, training=training)

    def advance(
        self, shared: tuple[Any, ...], carry: tuple[Any, ...], words: tf.Tensor
    ) -> tuple[Any, ...]:
        """Reads one word id per sentence; returns (log probabilities, next carry)."""
        nothing_dropped = [1.0] * len(self.decoder.cells)
        embedded = self.target_words(words)
        carry = self.decoder.step(shared, carry, embedded, nothing_dropped)
        return tf.nn.log_softmax(self.logits(carry[-1])), carry

    def logits(self, outputs: tf.Tensor) -> tf.Tensor:
        """Returns FP32 scores [..., target words] of decoder outputs [..., units]."""
        return ops.cast(self.output_layer(outputs), "float32")

    def compute_loss(
        self,
        x: Any = None,
        y: Any = None,
        y_pred: Any = None,
        sample_weight: Any = None,
        training: bool = True,
    ) -> tf.Tensor:
        """Returns the masked cross entropy in FP32, averaged over the sentences.

        And divided by the number of replicas, as the gradients of all are added up.
        """
        if training and self.sampled_softmax:
            entropy = self._sampled_entropy(y, y_pred)
        else:
            entropy = tf.nn.sparse_softmax_cross_entropy_with_logits(
                labels=y, logits=self.logits(y_pred)
            )
        weights = ops.cast(ops.not_equal(y, PAD), "float32")
        self.perplexity.update_state(entropy, weights)
        sentences = ops.sum(entropy * weights, axis=1)
        if self.loss_per == "mean":
            sentences /= ops.sum(weights, axis=1)
        replicas = tf.distribute.get_strategy().num_replicas_in_sync
        return ops.mean(sentences) / replicas

    def _sampled_entropy(self, y: tf.Tensor, outputs: tf.Tensor) -> tf.Tensor:
        layer = self.output_layer
        bias = layer.bias if layer.use_bias else ops.zeros(self.target_size)
        entropy = tf.nn.sampled_softmax_loss(
            weights=tf.transpose(ops.cast(layer.kernel, "float32")),
            biases=ops.cast(bias, "float32"),
            labels=ops.reshape(y, (-1, 1)),
            inputs=ops.cast(ops.reshape(outputs, (-1, self.units)), "float32"),
            num_sampled=self.sampled_softmax,
            num_classes=self.target_size,
        )
        return ops.reshape(entropy, ops.shape(y))
