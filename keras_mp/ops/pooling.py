"""Average pooling: 16 bits in and out, FP32 accumulation."""

from typing import Any

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
