"""`float16_products`: an FP32 product whose factors are rounded to FP16."""

from typing import Any

import tensorflow as tf

from keras_mp.ops import gemm_reference
from keras_mp.ops.gemm import fp16_gemm, gradient_products

# Scaled, the largest magnitude of a factor is between 2^14 and 2^15.
_LARGEST_EXPONENT = 14
_BIAS, _MANTISSA_BITS = 127, 23


def float16_products(
    a: Any,
    b: Any,
    transpose_a: bool = False,
    transpose_b: bool = False,
    bias: Any = None,
    activation: str | None = None,
    output_dtype: str | None = None,
    alpha: Any = 1.0,
    scaled: bool = False,
) -> tf.Tensor:
    """Multiplies FP32 matrices by way of FP16, and returns FP32.

    `activation(alpha * round(op(a)) @ round(op(b)) + bias)`, where `round` is to FP16,
    and everything else is FP32. The backward pass rounds the upstream gradient in the
    same way, and its products return FP32, too; of `a` and `b` only what was rounded is
    kept for it. A factor beyond 65,504 becomes infinite, and so does the result.

    With `scaled`, each factor is multiplied by a power of two before it is rounded,
    which brings its largest magnitude to between 2**14 and 2**15, and the result is
    divided by it. An element of `a` then errs by at most
    `2**-11 * |a| + 2**-39 * max|a|`, whatever its size.

    Args:
        a: float32, `[..., M, K]`, or `[..., K, M]` with `transpose_a`.
        b: float32, or float16 for a weight stored so, which is not scaled:
            `[..., K, N]`, or `[..., N, K]` with `transpose_b`.
        transpose_a: bool, default False.
        transpose_b: bool, default False.
        bias: `[N]`, default None.
        activation: None (default), `"relu"`, `"tanh"`, `"sigmoid"` or `"gelu"`.
        output_dtype: None (default) or `"float32"`, which is what is returned.
        alpha: a number, default 1.
        scaled: bool, default False.

    Returns:
        float32 tensor `[..., M, N]`.

    Raises:
        ValueError: if shapes do not fit.
    """
    a, b = tf.convert_to_tensor(a), tf.convert_to_tensor(b)

    @tf.custom_gradient
    def multiply(a: tf.Tensor, b: tf.Tensor) -> tuple[tf.Tensor, Any]:
        (a16, a_exponent), (b16, b_exponent) = (_rounded(x, scaled) for x in (a, b))
        c = fp16_gemm(a16, b16, transpose_a, transpose_b, output_dtype="float32")

        def gradient(upstream: tf.Tensor) -> list[tf.Tensor]:
            grad, exponent = _rounded(upstream, scaled)
            grad_a, grad_b = gradient_products(a16, b16, grad, transpose_a, transpose_b)
            grad_b = _unscaled(grad_b, exponent, a_exponent)
            return [
                _unscaled(grad_a, exponent, b_exponent),
                tf.cast(grad_b, b.dtype),
            ]

        return _unscaled(c, a_exponent, b_exponent), gradient

    c = tf.cast(alpha, tf.float32) * multiply(a, b)
    if bias is not None:
        c = tf.nn.bias_add(c, tf.cast(bias, tf.float32))
    return c if activation is None else gemm_reference.ACTIVATIONS[activation](c)


def _rounded(x: tf.Tensor, scaled: bool) -> tuple[tf.Tensor, tf.Tensor | None]:
    """Returns a factor in FP16, and the exponent of what it was multiplied by."""
    if x.dtype == tf.float16 or not scaled:
        return tf.cast(x, tf.float16), None
    # Of no numbers the maximum is -inf, whose bits are those of no magnitude.
    largest = tf.maximum(tf.reduce_max(tf.abs(x)), 0.0)
    bits = tf.bitcast(largest, tf.int32)
    exponent = tf.bitwise.right_shift(bits, _MANTISSA_BITS) - _BIAS
    exponent = tf.clip_by_value(_LARGEST_EXPONENT - exponent, 1 - _BIAS, _BIAS - 1)
    return tf.cast(x * _power_of_two(exponent), tf.float16), exponent


def _unscaled(x: tf.Tensor, *exponents: tf.Tensor | None) -> tf.Tensor:
    """Returns `x` divided by two to the sum of the exponents.

    In two steps of the same direction, each of which is an FP32 number: what overflows
    after the first would have overflowed anyway, and 0 stays 0.
    """
    known = [exponent for exponent in exponents if exponent is not None]
    if not known:
        return x
    total = -tf.add_n(known)
    half = total // 2
    return x * _power_of_two(half) * _power_of_two(total - half)


def _power_of_two(exponent: tf.Tensor) -> tf.Tensor:
    """Returns 2**exponent as float32, exactly; the exponent is from -126 to 127."""
    return tf.bitcast(
        tf.bitwise.left_shift(exponent + _BIAS, _MANTISSA_BITS), tf.float32
    )
