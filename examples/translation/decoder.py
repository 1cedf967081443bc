"""The decoders: stacked LSTM cells that look back at the source at every step.

Both feed what attention returned into the next step, as the tutorials do. That is
why the steps are a loop over cells and not one `keras.layers.LSTM`.
"""

from typing import Any

import tensorflow as tf
from keras import layers, ops
from translation.encoder import uniform

import keras_mp


def dense(units: int, **kwargs: Any) -> layers.Dense:
    return keras_mp.layers.Dense(units, kernel_initializer=uniform(), **kwargs)


def lstm_cell(units: int) -> layers.LSTMCell:
    return keras_mp.layers.LSTMCell(
        units, kernel_initializer=uniform(), recurrent_initializer=uniform()
    )


class Decoder(layers.Layer):
    """What both decoders share: the cells, the attention weights, the loop.

    Args:
        units: Integer. The width of cells, embeddings and attention.
        num_layers: Integer. The number of cells.
        dropout: Float. The share of each cell's inputs that is dropped.
    """

    def __init__(self, units: int, num_layers: int, dropout: float) -> None:
        super().__init__()
        self.units = units
        self.cells = [lstm_cell(units) for _ in range(num_layers)]
        self.key = dense(units, use_bias=False)
        self.dropout = layers.Dropout(dropout)

    def build_cells(self, input_units: int, memory_units: int) -> None:
        self.input_units = [input_units] + [self.units] * (len(self.cells) - 1)
        for cell, width in zip(self.cells, self.input_units, strict=True):
            cell.build((None, width))
        self.key.build((None, None, memory_units))

    def first_feed(self, memory: tf.Tensor, states: list[Any]) -> tf.Tensor:
        """Returns the zeros that stand in for attention before the first step."""
        raise NotImplementedError

    def cell_input(self, word: tf.Tensor, fed: tf.Tensor) -> tf.Tensor:
        """Joins the embedded word and what the last step fed."""
        raise NotImplementedError

    def score(self, keys: tf.Tensor, states: list[Any]) -> tf.Tensor:
        """Returns how well each key [batch, source] fits the states of the cells."""
        raise NotImplementedError

    def combine(self, output: tf.Tensor, context: tf.Tensor) -> tuple[Any, ...]:
        """Returns (what is fed to the next step, the output of this one)."""
        raise NotImplementedError

    def start(
        self, memory: tf.Tensor, mask: tf.Tensor, states: list[Any]
    ) -> tuple[Any, ...]:
        """Returns (what every step looks at, what goes from step to step)."""
        zeros = ops.zeros_like(states[0][0])
        return (memory, self.key(memory), mask), (
            states,
            self.first_feed(memory, states),
            zeros,
        )

    def step(
        self,
        shared: tuple[Any, ...],
        carry: tuple[Any, ...],
        word: tf.Tensor,
        noise: list[Any],
    ) -> tuple[Any, ...]:
        """Reads one embedded word of each sentence; returns the next carry."""
        memory, keys, mask = shared
        states, fed, _ = carry
        x = self.cell_input(word, fed)
        next_states = []
        for cell, state, keep in zip(self.cells, states, noise, strict=True):
            x, state = cell(x * keep, state)
            next_states.append(list(state))
        # The softmax is FP32; FP16 would not even hold the -1e9 of the padding.
        scores = ops.cast(self.score(keys, next_states), "float32")
        weights = ops.softmax(ops.where(mask, scores, -1e9))
        weights = ops.cast(weights, memory.dtype)
        context = ops.squeeze(ops.matmul(weights[:, None, :], memory), 1)
        return next_states, *self.combine(x, context)

    def call(
        self,
        words: tf.Tensor,
        shared: tuple[Any, ...],
        carry: tuple[Any, ...],
        training: bool = False,
    ) -> tf.Tensor:
        """Reads embedded words [batch, time, units]; returns the outputs alike."""
        words = ops.transpose(words, (1, 0, 2))
        time, batch, _ = ops.shape(words)
        # Dropout is drawn for all steps at once, outside the loop.
        noise = [
            self.dropout(ops.ones((time, batch, n), words.dtype), training=training)
            for n in self.input_units
        ]
        outputs = tf.scan(
            lambda carry, x: self.step(shared, carry, *x), (words, noise), carry
        )[-1]
        return ops.transpose(outputs, (1, 0, 2))


class LuongDecoder(Decoder):
    """The newer tutorial: score = g * h . W memory; output = tanh(W [context, h])."""

    def build(
        self, words_shape: tuple[Any, ...], memory_shape: tuple[Any, ...]
    ) -> None:
        self.build_cells(words_shape[-1] + self.units, memory_shape[-1])
        self.attend = dense(self.units, use_bias=False, activation="tanh")
        self.attend.build((None, memory_shape[-1] + self.units))
        self.scale = self.add_weight(shape=(), initializer="ones", name="scale")

    def first_feed(self, memory: tf.Tensor, states: list[Any]) -> tf.Tensor:
        return ops.zeros_like(states[-1][0])

    def cell_input(self, word: tf.Tensor, fed: tf.Tensor) -> tf.Tensor:
        return ops.concatenate([word, fed], -1)

    def score(self, keys: tf.Tensor, states: list[Any]) -> tf.Tensor:
        query = states[-1][0][:, :, None]
        return self.scale * ops.squeeze(ops.matmul(keys, query), -1)

    def combine(self, output: tf.Tensor, context: tf.Tensor) -> tuple[Any, ...]:
        vector = self.attend(ops.concatenate([context, output], -1))
        return vector, vector


class AdditiveDecoder(Decoder):
    """The older tutorial: score = v . tanh(W memory + U [h and c of every cell])."""

    def build(
        self, words_shape: tuple[Any, ...], memory_shape: tuple[Any, ...]
    ) -> None:
        self.build_cells(self.units, memory_shape[-1])
        self.join = dense(self.units)
        self.join.build((None, words_shape[-1] + memory_shape[-1]))
        self.query = dense(self.units)
        self.query.build((None, 2 * len(self.cells) * self.units))
        self.v = dense(1, use_bias=False)
        self.v.build((None, None, self.units))
        self.project = dense(self.units)
        self.project.build((None, memory_shape[-1] + self.units))

    def first_feed(self, memory: tf.Tensor, states: list[Any]) -> tf.Tensor:
        return ops.zeros_like(memory[:, 0])

    def cell_input(self, word: tf.Tensor, fed: tf.Tensor) -> tf.Tensor:
        return self.join(ops.concatenate([word, fed], -1))

    def score(self, keys: tf.Tensor, states: list[Any]) -> tf.Tensor:
        query = self.query(ops.concatenate([x for hc in states for x in hc], -1))
        return ops.squeeze(self.v(ops.tanh(keys + query[:, None, :])), -1)

    def combine(self, output: tf.Tensor, context: tf.Tensor) -> tuple[Any, ...]:
        return context, self.project(ops.concatenate([context, output], -1))
