"""The ops in plain TensorFlow: what runs where the native library is missing."""

import tensorflow as tf


def gelu(x: tf.Tensor) -> tf.Tensor:
    """Returns x Phi(x), with erfc: 1 + erf(x) would cancel for negative x."""
    return 0.5 * x * tf.math.erfc(-(0.5**0.5) * x)


ACTIVATIONS = {
    "relu": tf.nn.relu,
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
    result = tf.ensure_shape(alpha, []) * tf.matmul(
        tf.cast(a, tf.float32),
        tf.cast(b, tf.float32),
        transpose_a=transpose_a,
        transpose_b=transpose_b,
    )
    for bias in biases:
        # Unlike a sum, bias_add refuses what is not [N].
        result = tf.nn.bias_add(result, tf.cast(bias, tf.float32))
    if activation is not None:
        result = ACTIVATIONS[activation](result)
    return tf.cast(result, output_dtype)
