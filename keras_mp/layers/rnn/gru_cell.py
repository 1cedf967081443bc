"""GRUCell: products and gates in FP32."""

from typing import Any

import keras
from keras import activations, ops

from keras_mp.layers.precision import read_without_autocast, uses_ops
from keras_mp.layers.rnn.base_rnn import RecurrentKernel, project, recurrent_masks
from keras_mp.layers.rnn.orthogonal_weights import OrthogonalInFP32
from keras_mp.typing import Tensor

# Activations that are applied to each element, whatever the shape.
_ELEMENTWISE = (
    activations.sigmoid,
    activations.hard_sigmoid,
    activations.tanh,
    activations.relu,
    activations.linear,
)


def _split_gates(x: Tensor, units: int) -> list[Any]:
    """Returns the columns of the two gates, and of the candidate.

    Keras splits at a position by slices and concatenations of the sizes, at each step.
    """
    import tensorflow as tf

    return list(tf.split(x, [2 * units, units], axis=-1))


class GRUStep:
    """One time step on projected inputs; an object serves all steps of a sequence.

    Args:
        cell: `keras.layers.GRUCell`.
        h: the state, for the shape of the dropout masks.
        training: bool.
    """

    def __init__(self, cell: keras.Layer, h: Any, training: bool) -> None:
        self.state_size = cell.state_size
        self._cell = cell
        self._masks = recurrent_masks(cell, h, training)
        kernel = read_without_autocast(cell.recurrent_kernel)
        if self._masks is not None:
            kernels = ops.split(kernel, 3, axis=1)
        elif cell.reset_after:
            kernels = [kernel]
        else:
            kernels = _split_gates(kernel, cell.units)
        self._kernels = [RecurrentKernel(part, cell.compute_dtype) for part in kernels]
        self._bias = None
        if cell.reset_after and cell.use_bias:
            self._bias = ops.cast(read_without_autocast(cell.bias)[1], "float32")

    def call(self, projected: Tensor, states: Any) -> tuple[Any, list[Any]]:
        """Returns the output and the states `[h]`, rounded once.

        Args:
            projected: `[batch, 3 * units]` in FP32.
            states: `[h]` of 16 bits.
        """
        (h,) = states
        activation = self._cell.activation
        x_gates, x_candidate = _split_gates(projected, self._cell.units)
        if self._cell.reset_after:
            h_gates, h_candidate = self._recurrent_terms(h)
            z, r = self._gates(x_gates + h_gates)
            candidate = activation(x_candidate + r * h_candidate)
        else:
            z, r = self._gates(x_gates + self._recurrent_gates(h))
            candidate = activation(x_candidate + self._recurrent_candidate(r, h))
        mixed = z * ops.cast(h, "float32") + (1.0 - z) * candidate
        h = ops.cast(mixed, self._cell.compute_dtype)
        return h, [h]

    __call__ = call

    def _gates(self, x: Tensor) -> list[Any]:
        """Returns the update gate z and the reset gate r.

        An elementwise activation is called once for both: with two calls, XLA fuses r
        into the loop that computes the candidate, which then takes twice as long.
        """
        activation = self._cell.recurrent_activation
        if any(activation is known for known in _ELEMENTWISE):
            return list(ops.split(activation(x), 2, axis=-1))
        return [activation(part) for part in ops.split(x, 2, axis=-1)]

    def _recurrent_terms(self, h: Any) -> list[Any]:
        """Returns the recurrent terms of the gates and the candidate (reset_after)."""
        if self._masks is None:
            recurrent = self._kernels[0].product(h)
        else:
            pairs = zip(self._kernels, self._masks, strict=True)
            parts = [kernel.product(h * mask) for kernel, mask in pairs]
            recurrent = ops.concatenate(parts, axis=-1)
        if self._bias is not None:
            recurrent = recurrent + self._bias
        return _split_gates(recurrent, self._cell.units)

    def _recurrent_gates(self, h: Any) -> Any:
        """Returns the recurrent terms of the gates, with `reset_after=False`."""
        if self._masks is None:
            return self._kernels[0].product(h)
        pairs = zip(self._kernels[:2], self._masks[:2], strict=True)
        return ops.concatenate([k.product(h * mask) for k, mask in pairs], axis=-1)

    def _recurrent_candidate(self, r: Any, h: Any) -> Any:
        """Returns the recurrent term of the candidate, with `reset_after=False`."""
        masked = h if self._masks is None else h * self._masks[2]
        reset = ops.cast(r * ops.cast(masked, "float32"), h.dtype)
        return self._kernels[-1].product(reset)


def project_gru(cell: keras.Layer, x: Tensor, training: bool) -> Any:
    """Returns the projections of the inputs for gates and candidate, in FP32."""
    bias = read_without_autocast(cell.bias)
    if bias is not None and cell.reset_after:
        bias = bias[0]
    return project(cell, 3, x, bias, training)


@keras.saving.register_keras_serializable(package="keras_mp")
class GRUCell(OrthogonalInFP32, keras.layers.GRUCell):
    """`keras.layers.GRUCell` with 16-bit matrix products that accumulate in FP32.

    Products, biases and gates are FP32; the state is rounded once, when it is written.
    The gradients of FP32 weights are FP32. `keras_mp.layers.GRU` rounds its kernels
    once for all time steps; in `keras.layers.RNN` this cell rounds them at each step.

    Args: as in `keras.layers.GRUCell`.

    Example:

    >>> cell = keras_mp.layers.GRUCell(2, dtype="float16")
    >>> states = cell.get_initial_state(batch_size=1)
    >>> output, states = cell(np.ones((1, 3), "float16"), states)
    >>> output.shape, [state.dtype.name for state in states]
    (TensorShape([1, 2]), ['float16'])

    Reference: Mixed Precision Training, section 3.3.
    """

    def call(self, inputs: Tensor, states: Any, training: bool = False) -> Any:
        is_nested = isinstance(states, list | tuple)
        h = states[0] if is_nested else states
        if not uses_ops(self, inputs, h):
            return super().call(inputs, states, training=training)
        step = GRUStep(self, h, training)
        output, states = step.call(project_gru(self, inputs, training), [h])
        return output, states if is_nested else output
