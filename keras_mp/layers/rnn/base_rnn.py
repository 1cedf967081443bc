"""Shared by the recurrent layers: FP32 products and the loop over time."""

from typing import Any

import keras
from keras import ops

from keras_mp.layers.precision import gemm, read_without_autocast
from keras_mp.layers.rnn.orthogonal_weights import class_of_cell
from keras_mp.typing import Tensor


class RecurrentKernel:
    """A recurrent kernel, rounded once for all time steps.

    A loop accumulates the gradient of a tensor in the dtype of that tensor. Therefore
    the products use the rounded kernel, and their gradient goes to an FP32 copy.

    Args:
        kernel: tensor `[units, columns]` in its storage dtype.
        dtype: `"float16"` or `"bfloat16"`.
    """

    def __init__(self, kernel: Tensor, dtype: str) -> None:
        self._master = ops.cast(kernel, "float32")
        self._rounded = ops.cast(kernel, dtype)

    def product(self, h: Any) -> Any:
        """Returns `h @ kernel` in FP32, where `h` is `[batch, units]` in 16 bits."""
        # The state of a stateful layer is a variable. The cast reads it now, before it
        # is assigned to; the gradient needs the value of this step.
        h = ops.cast(h, self._rounded.dtype)
        return _recurrent_product(h, self._rounded, self._master)


@ops.custom_gradient
def _recurrent_product(h: Any, rounded: Any, master: Any) -> tuple[Any, Any]:
    def gradient(*args: Any, upstream: Tensor | None = None) -> tuple[Any, None, Any]:
        grad = ops.cast(args[0] if upstream is None else upstream, h.dtype)
        return (
            gemm(grad, rounded, transpose_b=True),
            None,
            gemm(h, grad, transpose_a=True, output_dtype="float32"),
        )

    return gemm(h, rounded, output_dtype="float32"), gradient


def project(
    cell: keras.Layer, gates: int, x: Tensor, bias: Tensor, training: bool
) -> Any:
    """Returns `x @ kernel + bias` for all gates in FP32, after the cell's dropout.

    Args:
        cell: `keras.layers.LSTMCell`, `GRUCell` or `SimpleRNNCell`.
        gates: int, the number of gates of the cell, 1 without gates.
        x: `[batch, features]`, or a whole sequence `[batch, time, features]`.
        bias: `[gates * units]`, or None.
        training: bool.
    """
    if len(x.shape) == 3:
        # The loop over time transposes the projections. In a graph the two transposes
        # of FP32 numbers cancel; that of the inputs is of fewer and shorter ones.
        masks = _dropout_masks(cell, x[:, 0, :], training)
        return _swap_axes(_project(cell, gates, _swap_axes(x), bias, masks))
    return _project(cell, gates, x, bias, _dropout_masks(cell, x, training))


def _dropout_masks(cell: keras.Layer, x: Tensor, training: bool) -> Any:
    """Returns the dropout mask of the inputs, a list of one a gate, or None."""
    if training and 0.0 < cell.dropout < 1.0:
        return cell.get_dropout_mask(x)
    return None


def _swap_axes(x: Tensor) -> Any:
    return ops.transpose(x, (1, 0, 2))


def _project(cell: keras.Layer, gates: int, x: Tensor, bias: Tensor, masks: Any) -> Any:
    """Returns the projections of `[batch, features]`, or `[time, batch, features]`."""
    kernel = read_without_autocast(cell.kernel)
    if not isinstance(masks, list):
        masked = x if masks is None else x * masks
        return gemm(masked, kernel, bias=bias, output_dtype="float32")
    parts = [
        gemm(x * mask, part, output_dtype="float32")
        for mask, part in zip(masks, ops.split(kernel, gates, axis=1), strict=True)
    ]
    result = ops.concatenate(parts, axis=-1)
    return result if bias is None else result + ops.cast(bias, "float32")


def recurrent_masks(cell: keras.Layer, h: Any, training: bool) -> list[Any] | None:
    """Returns the dropout masks of the state, one a gate; None without dropout."""
    if training and 0.0 < cell.recurrent_dropout < 1.0:
        return list(cell.get_recurrent_dropout_mask(h))
    return None


def has_cell_of_type(layer: keras.Layer, *classes: Any) -> bool:
    """Tells whether the cell of a layer computes as one of these classes.

    The loop over time does not call the cell, so that it would ignore the methods of a
    subclass, and a `call` that was replaced on the cell.
    """
    return class_of_cell(layer) in classes and "call" not in vars(layer.cell)


def has_cell_of_keras(layer: keras.Layer) -> bool:
    """Tells whether the cell of a layer computes as one of Keras or of keras_mp."""
    package = type(layer.cell).__module__.partition(".")[0]
    return package in ("keras", "keras_mp") and "call" not in vars(layer.cell)


def keras_runs_cudnn(layer: keras.Layer, reset_after: bool = True) -> bool:
    """Tells whether Keras runs this layer in cuDNN, or raises since it cannot.

    Args:
        layer: `keras.layers.LSTM` or `keras.layers.GRU`.
        reset_after: bool, of a GRU.
    """
    import tensorflow as tf

    fits = (
        layer.activation is keras.activations.tanh
        and layer.recurrent_activation is keras.activations.sigmoid
        and not layer.recurrent_dropout
        and not layer.unroll
        and layer.use_bias
        and reset_after
    )
    on_gpu = bool(tf.config.list_logical_devices("GPU"))
    return layer.use_cudnn is True or bool(layer.use_cudnn and fits and on_gpu)


def loop(
    layer: keras.Layer,
    step: Any,
    projected: Tensor,
    initial_state: Any,
    mask: Tensor,
) -> Any:
    """Runs a step function over time as `layer` would run its cell.

    Args:
        layer: `keras.layers.RNN`, for its options.
        step: object with the methods and attributes of a cell. It is not a
            `keras.Layer`, which would cast the FP32 projections.
        projected: `[batch, time, gates * units]` in FP32.
        initial_state: list of tensors.
        mask: `[batch, time]`, or None.

    Returns:
        The results of `keras.layers.RNN.inner_loop`.
    """
    options = ("return_sequences", "go_backwards", "unroll", "zero_output_for_mask")
    rnn = keras.layers.RNN(
        step, name="loop", **{name: getattr(layer, name) for name in options}
    )
    if isinstance(mask, list | tuple):
        mask = mask[0]
    return rnn.inner_loop(projected, initial_state, mask)
