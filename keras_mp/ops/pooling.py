"""Average pooling of 16-bit numbers, in FP32."""

from typing import Any

import tensorflow as tf


def average_pool(
    x: tf.Tensor, pool_size: tuple[int, ...], strides: tuple[int, ...], padding: str
) -> tf.Tensor:
    """Returns the average of each window, summed in FP32 and rounded once.

    Nothing is held between forward and backward pass.

    Args:
        x: float16 or bfloat16 tensor, `[batch, ..., channels]` with one to three
            dimensions in the middle.
        pool_size: a number for each of these.
        strides: the same.
        padding: `"valid"` or `"same"`; what is padded does not count.
    """
    if len(pool_size) == 1:
        x = tf.expand_dims(x, 2)
        return tf.squeeze(average_pool(x, (*pool_size, 1), (*strides, 1), padding), 2)
    raw = tf.raw_ops
    pool, pool_gradient = raw.AvgPool, raw.AvgPoolGrad
    if len(pool_size) == 3:
        pool, pool_gradient = raw.AvgPool3D, raw.AvgPool3DGrad
    attributes = {
        "ksize": [1, *pool_size, 1],
        "strides": [1, *strides, 1],
        "padding": padding.upper(),
    }
    shape, dtype = tf.shape(x), x.dtype

    @tf.custom_gradient
    def pooled(x: tf.Tensor) -> tuple[tf.Tensor, Any]:
        wide = tf.cast(x, tf.float32)
        value = "value" if pool is raw.AvgPool else "input"
        y = pool(**{value: wide}, **attributes)

        def gradient(upstream: tf.Tensor) -> tf.Tensor:
            upstream = tf.cast(upstream, tf.float32)
            slope = pool_gradient(orig_input_shape=shape, grad=upstream, **attributes)
            return tf.cast(slope, dtype)

        return tf.cast(y, dtype), gradient

    return pooled(x)
