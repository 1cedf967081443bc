"""The encoder: a stack of LSTMs that reads the source sentence."""

import keras
import tensorflow as tf
from keras import layers, ops

import keras_mp


def uniform() -> keras.initializers.Initializer:
    """Returns the tutorials' initializer of every weight: uniform in [-0.1, 0.1]."""
    return keras.initializers.RandomUniform(-0.1, 0.1)


def lstm(units: int, backwards: bool = False) -> layers.LSTM:
    return keras_mp.layers.LSTM(
        units,
        kernel_initializer=uniform(),
        recurrent_initializer=uniform(),
        return_sequences=True,
        return_state=True,
        go_backwards=backwards,
    )


class Encoder(layers.Layer):
    """Reads embedded words; returns its outputs and a state for each decoder layer.

    A bidirectional encoder counts its LSTMs as the tutorial does: two layers are one
    pair, forward and backward, and each starts one decoder layer. An odd number of
    layers is that number of pairs of half the width.

    Args:
        units: Integer. The width of a decoder layer.
        num_layers: Integer. The number of decoder layers.
        bidirectional: Whether to read in both directions.
        dropout: Float. The share of each LSTM's inputs that is dropped.
    """

    def __init__(
        self, units: int, num_layers: int, bidirectional: bool, dropout: float
    ) -> None:
        super().__init__()
        self.supports_masking = True
        self.units = units
        self.bidirectional = bidirectional
        even = num_layers % 2 == 0
        pairs, width = (num_layers // 2, units) if even else (num_layers, units // 2)
        if bidirectional:
            self.forward = [lstm(width) for _ in range(pairs)]
            self.backward = [lstm(width, backwards=True) for _ in range(pairs)]
            self.output_units = 2 * width
        else:
            self.forward = [lstm(units) for _ in range(num_layers)]
            self.backward = []
            self.output_units = units
        self.dropout = layers.Dropout(dropout)

    def build(self, shape: tuple[int | None, ...]) -> None:
        width = shape[-1]
        for i, forward in enumerate(self.forward):
            forward.build((None, None, width))
            if self.bidirectional:
                self.backward[i].build((None, None, width))
            width = self.output_units

    def call(
        self, x: tf.Tensor, mask: tf.Tensor, training: bool = False
    ) -> tuple[tf.Tensor, list[list[tf.Tensor]]]:
        """Returns outputs [batch, source, units] and [[h, c] of a layer, ...]."""
        states = []
        for i, forward in enumerate(self.forward):
            x = self.dropout(x, training=training)
            outputs, *state = forward(x, mask=mask)
            states.append(state)
            if self.bidirectional:
                reversed_outputs, *state = self.backward[i](x, mask=mask)
                states.append(state)
                outputs = ops.concatenate([outputs, ops.flip(reversed_outputs, 1)], -1)
            x = outputs
        # Two halves of a pair may start one decoder layer: cut by width, not by LSTM.
        h, c = (ops.concatenate(parts, -1) for parts in zip(*states, strict=True))
        layers_ = h.shape[-1] // self.units
        h, c = ops.split(h, layers_, axis=-1), ops.split(c, layers_, axis=-1)
        return x, [list(state) for state in zip(h, c, strict=True)]
