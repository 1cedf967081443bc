"""`fp16_gemm` in plain TensorFlow, for machines without the native library."""

import tensorflow as tf


def relu(x: tf.Tensor) -> tf.Tensor:
    """Returns max(x, 0), and NaN for NaN, which XLA's maximum may drop."""
    return tf.where(x < 0.0, 0.0, x)


def gelu(x: tf.Tensor) -> tf.Tensor:
    """Returns x Phi(x), by erfc: 1 + erf(x) would cancel for negative x."""
    return 0.5 * x * tf.math.erfc(-(0.5**0.5) * x)


ACTIVATIONS = {
    "relu": relu,
    "tanh": tf.tanh,
    "sigmoid": tf.sigmoid,
    "gelu": gelu,
}


def fp16_gemm(
    a: tf.Tensor,
    b: tf.Tensor,
    alpha: tf.Tensor,
    biases: tuple[tf.Tensor, ...],
    *,
    transpose_a: bool,
    transpose_b: bool,
    activation: str | None,
    output_dtype: str,
) -> tf.Tensor:
    """Returns round(activation(alpha * op(a) op(b) + bias)), computed in FP32."""
    a, b = tf.cast(a, tf.float32), tf.cast(b, tf.float32)
    if b.shape.rank == 2 and (a.shape.rank or 0) > 2 and not transpose_a:
        # One product with all rows is faster than a batch of products.
        rows = tf.reshape(a, [-1, tf.shape(a)[-1]])
        product = tf.matmul(rows, b, transpose_b=transpose_b)
        shape = tf.concat([tf.shape(a)[:-1], tf.shape(product)[-1:]], axis=0)
        static_shape = [*a.shape[:-1], product.shape[-1]]
        product = tf.ensure_shape(tf.reshape(product, shape), static_shape)
    else:
        product = tf.matmul(a, b, transpose_a=transpose_a, transpose_b=transpose_b)
    # An empty sum is 0, not 0 * alpha.
    has_terms = tf.shape(a, tf.int64)[-2 if transpose_a else -1] > 0
    result = tf.where(has_terms, tf.ensure_shape(alpha, []), 1.0) * product
    for bias in biases:
        # Unlike an addition, bias_add rejects a bias of another shape than [N].
        result = tf.nn.bias_add(result, tf.cast(bias, tf.float32))
    if activation is not None:
        result = ACTIVATIONS[activation](result)
    return tf.cast(result, output_dtype)
