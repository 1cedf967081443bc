"""ConvLSTM1D, ConvLSTM2D and ConvLSTM3D, their convolutions and gates in FP32."""

import functools
from typing import Any

import keras
from keras import ops

from keras_mp.layers.convolutional.base_conv import round_straight_through
from keras_mp.layers.convolutional.empty_inputs import convolve_filled, least_sizes
from keras_mp.layers.precision import read_without_autocast, remat, uses_ops
from keras_mp.layers.rnn.base_rnn import has_cell_of_keras, loop
from keras_mp.layers.rnn.lstm_cell import LSTMStep
from keras_mp.layers.rnn.orthogonal_weights import BuildsCell
from keras_mp.typing import Tensor


class RecurrentConvolution:
    """A recurrent kernel, rounded once for all time steps, to convolve states with.

    Args:
        cell: the cell of a Keras ConvLSTM.
        kernel: tensor `[..., filters, columns]` in the dtype it is stored in.
        dtype: `"float16"` or `"bfloat16"`.
    """

    def __init__(self, cell: keras.Layer, kernel: Tensor, dtype: str) -> None:
        self._cell = cell
        self._kernel = round_straight_through(kernel, dtype)

    def product(self, h: Any) -> Any:
        """Returns the convolution in FP32; `h` is a state of 16 bits."""
        one = [1] * self._cell.rank
        return convolve_filled(
            lambda h: self._cell.recurrent_conv(h, self._kernel),
            ops.cast(h, "float32"),
            self._cell.data_format,
            least=one,
            strides=one,
            growth=one,
        )


class FP32ConvLSTM(BuildsCell):
    """Mixed into a Keras ConvLSTM: convolves, adds and activates in FP32.

    Inputs, states and weights are 16-bit numbers, converted, on every device: also
    where it convolves 16-bit numbers itself, since it rounds what it returns. The sum
    of both convolutions and the bias is not rounded, nor are the gates; `h` and `c` are
    rounded once, when they are written. The inputs of all time steps are convolved
    before the loop, and held for the backward pass in their 16 bits; the recurrent
    kernel is rounded once, also before it. The gradients of FP32 weights are FP32.
    """

    def inner_loop(
        self: Any,
        sequences: Tensor,
        initial_state: Any,
        mask: Tensor,
        training: bool = False,
    ) -> Any:
        if not has_cell_of_keras(self) or not uses_ops(self.cell, sequences):
            return super().inner_loop(  # type: ignore[misc]
                sequences, initial_state, mask, training=training
            )
        step = LSTMStep(
            self.cell,
            initial_state[0],
            training,
            functools.partial(RecurrentConvolution, self.cell),
            _channel_axis(self.cell),
        )
        projected = _project(self.cell, sequences, training)
        return loop(self, step, projected, initial_state, mask)


def _channel_axis(cell: keras.Layer) -> int:
    """Returns the axis of the channels of a time step, and of a whole sequence."""
    is_last = cell.data_format == "channels_last"
    return -1 if is_last else -1 - len(cell.kernel_size)


def _project(cell: keras.Layer, x: Tensor, training: bool) -> Any:
    """Returns what the inputs of all time steps add to the four gates, in FP32."""
    inputs, kernels = [x], [read_without_autocast(cell.kernel)]
    if training and 0.0 < cell.dropout < 1.0:
        inputs = [x * ops.expand_dims(y, 1) for y in cell.get_dropout_mask(x[:, 0])]
        kernels = ops.split(kernels[0], 4, axis=-1)
    axis = _channel_axis(cell)
    parts = [_convolve(cell, *pair) for pair in zip(inputs, kernels, strict=True)]
    projected = ops.concatenate(parts, axis=axis)
    if not cell.use_bias:
        return projected
    bias = ops.cast(read_without_autocast(cell.bias), "float32")
    return projected + ops.reshape(bias, (-1, *[1] * (-1 - axis)))


def _convolve(cell: keras.Layer, x: Tensor, kernel: Tensor) -> Any:
    """Returns the convolution of each time step of `[batch, time, ...]`, in FP32."""

    def compute(x: Tensor, kernel: Tensor) -> Any:
        batch, time, *sizes = ops.shape(x)
        steps = ops.reshape(ops.cast(x, "float32"), (batch * time, *sizes))
        kernel = round_straight_through(kernel, cell.compute_dtype)
        outputs = convolve_filled(
            lambda x: cell.input_conv(x, kernel, padding=cell.padding),
            steps,
            cell.data_format,
            least_sizes(cell.kernel_size, cell.dilation_rate, cell.padding),
            cell.strides,
            growth=[1] * cell.rank,
        )
        return ops.reshape(outputs, (batch, time, *ops.shape(outputs)[1:]))

    return remat(compute, x, kernel)


@keras.saving.register_keras_serializable(package="keras_mp")
class ConvLSTM1D(FP32ConvLSTM, keras.layers.ConvLSTM1D):
    """`keras.layers.ConvLSTM1D` with 16-bit matrix products that accumulate in FP32.

    The sum of both convolutions and the bias, and the gates, are FP32; `h` and `c` are
    rounded once, when they are written. The gradients of FP32 weights are FP32.

    Args: as in `keras.layers.ConvLSTM1D`.

    Example:

    >>> layer = keras_mp.layers.ConvLSTM1D(4, 3, dtype="mixed_float16")
    >>> outputs = layer(np.ones((2, 5, 6, 3)))
    >>> outputs.shape, outputs.dtype.name, layer.cell.kernel.dtype
    (TensorShape([2, 4, 4]), 'float16', 'float32')

    Reference: Mixed Precision Training, section 3.3.
    """


@keras.saving.register_keras_serializable(package="keras_mp")
class ConvLSTM2D(FP32ConvLSTM, keras.layers.ConvLSTM2D):
    """`keras.layers.ConvLSTM2D` with 16-bit matrix products that accumulate in FP32.

    The sum of both convolutions and the bias, and the gates, are FP32; `h` and `c` are
    rounded once, when they are written. The gradients of FP32 weights are FP32.

    Args: as in `keras.layers.ConvLSTM2D`.

    Example:

    >>> layer = keras_mp.layers.ConvLSTM2D(4, 3, dtype="mixed_float16")
    >>> outputs = layer(np.ones((2, 5, 6, 6, 3)))
    >>> outputs.shape, outputs.dtype.name, layer.cell.kernel.dtype
    (TensorShape([2, 4, 4, 4]), 'float16', 'float32')

    Reference: Mixed Precision Training, section 3.3.
    """


@keras.saving.register_keras_serializable(package="keras_mp")
class ConvLSTM3D(FP32ConvLSTM, keras.layers.ConvLSTM3D):
    """`keras.layers.ConvLSTM3D` with 16-bit matrix products that accumulate in FP32.

    The sum of both convolutions and the bias, and the gates, are FP32; `h` and `c` are
    rounded once, when they are written. The gradients of FP32 weights are FP32.

    Args: as in `keras.layers.ConvLSTM3D`.

    Example:

    >>> layer = keras_mp.layers.ConvLSTM3D(4, 3, dtype="mixed_float16")
    >>> outputs = layer(np.ones((2, 5, 6, 6, 6, 3)))
    >>> outputs.shape, outputs.dtype.name, layer.cell.kernel.dtype
    (TensorShape([2, 4, 4, 4, 4]), 'float16', 'float32')

    Reference: Mixed Precision Training, section 3.3.
    """
