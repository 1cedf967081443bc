"""Average pooling of 16-bit numbers, in FP32."""

from typing import Any

import tensorflow as tf

from keras_mp.ops.kernels import native
from keras_mp.ops.kernels.dispatch import choose
from keras_mp.ops.kernels.rows import have_sum, sizes_of


def average_pool(
    x: tf.Tensor, pool_size: tuple[int, ...], strides: tuple[int, ...], padding: str
) -> tf.Tensor:
    """Returns the average of each window, summed in FP32 and rounded once.

    On a CPU a native kernel does it. Nothing is held between forward and
    backward pass.

    Args:
        x: float16 or bfloat16 tensor, `[batch, ..., channels]` with one to three
            dimensions in the middle.
        pool_size: a number for each of these.
        strides: the same.
        padding: `"valid"` or `"same"`; what is padded does not count.
    """
    if len(pool_size) < 3:
        x = tf.expand_dims(x, 1)
        return tf.squeeze(average_pool(x, (1, *pool_size), (1, *strides), padding), 1)
    shape = sizes_of(x, tf.int32)  # of which AvgPool3DGrad takes them
    dtype = x.dtype
    windows = {
        "ksize": [1, *pool_size, 1],
        "strides": [1, *strides, 1],
        "padding": padding.upper(),
    }
    of_kernel = {"window": pool_size, "strides": strides, "padding": padding}

    read = _read(shape, pool_size, strides, padding)

    def formula(x: tf.Tensor) -> tf.Tensor:
        wide = tf.cast(tf.slice(x, [0] * 5, read), tf.float32)
        return tf.cast(tf.raw_ops.AvgPool3D(input=wide, **windows), dtype)

    def kernel(x: tf.Tensor) -> tf.Tensor:
        return native.library().keras_mp_average_pool(x=x, **of_kernel)

    def slope(upstream: tf.Tensor) -> tf.Tensor:
        of_x = tf.raw_ops.AvgPool3DGrad(
            orig_input_shape=read, grad=tf.cast(upstream, tf.float32), **windows
        )
        rest = [[0, whole - part] for whole, part in zip(shape, read, strict=True)]
        return tf.pad(tf.cast(of_x, dtype), rest)

    def slope_kernel(upstream: tf.Tensor) -> tf.Tensor:
        return native.library().keras_mp_average_pool_gradient(
            shape=shape, grad_y=upstream, **of_kernel
        )

    has_kernel = have_sum(x, [1, 2, 3])

    @tf.custom_gradient
    def pooled(x: tf.Tensor) -> tuple[tf.Tensor, Any]:
        def gradient(upstream: tf.Tensor) -> tf.Tensor:
            return choose(slope, slope_kernel if has_kernel else None, upstream)

        return choose(formula, kernel if has_kernel else None, x), gradient

    return pooled(x)


def _read(
    shape: list[Any], pool_size: tuple[int, ...], strides: tuple[int, ...], padding: str
) -> list[Any]:
    """Returns the sizes up to the end of the last window.

    Where windows end before the input does, TensorFlow would begin them before it.
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


# For the bare ops: in a reloaded SavedModel, and for a second order.
@tf.RegisterGradient("KerasMp>AveragePool")
def _of_average_pool(op: Any, upstream: tf.Tensor) -> tf.Tensor:
    return native.library().keras_mp_average_pool_gradient(
        shape=tf.shape(op.inputs[0]), grad_y=upstream, **_windows_of(op)
    )


@tf.RegisterGradient("KerasMp>AveragePoolGradient")
def _of_average_pool_gradient(op: Any, upstream: tf.Tensor) -> list[tf.Tensor | None]:
    return [None, native.library().keras_mp_average_pool(x=upstream, **_windows_of(op))]


def _windows_of(op: Any) -> dict[str, Any]:
    return {name: op.get_attr(name) for name in ("window", "strides", "padding")}
