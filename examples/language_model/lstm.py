"""The LSTM with a projection, and the states that it keeps from batch to batch."""

from typing import Any

import keras
from keras import layers, ops
from language_model.product import product


@keras.saving.register_keras_serializable(package="language_model")
class ProjectedLSTMCell(layers.Layer):
    """An LSTM cell whose output is a projection of its hidden state.

    The gates see the input and the last output, which is the narrow one:

        i, f, g, o = split([x, r] @ kernel + bias)
        c = sigmoid(f) * c + sigmoid(i) * tanh(g)
        r = (sigmoid(o) * tanh(c)) @ projection

    The two states, `[r, c]`, are rounded to the compute dtype when they are written;
    between them everything is FP32, but for the hidden state, a factor of a product.

    Args:
        units: Integer. The number of cells.
        projection: Integer. The width of the output.
        **kwargs: Those of `keras.layers.Layer`.

    Reference: Sak et al. 2014; Jozefowicz et al. 2016.
    """

    def __init__(self, units: int, projection: int, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.units = units
        self.projection = projection
        self.state_size = [projection, units]
        self.output_size = projection

    def build(self, input_shape: tuple[Any, ...]) -> None:
        self.kernel = self.add_weight(
            shape=(input_shape[-1] + self.projection, 4 * self.units), name="kernel"
        )
        # The forget gates start open.
        start = [0.0, 1.0, 0.0, 0.0]
        self.bias = self.add_weight(
            shape=(4 * self.units,),
            initializer=lambda shape, dtype: ops.cast(
                ops.repeat(ops.array(start), self.units), dtype
            ),
            name="bias",
        )
        self.projection_kernel = self.add_weight(
            shape=(self.units, self.projection), name="projection_kernel"
        )

    def call(
        self, inputs: Any, states: Any, training: bool = False
    ) -> tuple[Any, list[Any]]:
        output, c = states
        inputs = ops.concatenate([inputs, output], axis=-1)
        i, f, g, o = ops.split(product(inputs, self.kernel, self.bias), 4, axis=-1)
        c = ops.sigmoid(f) * ops.cast(c, "float32") + ops.sigmoid(i) * ops.tanh(g)
        hidden = ops.cast(ops.sigmoid(o) * ops.tanh(c), self.compute_dtype)
        output = product(hidden, self.projection_kernel)
        output, c = (ops.cast(each, self.compute_dtype) for each in (output, c))
        return output, [output, c]

    def get_config(self) -> dict[str, Any]:
        own = {"units": self.units, "projection": self.projection}
        return {**super().get_config(), **own}


@keras.saving.register_keras_serializable(package="language_model")
class ProjectedLSTM(layers.Layer):
    """A layer of `ProjectedLSTMCell` that goes on, in training, where it stopped.

    The states after a training batch are those before the next one, and after every
    `carry` batches zero again. They are weights that are not trained, so that a
    checkpoint holds them. Otherwise the layer begins at zero, and leaves them alone.

    Args:
        units: Integer. The number of cells.
        projection: Integer. The width of the output.
        batch: Integer. The number of texts that training reads side by side.
        carry: Integer. The number of training batches between states of zero. Without
            them a network would never be trained as it is used.
        **kwargs: Those of `keras.layers.Layer`.
    """

    def __init__(
        self, units: int, projection: int, batch: int, carry: int, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        self.batch = batch
        self.carry = carry
        policy = self.dtype_policy
        self.cell = ProjectedLSTMCell(units, projection, name="cell", dtype=policy)
        self.rnn = layers.RNN(
            self.cell,
            return_sequences=True,
            return_state=True,
            name="rnn",
            dtype=policy,
        )

    def build(self, input_shape: tuple[Any, ...]) -> None:
        self.rnn.build(input_shape)
        self.states = [
            self.add_weight(
                shape=(self.batch, size),
                initializer="zeros",
                trainable=False,
                name=f"state_{name}",
            )
            for name, size in zip("rc", self.cell.state_size, strict=True)
        ]
        self.carried = self.add_weight(
            shape=(),
            dtype="int32",
            initializer="zeros",
            trainable=False,
            name="carried",
        )

    def call(self, inputs: Any, training: bool = False) -> Any:
        if not training:
            return self.rnn(inputs)[0]
        # Read before they are written.
        anew = ops.equal(self.carried, 0)
        begin = [ops.where(anew, ops.zeros_like(s), s) for s in self.states]
        outputs, *end = self.rnn(inputs, initial_state=begin, training=True)
        for state, value in zip(self.states, end, strict=True):
            state.assign(value)
        self.carried.assign((self.carried + 1) % self.carry)
        return outputs

    def get_config(self) -> dict[str, Any]:
        own = {
            "units": self.cell.units,
            "projection": self.cell.projection,
            "batch": self.batch,
            "carry": self.carry,
        }
        return {**super().get_config(), **own}
