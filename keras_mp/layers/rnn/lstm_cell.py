"""LSTMCell: products and gates in FP32."""

from typing import Any

import keras
from keras import ops

from keras_mp.layers.precision import read_without_autocast, uses_ops
from keras_mp.layers.rnn.base_rnn import RecurrentKernel, project, recurrent_masks
from keras_mp.layers.rnn.orthogonal_weights import OrthogonalInFP32
from keras_mp.typing import Tensor


class LSTMStep:
    """One time step on projected inputs; an object serves all steps of a sequence.

    Args:
        cell: `keras.layers.LSTMCell`.
        h: the state, for the shape of the dropout masks.
        training: bool.
        recurrent: class of the recurrent kernel, which multiplies it by `h`.
        axis: axis of the gates.
    """

    def __init__(
        self,
        cell: keras.Layer,
        h: Any,
        training: bool,
        recurrent: Any = RecurrentKernel,
        axis: int = -1,
    ) -> None:
        self.state_size = cell.state_size
        self._cell = cell
        self._masks = recurrent_masks(cell, h, training)
        kernel = read_without_autocast(cell.recurrent_kernel)
        kernels = [kernel] if self._masks is None else ops.split(kernel, 4, axis=-1)
        self._kernels = [recurrent(part, cell.compute_dtype) for part in kernels]
        self._axis = axis

    def call(self, projected: Tensor, states: Any) -> tuple[Any, list[Any]]:
        """Returns the output and the states `[h, c]`, each rounded once.

        Args:
            projected: `[batch, 4 * units]` in FP32.
            states: `[h, c]` of 16 bits.
        """
        h, c = states
        dtype = self._cell.compute_dtype
        sums = projected + self._recurrent(h)
        i, f, candidate, o = ops.split(sums, 4, axis=self._axis)
        gate, activation = self._cell.recurrent_activation, self._cell.activation
        c = gate(f) * ops.cast(c, "float32") + gate(i) * activation(candidate)
        h = ops.cast(gate(o) * activation(c), dtype)
        return h, [h, ops.cast(c, dtype)]

    __call__ = call

    def _recurrent(self, h: Any) -> Any:
        if self._masks is None:
            return self._kernels[0].product(h)
        pairs = zip(self._kernels, self._masks, strict=True)
        return ops.concatenate([k.product(h * mask) for k, mask in pairs], self._axis)


def project_lstm(cell: keras.Layer, x: Tensor, training: bool) -> Any:
    """Returns the projections of the inputs for the four gates, in FP32."""
    return project(cell, 4, x, read_without_autocast(cell.bias), training)


@keras.saving.register_keras_serializable(package="keras_mp")
class LSTMCell(OrthogonalInFP32, keras.layers.LSTMCell):
    """`keras.layers.LSTMCell` with 16-bit matrix products that accumulate in FP32.

    Products, bias and gates are FP32; the two states are rounded once, when they are
    written. The gradients of FP32 weights are FP32. `keras_mp.layers.LSTM` rounds its
    kernels once for all time steps; in `keras.layers.RNN` this cell rounds them at
    each step.

    Args: as in `keras.layers.LSTMCell`.

    Example:

    >>> cell = keras_mp.layers.LSTMCell(2, dtype="float16")
    >>> states = cell.get_initial_state(batch_size=1)
    >>> output, states = cell(np.ones((1, 3), "float16"), states)
    >>> output.shape, [state.dtype.name for state in states]
    (TensorShape([1, 2]), ['float16', 'float16'])

    Reference: Mixed Precision Training, section 3.3.
    """

    def call(self, inputs: Tensor, states: Any, training: bool = False) -> Any:
        if not uses_ops(self, inputs, *states):
            return super().call(inputs, states, training=training)
        step = LSTMStep(self, states[0], training)
        return step.call(project_lstm(self, inputs, training), states)
