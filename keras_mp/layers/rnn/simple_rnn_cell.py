"""SimpleRNNCell: products in FP32."""

from typing import Any

import keras
from keras import ops

from keras_mp.layers.precision import read_without_autocast, uses_ops
from keras_mp.layers.rnn.base_rnn import RecurrentKernel, project
from keras_mp.layers.rnn.orthogonal_weights import OrthogonalInFP32
from keras_mp.typing import Tensor


class SimpleRNNStep:
    """One time step on projected inputs; an object serves all steps of a sequence.

    Args:
        cell: `keras.layers.SimpleRNNCell`.
        h: the state, for the shape of the dropout mask.
        training: bool.
    """

    def __init__(self, cell: keras.Layer, h: Any, training: bool) -> None:
        self.state_size = cell.state_size
        self._cell = cell
        self._mask = None
        if training and 0.0 < cell.recurrent_dropout < 1.0:
            self._mask = cell.get_recurrent_dropout_mask(h)
        kernel = read_without_autocast(cell.recurrent_kernel)
        self._kernel = RecurrentKernel(kernel, cell.compute_dtype)

    def call(self, projected: Tensor, states: Any) -> tuple[Any, list[Any]]:
        """Returns the output and the states `[h]`, rounded once.

        Args:
            projected: `[batch, units]` in FP32.
            states: `[h]` of 16 bits.
        """
        (h,) = states
        if self._mask is not None:
            h = h * self._mask
        h = projected + self._kernel.product(h)
        if self._cell.activation is not None:
            h = self._cell.activation(h)
        h = ops.cast(h, self._cell.compute_dtype)
        return h, [h]

    __call__ = call


def project_simple(cell: keras.Layer, x: Tensor, training: bool) -> Any:
    """Returns the projection of the inputs, `[..., units]` in FP32."""
    return project(cell, 1, x, read_without_autocast(cell.bias), training)


@keras.saving.register_keras_serializable(package="keras_mp")
class SimpleRNNCell(OrthogonalInFP32, keras.layers.SimpleRNNCell):
    """`keras.layers.SimpleRNNCell` with 16-bit matrix products that accumulate in FP32.

    Products, bias and activation are FP32; the state is rounded once, when it is
    written. The gradients of FP32 weights are FP32.

    Args: as in `keras.layers.SimpleRNNCell`.

    Example:

    >>> cell = keras_mp.layers.SimpleRNNCell(2, dtype="float16")
    >>> states = cell.get_initial_state(batch_size=1)
    >>> output, states = cell(np.ones((1, 3), "float16"), states)
    >>> output.shape, [state.dtype.name for state in states]
    (TensorShape([1, 2]), ['float16'])

    Reference: Mixed Precision Training, section 3.3.
    """

    def call(self, sequence: Any, states: Any, training: bool = False) -> Any:
        is_nested = isinstance(states, list | tuple)
        h = states[0] if is_nested else states
        if not uses_ops(self, sequence, h):
            return super().call(sequence, states, training=training)
        step = SimpleRNNStep(self, h, training)
        output, states = step.call(project_simple(self, sequence, training), [h])
        return output, states if is_nested else output
