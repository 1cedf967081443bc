"""The sampled softmax of training, and the full one of held-out text."""

import math
from typing import Any

import keras
from keras import layers, ops
from language_model.product import product

import keras_mp


@keras.saving.register_keras_serializable(package="language_model")
class SampledSoftmax(layers.Layer):
    """The cross entropy of each target word: sampled in training, else the full one.

    In training a word is told from `sampled` others, which all targets of a batch
    share. They are drawn with replacement from the log-uniform distribution, which
    suits words that are numbered by their frequency:

        q(word) = log((word + 2) / (word + 1)) / log(words + 1)

    The cross entropy is that of the target among all that were drawn and itself: each
    counts `exp(logit) / q`. As more are drawn, it approaches the full one.

    Args:
        words: Integer. The size of the vocabulary.
        sampled: Integer. The number of words drawn.
        seed: Integer. The same seed draws the same words.
        **kwargs: Those of `keras.layers.Layer`.

    Reference: Jean et al. 2015; Jozefowicz et al. 2016.
    """

    def __init__(self, words: int, sampled: int, seed: int, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.words = words
        self.sampled = sampled
        self.seed = seed
        # A variable, so that a run which is resumed draws on.
        self.random = keras.random.SeedGenerator(seed)

    def build(self, input_shape: Any) -> None:
        width = input_shape[0][-1]
        self.kernel = self.add_weight(
            shape=(self.words, width), initializer="uniform", name="kernel"
        )
        self.bias = self.add_weight(
            shape=(self.words,), initializer="zeros", name="bias"
        )

    def call(self, inputs: tuple[Any, Any], training: bool = False) -> Any:
        """Returns the cross entropy [batch, time] in FP32.

        Args:
            inputs: Features [batch, time, width], and the ids of the targets
                [batch, time].
            training: Whether to sample.
        """
        features, targets = inputs
        if not training:
            # Which never holds all the logits: they are gigabytes.
            return keras_mp.ops.linear_cross_entropy(
                features, self.kernel, targets, self.bias, transpose=True
            )
        flat = ops.reshape(features, (-1, features.shape[-1]))
        entropy = self._sampled(flat, ops.reshape(targets, (-1,)))
        return ops.reshape(entropy, ops.shape(targets))

    def compute_output_spec(self, inputs: Any, training: bool = False) -> Any:
        return keras.KerasTensor(inputs[1].shape, dtype="float32")

    def _sampled(self, features: Any, targets: Any) -> Any:
        u = keras.random.uniform((self.sampled,), dtype="float32", seed=self.random)
        drawn = ops.cast(ops.exp(u * math.log(self.words + 1)), "int32") - 1
        # exp rounds: the last number of all may be one too large.
        drawn = ops.minimum(drawn, self.words - 1)
        # Rows of the two variables, so that their gradients are tf.IndexedSlices.
        rows = ops.concatenate([targets, drawn], axis=0)
        kernel = ops.take(self.kernel, rows, axis=0)
        bias = ops.cast(ops.take(self.bias, rows, axis=0), "float32")
        bias = bias - self._log_q(rows)
        count = ops.shape(targets)[0]
        true = bias[:count] + ops.sum(
            ops.cast(features, "float32") * ops.cast(kernel[:count], "float32"), axis=-1
        )
        others = product(features, kernel[count:], bias[count:], transpose_b=True)
        # -log(exp(true) / (exp(true) + sum(exp(others))))
        entropy = ops.softplus(ops.logsumexp(others, axis=-1) - true)
        # The target may have been drawn, too; then it stands there more than once.
        drawn_again = ops.cast(ops.equal(drawn, targets[:, None]), "float32")
        return entropy - ops.log1p(ops.sum(drawn_again, axis=-1))

    def _log_q(self, words: Any) -> Any:
        words = ops.cast(words, "float32")
        return ops.log(ops.log1p(1.0 / (words + 1.0)) / math.log(self.words + 1))

    def get_config(self) -> dict[str, Any]:
        own = {"words": self.words, "sampled": self.sampled, "seed": self.seed}
        return {**super().get_config(), **own}
