"""`float16_matmul`: FP32 matrices, multiplied in FP16 with FP32 results."""

from dataclasses import dataclass
from typing import Any, NamedTuple

import tensorflow as tf

from keras_mp.ops.gemm import ACTIVATIONS, fp16_gemm, sum_over_broadcast
from keras_mp.ops.kernels.rows import as_rows, sizes_of

# The exponent of the largest magnitude of what was scaled: the largest FP16 number has
# 15, and rounding may add one.
_TOP = 14
# Of FP32: the position of the exponent, the one of 1.0, that of inf and NaN.
_SHIFT, _ONE, _NOT_FINITE = 23, 127, 255


def float16_matmul(
    a: Any,
    b: Any,
    transpose_a: bool = False,
    transpose_b: bool = False,
    bias: Any = None,
    activation: str | None = None,
    alpha: float = 1.0,
    scaled: bool = False,
) -> tf.Tensor:
    """Rounds FP32 matrices to FP16, multiplies them, and returns FP32.

    `activation(alpha * round(op(a)) @ round(op(b)) + bias)`, where everything but the
    factors of the product is FP32. The gradients of `a` and `b` are two such products,
    and also round the upstream gradient; so are theirs. For the backward pass a graph
    keeps `a` and `b` only in FP16. What is beyond 65,504 becomes inf.

    With `scaled`, each factor is first multiplied by a power of two that brings its
    largest magnitude to between 2**14 and 2**15, and the result is divided by both.
    That is exact but for what falls below FP16's range. The rounding of a number moves
    it by at most `error(x) = 2**-11 * |x| + max(2**-39 * max|x|, 2**-151)`, so that an
    element of `a @ b` errs by at most `sum(|a| error(b) + error(a) |b| + error(a)
    error(b))`, about `2**-10 * sum(|a| |b|)`, and by the `K * 2**-24 * sum(|a| |b|)` of
    FP32. FP32 numbers below 2**-126 may count as 0. A factor with inf or NaN is not
    scaled.

    Args:
        a: float32, `[..., M, K]`, or `[..., K, M]` with `transpose_a`.
        b: float32, `[..., K, N]`, or `[..., N, K]` with `transpose_b`. A factor that is
            float16 is multiplied unchanged, and its gradient is rounded to FP16.
        transpose_a: bool, default False.
        transpose_b: bool, default False.
        bias: `[N]`, default None.
        activation: None (default), `"relu"`, `"tanh"`, `"sigmoid"` or `"gelu"`.
        alpha: float, default 1.
        scaled: bool, default False.

    Returns:
        float32 tensor `[..., M, N]`.

    Raises:
        ValueError: if shapes do not fit.
    """
    a, b = (tf.convert_to_tensor(x) for x in (a, b))
    of_rows = b.shape.rank == 2 and (a.shape.rank or 0) > 2 and not transpose_a
    # One product with all rows, so that the gradient of `b` is one product, too.
    rows = as_rows(a, [a.shape.rank - 1]) if of_rows else a
    products = _Products(alpha, scaled)
    factors = products.factor(rows), products.factor(b)
    c = products.multiply(*factors, transpose_a, transpose_b)
    if bias is not None:
        c = tf.nn.bias_add(c, tf.cast(bias, tf.float32))
    if activation is not None:
        c = ACTIVATIONS[activation](c)
    if of_rows:
        c = tf.reshape(c, [*sizes_of(a)[:-1], sizes_of(c)[-1]])
    return c


class _Factor(NamedTuple):
    """A factor of a product.

    Args:
        tensor: gets the gradient. Its numbers are read only before the product.
        halves: float16, what is multiplied.
        exponent: int32 scalar, of the power of two by which `halves` are larger
            than `tensor`; None if they are not scaled.
    """

    tensor: tf.Tensor
    halves: tf.Tensor
    exponent: tf.Tensor | None = None


@dataclass(frozen=True)
class _Products:
    """Products with one `alpha`, scaled or not; the gradient of one is two of them."""

    alpha: float
    scaled: bool

    def factor(self, x: tf.Tensor) -> _Factor:
        if x.dtype == tf.float16:
            return _Factor(x, x)
        x = tf.cast(x, tf.float32)
        numbers = tf.stop_gradient(x)  # the product has the gradient
        if not self.scaled:
            return _Factor(x, tf.cast(numbers, tf.float16))
        exponent = _exponent_to_the_top(numbers)
        scaled = numbers * _power_of_two(exponent)
        return _Factor(x, tf.cast(scaled, tf.float16), exponent)

    def multiply(
        self, a: _Factor, b: _Factor, transpose_a: bool, transpose_b: bool
    ) -> tf.Tensor:
        @tf.custom_gradient
        def multiply(*_: tf.Tensor) -> tuple[tf.Tensor, Any]:
            alpha, divisor = self._alpha_and_divisor(a, b)
            c = fp16_gemm(
                a.halves,
                b.halves,
                transpose_a,
                transpose_b,
                output_dtype="float32",
                alpha=alpha,
            )
            return c if divisor is None else c / divisor, gradient

        def gradient(upstream: tf.Tensor) -> list[tf.Tensor]:
            grad = self.factor(upstream)
            if transpose_a:
                of_a = self.multiply(b, grad, transpose_b, True)
            else:
                of_a = self.multiply(grad, b, False, not transpose_b)
            if transpose_b:
                of_b = self.multiply(grad, a, True, transpose_a)
            else:
                of_b = self.multiply(a, grad, not transpose_a, False)
            return [
                tf.cast(sum_over_broadcast(x, factor.halves), factor.tensor.dtype)
                for x, factor in ((of_a, a), (of_b, b))
            ]

        return multiply(a.tensor, b.tensor)

    def _alpha_and_divisor(self, *factors: _Factor) -> tuple[Any, tf.Tensor | None]:
        """Returns what the product is multiplied, and then divided by.

        Half of the inverse scale each: all of it may be beyond FP32 where the result is
        not. Both enlarge or both reduce, so that what overflows or vanishes in between
        does so in the end. TensorFlow would merge two multiplications.
        """
        exponents = [x.exponent for x in factors if x.exponent is not None]
        if not exponents:
            return self.alpha, None
        scale = tf.add_n(exponents)
        half = scale // 2
        return self.alpha * _power_of_two(-half), _power_of_two(scale - half)


def _exponent_to_the_top(x: tf.Tensor) -> tf.Tensor:
    """Returns the exponent of the power of two by which `x` is scaled.

    It is at most 126, so that its inverse is also an FP32 number; then the largest
    magnitude may stay below the top.
    """
    largest = tf.reduce_max(tf.abs(x))
    bits = tf.bitcast(largest, tf.int32)
    # 0 for 0 and for subnormal numbers. Of no numbers the maximum is -inf.
    found = tf.bitwise.bitwise_and(tf.bitwise.right_shift(bits, _SHIFT), _NOT_FINITE)
    exponent = tf.minimum(_TOP + _ONE - found, _ONE - 1)
    return tf.where(found == _NOT_FINITE, 0, exponent)


def _power_of_two(exponent: tf.Tensor) -> tf.Tensor:
    """Returns `2**exponent` as float32, exactly, for exponents from -126 to 127."""
    return tf.bitcast(tf.bitwise.left_shift(exponent + _ONE, _SHIFT), tf.float32)
