"""Average pooling of 16-bit numbers, in FP32."""

from typing import Any

import tensorflow as tf

from keras_mp.ops import native
from keras_mp.ops.routes import choose
from keras_mp.ops.rows import have_sum, sizes_of


def average_pool(
    x: tf.Tensor, pool_size: tuple[int, ...], strides: tuple[int, ...], padding: str
) -> tf.Tensor:
    """Returns the average of each window, summed in FP32 and rounded once.

    On a CPU outside of XLA a native kernel does it. Nothing is held between forward and
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
    shape = sizes_of(x)
    has_kernel = have_sum(x, [1, 2, 3])
    formula = {
        "ksize": [1, *pool_size, 1],
        "strides": [1, *strides, 1],
        "padding": padding.upper(),
    }
    kernel = {"window": pool_size, "strides": strides, "padding": padding}

    @tf.custom_gradient
    def pooled(x: tf.Tensor) -> tuple[tf.Tensor, Any]:
        dtype = x.dtype

        def compiled() -> tf.Tensor:
            wide = tf.cast(x, tf.float32)
            return tf.cast(tf.raw_ops.AvgPool3D(input=wide, **formula), dtype)

        def gradient(upstream: tf.Tensor) -> tf.Tensor:
            def compiled() -> tf.Tensor:
                slope = tf.raw_ops.AvgPool3DGrad(
                    orig_input_shape=shape,
                    grad=tf.cast(upstream, tf.float32),
                    **formula,
                )
                return tf.cast(slope, dtype)

            if not has_kernel:
                return compiled()
            return choose(
                compiled,
                lambda: native.library().keras_mp_average_pool_gradient(
                    shape=shape, of_y=upstream, **kernel
                ),
            )

        if not has_kernel:
            return compiled(), gradient
        y = choose(
            compiled, lambda: native.library().keras_mp_average_pool(x=x, **kernel)
        )
        return y, gradient

    return pooled(x)
