"""Average pooling: 16 bits in and out, FP32 accumulation."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from keras_mp.ops.gradients import as_one_operation
from keras_mp.ops.kernels import native
from keras_mp.ops.kernels.rows import has_sum_kernel, sizes_of


def average_pool(
    x: tf.Tensor, pool_size: tuple[int, ...], strides: tuple[int, ...], padding: str
) -> tf.Tensor:
    """Returns the average of each window, summed in FP32 and rounded once.

    On a CPU a native kernel computes it. Nothing is kept for the backward pass.

    Args:
        x: float16 or bfloat16 tensor, `[batch, ..., channels]` with one to three
            spatial dimensions.
        pool_size: int for each spatial dimension.
        strides: int for each spatial dimension.
        padding: `"valid"` or `"same"`; padding does not count in an average.
    """
    if len(pool_size) < 3:
        x = tf.expand_dims(x, 1)
        return tf.squeeze(average_pool(x, (1, *pool_size), (1, *strides), padding), 1)
    shape = sizes_of(x, tf.int32)  # the dtype that AvgPool3DGrad takes
    dtype = x.dtype
    windows = {
        "ksize": [1, *pool_size, 1],
        "strides": [1, *strides, 1],
        "padding": padding.upper(),
    }
    attributes = {"window": pool_size, "strides": strides, "padding": padding}

    covered = _covered_sizes(shape, pool_size, strides, padding)

    def formula(x: tf.Tensor) -> tf.Tensor:
        wide = tf.cast(tf.slice(x, [0] * 5, covered), tf.float32)
        return tf.cast(tf.raw_ops.AvgPool3D(input=wide, **windows), dtype)

    def kernel(x: tf.Tensor) -> tf.Tensor:
        return native.library().keras_mp_average_pool(x=x, **attributes)

    def backward_formula(upstream: tf.Tensor) -> tf.Tensor:
        grad_x = tf.raw_ops.AvgPool3DGrad(
            orig_input_shape=covered, grad=tf.cast(upstream, tf.float32), **windows
        )
        outside = [[0, size - end] for size, end in zip(shape, covered, strict=True)]
        return tf.pad(tf.cast(grad_x, dtype), outside)

    def backward_kernel(upstream: tf.Tensor) -> tf.Tensor:
        return native.library().keras_mp_average_pool_gradient(
            shape=shape, grad_y=upstream, **attributes
        )

    has_kernel = has_sum_kernel(x, [1, 2, 3])

    @tf.custom_gradient
    def pooled(x: tf.Tensor) -> tuple[tf.Tensor, Any]:
        def gradient(upstream: tf.Tensor) -> tf.Tensor:
            if has_kernel:
                return backward_kernel(upstream)
            return as_one_operation(backward_formula, upstream)

        return kernel(x) if has_kernel else as_one_operation(formula, x), gradient

    return pooled(x)


def _covered_sizes(
    shape: list[Any], pool_size: tuple[int, ...], strides: tuple[int, ...], padding: str
) -> list[Any]:
    """Returns the sizes of the part of the input that windows cover.

    With padding `"same"` and strides larger than the windows, the last window may end
    before the input does. TensorFlow's op would place the windows differently there,
    so it gets only this part of the input.
    """
    if padding != "same" or all(
        stride <= window for window, stride in zip(pool_size, strides, strict=True)
    ):
        return shape
    batch, *inside, channels = shape
    ends = [
        tf.minimum(size, (size - 1) // stride * stride + window)
        for size, window, stride in zip(inside, pool_size, strides, strict=True)
    ]
    return [batch, *ends, channels]


# The gradients of the ops themselves serve reloaded SavedModels and second-order
# gradients.
@tf.RegisterGradient("KerasMp>AveragePool")
def _average_pool_grad(op: Any, upstream: tf.Tensor) -> tf.Tensor:
    return native.library().keras_mp_average_pool_gradient(
        shape=tf.shape(op.inputs[0]), grad_y=upstream, **_window_attributes(op)
    )


@tf.RegisterGradient("KerasMp>AveragePoolGradient")
def _average_pool_grad_grad(op: Any, upstream: tf.Tensor) -> list[tf.Tensor | None]:
    return [
        None,
        native.library().keras_mp_average_pool(x=upstream, **_window_attributes(op)),
    ]


def _window_attributes(op: Any) -> dict[str, Any]:
    return {name: op.get_attr(name) for name in ("window", "strides", "padding")}


def adaptive_average_pool(
    x: tf.Tensor, output_size: Sequence[int], axes: Sequence[int]
) -> tf.Tensor:
    """Returns so many averages along each axis, summed in FP32 and rounded once.

    Of n windows along `size` elements, window i begins at `floor(i * size / n)` and
    ends before `ceil((i + 1) * size / n)`. Nothing is held between forward and
    backward pass.

    Args:
        x: float16 or bfloat16 tensor.
        output_size: a number for each axis.
        axes: those along which `x` is pooled.

    Raises:
        ValueError: the size of such an axis is not known, or 0.
    """
    sizes = [x.shape[axis] for axis in axes]
    if None in sizes or 0 in sizes:
        raise ValueError(
            "Adaptive pooling needs sizes that are known and not 0, except for the "
            "batch and the channels. "
            f"Received: shape={x.shape}. Give them to `keras.Input`."
        )
    windows = [_Windows(*of_axis) for of_axis in zip(sizes, output_size, strict=True)]
    dtype = x.dtype

    @tf.custom_gradient
    def pooled(x: tf.Tensor) -> tuple[tf.Tensor, Any]:
        def gradient(upstream: tf.Tensor) -> tf.Tensor:
            grad = tf.cast(upstream, tf.float32)
            for axis, along in zip(axes, windows, strict=True):
                grad = along.spread(grad, axis)
            return tf.cast(grad, dtype)

        means = tf.cast(x, tf.float32)
        for axis, along in zip(axes, windows, strict=True):
            means = along.means(means, axis)
        return tf.cast(means, dtype), gradient

    return pooled(x)


class _Windows:
    """The windows along an axis, and the sums that go with them."""

    def __init__(self, size: int, count: int) -> None:
        steps = np.arange(count + 1, dtype="int64") * size
        self._starts = steps[:-1] // count
        self._ends = -(-steps[1:] // count)
        # Neither starts nor ends ever decrease, so an element lies in a row of windows.
        elements = np.arange(size)
        self._first = np.searchsorted(self._ends, elements, "right")
        self._last = np.searchsorted(self._starts, elements, "right")

    def means(self, x: tf.Tensor, axis: int) -> tf.Tensor:
        """Returns the mean of each window."""
        return self._divided(_sums(x, axis, self._starts, self._ends), axis)

    def spread(self, grad: tf.Tensor, axis: int) -> tf.Tensor:
        """Returns the gradient of `means`: what each element has of its windows."""
        return _sums(self._divided(grad, axis), axis, self._first, self._last)

    def _divided(self, x: tf.Tensor, axis: int) -> tf.Tensor:
        lengths = np.float32(self._ends - self._starts)
        return x / lengths.reshape([-1] + [1] * (len(x.shape) - axis - 1))


def _sums(x: tf.Tensor, axis: int, starts: Any, ends: Any) -> tf.Tensor:
    """Returns the sums of `x` from each start until before the end that goes with it.

    They are gathered, not multiplied with ones and zeros: an inf stays in its windows.
    """
    index = starts[:, None] + np.arange(np.max(ends - starts))
    # What a shorter window lacks is the zero behind the last element.
    index = np.where(index < ends[:, None], index, x.shape[axis])
    padding = [[0, int(i == axis)] for i in range(len(x.shape))]
    return tf.reduce_sum(tf.gather(tf.pad(x, padding), index, axis=axis), axis + 1)
