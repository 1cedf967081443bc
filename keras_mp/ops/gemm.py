"""`fp16_gemm`: FP16 matrix product with FP32 accumulation, and its gradient."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import tensorflow as tf

from keras_mp.ops.checks import (
    check_dtypes,
    check_shapes,
    resolve_output_dtype,
    to_tensor,
)
from keras_mp.ops.gradients import vjp
from keras_mp.ops.kernels import native
from keras_mp.ops.kernels.dispatch import (
    has_accelerator,
    has_cpu_kernels,
    has_gemm_kernel,
)
from keras_mp.ops.reductions import accumulate


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
    a: Any,
    b: Any,
    transpose_a: bool = False,
    transpose_b: bool = False,
    bias: Any = None,
    activation: str | None = None,
    output_dtype: str | None = None,
    alpha: Any = 1.0,
) -> tf.Tensor:
    """Multiplies FP16 matrices, accumulates in FP32, and rounds once.

    `round(activation(alpha * op(a) @ op(b) + bias))`, where everything inside `round`
    is FP32. The error of an element of `a @ b` is at most `K * 2**-24 * sum(|a| |b|)`,
    where `2**-24` is the relative error of one FP32 rounding; on tensor cores, which
    truncate, it is at most three times that. The result is rounded to nearest even,
    and what overflows becomes inf. On a CPU that multiplies bfloat16 (`avx512_bf16`,
    `amx_bf16`, `amx_fp16`), bfloat16 inputs and sums below `2**-126`, the smallest
    normal number, count as 0. This adds an error of up to
    `2**-126 * sum(1 + |a| + |b|)`. `amx_bf16` splits FP16 elements exactly into two
    bfloat16 numbers and sums four products; there `K` counts as 8 at least.

    The gradient uses the same op: the upstream gradient times the derivative of the
    activation is rounded once, to the dtype of `a`, before `alpha`, and its matrix
    products accumulate in FP32. `alpha` gets no gradient. The derivatives of tanh and
    sigmoid are computed from their results, as in TensorFlow: if those were rounded,
    the derivatives err by up to 2**-11 (bfloat16: 2**-8). The derivative of gelu errs
    by up to 2**-20: its argument is computed again, on a CPU by the kernel that
    multiplies by the upstream gradient and sums the gradient of the bias.

    Args:
        a: float16 or bfloat16, `[..., M, K]`, or `[..., K, M]` with `transpose_a`.
        b: `[..., K, N]`, or `[..., N, K]` with `transpose_b`. Its leading dimensions
            broadcast with `a`'s. The dtype of `a`; or float32, for a master weight: it
            is rounded to the dtype of `a` before the product, and its gradient is FP32,
            without a rounding to FP16 on the way.
        transpose_a: bool, default False.
        transpose_b: bool, default False.
        bias: `[N]`, the dtype of `a` or float32; default None.
        activation: None (default), `"relu"`, `"tanh"`, `"sigmoid"` or `"gelu"` (the
            exact one, with erf).
        output_dtype: None (default), for the dtype of `a`, or `"float32"`.
        alpha: a number or a scalar tensor, taken as FP32; default 1. With `alpha = 1 /
            loss_scale` and `output_dtype="float32"`, a weight gradient is unscaled
            in the pass that computes it.

    Returns:
        A tensor `[..., M, N]` of `output_dtype`.

    Raises:
        ValueError: if shapes or dtypes do not fit, or the activation is unknown.

    Example:

    >>> a = np.full((1, 4096), 1.0, "float16")
    >>> b = np.full((4096, 1), 0.1, "float16")
    >>> keras_mp.ops.fp16_gemm(a, b).numpy()    # an FP16 sum would stop at 256
    array([[409.5]], dtype=float16)

    Reference: Mixed Precision Training, section 3.3.
    """
    a, b = to_tensor(a, "a"), to_tensor(b, "b")
    biases = () if bias is None else (to_tensor(bias, "bias"),)
    # In eager mode TensorFlow caches the constants of Python numbers.
    to_scalar = tf.constant if isinstance(alpha, float) else tf.cast
    alpha = to_scalar(alpha, tf.float32)
    if activation is not None and activation not in ACTIVATIONS:
        raise ValueError(
            f"`activation` must be None or one of {list(ACTIVATIONS)}. "
            f"Received: activation={activation!r} for a product of {a.shape} and "
            f"{b.shape}. Call another activation on the result."
        )
    output_dtype = resolve_output_dtype(output_dtype, a)
    check_dtypes(a, b, biases, output_dtype)
    check_shapes(a, b, transpose_a, transpose_b, biases, alpha)
    gemm = _Gemm(transpose_a, transpose_b, activation, output_dtype)
    return gemm.forward(a, b, alpha, biases)


@dataclass(frozen=True)
class _Gemm:
    """The op and its gradient for one set of attributes."""

    transpose_a: bool
    transpose_b: bool
    activation: str | None
    output_dtype: str

    def forward(
        self,
        a: tf.Tensor,
        b: tf.Tensor,
        alpha: tf.Tensor,
        biases: tuple[tf.Tensor, ...] = (),
    ) -> tf.Tensor:
        is_native = has_gemm_kernel(a.dtype)
        if is_native and (b.dtype == a.dtype or not has_accelerator()):
            return self._by_kernel(a, b, alpha, biases)

        # The formula has no registered gradient. Where there is a GPU, an FP32 matrix
        # is cast once here, not by the kernel in each product.
        @tf.custom_gradient
        def multiply(
            a: tf.Tensor, b: tf.Tensor, alpha: tf.Tensor, *biases: tf.Tensor
        ) -> tuple[tf.Tensor, Any]:
            rounded = tf.cast(b, a.dtype)
            route = self._by_kernel if is_native else self._by_formula
            c = route(a, rounded, alpha, biases)
            return c, lambda upstream: self.backward(a, b, alpha, biases, c, upstream)

        return multiply(a, b, alpha, *biases)

    def _by_kernel(
        self,
        a: tf.Tensor,
        b: tf.Tensor,
        alpha: tf.Tensor,
        biases: tuple[tf.Tensor, ...],
    ) -> tf.Tensor:
        return native.library().keras_mp_fp16_gemm(
            a=a,
            b=b,
            alpha=alpha,
            bias=list(biases),
            transpose_a=self.transpose_a,
            transpose_b=self.transpose_b,
            activation=self.activation or "",
            Tout=tf.as_dtype(self.output_dtype),
        )

    def _by_formula(
        self,
        a: tf.Tensor,
        b: tf.Tensor,
        alpha: tf.Tensor,
        biases: tuple[tf.Tensor, ...],
    ) -> tf.Tensor:
        a, b = tf.cast(a, tf.float32), tf.cast(b, tf.float32)
        if b.shape.rank == 2 and (a.shape.rank or 0) > 2 and not self.transpose_a:
            # One product with all rows is faster than a batch of products.
            rows = tf.reshape(a, [-1, tf.shape(a)[-1]])
            product = tf.matmul(rows, b, transpose_b=self.transpose_b)
            shape = tf.concat([tf.shape(a)[:-1], tf.shape(product)[-1:]], axis=0)
            static_shape = [*a.shape[:-1], product.shape[-1]]
            product = tf.ensure_shape(tf.reshape(product, shape), static_shape)
        else:
            product = tf.matmul(
                a, b, transpose_a=self.transpose_a, transpose_b=self.transpose_b
            )
        # An empty sum is 0, not 0 * alpha.
        has_terms = tf.shape(a, tf.int64)[-2 if self.transpose_a else -1] > 0
        result = tf.where(has_terms, tf.ensure_shape(alpha, []), 1.0) * product
        for bias in biases:
            # Unlike an addition, bias_add rejects a bias of another shape than [N].
            result = tf.nn.bias_add(result, tf.cast(bias, tf.float32))
        if self.activation is not None:
            result = ACTIVATIONS[self.activation](result)
        return tf.cast(result, self.output_dtype)

    def backward(
        self,
        a: tf.Tensor,
        b: tf.Tensor,
        alpha: tf.Tensor,
        biases: tuple[tf.Tensor, ...],
        c: tf.Tensor,
        upstream: tf.Tensor,
    ) -> list[tf.Tensor | None]:
        """Returns the gradients of a, b, alpha (None) and, if there is one, bias.

        The control dependency defers what is computed only from a, b and c, as in
        `defer_until_upstream`.
        """
        with tf.control_dependencies([upstream]):
            if self.activation == "gelu" and has_cpu_kernels():
                rounded, sums = native.library().keras_mp_fp16_gemm_gelu_gradient(
                    a=a,
                    b=b,
                    alpha=alpha,
                    bias=list(biases),
                    upstream=upstream,
                    transpose_a=self.transpose_a,
                    transpose_b=self.transpose_b,
                )
            else:
                grad = self.activation_grad(a, b, alpha, biases, c, upstream)
                rounded = tf.cast(grad, a.dtype)
                sums = _sum_rows(grad, _columns(biases[0])) if biases else None
            return [
                self._grad_a(a, b, alpha, rounded),
                self._grad_b(a, b, alpha, rounded),
                None,
                *(tf.cast(sums, bias.dtype) for bias in biases),
            ]

    def activation_grad(
        self,
        a: tf.Tensor,
        b: tf.Tensor,
        alpha: tf.Tensor,
        biases: tuple[tf.Tensor, ...],
        c: tf.Tensor | None,
        upstream: tf.Tensor,
    ) -> tf.Tensor:
        """Returns the gradient of the argument of the activation, in FP32.

        Without an activation, and for relu, it has the dtype of `upstream`: the
        derivative is 0 or 1. TensorFlow's kernels for CPUs multiply by 0 where a relu
        is inactive, also for the relu of Keras, so that an infinite gradient is NaN
        there, and the step is skipped; under XLA it is 0. The derivative of gelu needs
        the argument, which is computed again, and not the result `c`.
        """
        if self.activation is None:
            return upstream
        if self.activation == "relu":
            return tf.raw_ops.ReluGrad(gradients=upstream, features=c)
        upstream = tf.cast(upstream, tf.float32)
        if self.activation == "gelu":
            linear = replace(self, activation=None, output_dtype="float32")
            x = linear.forward(a, b, alpha, biases)
            cumulative = 0.5 * tf.math.erfc(-np.float32(np.sqrt(0.5)) * x)
            density = np.float32(1 / np.sqrt(2 * np.pi)) * tf.exp(-0.5 * x * x)
            return upstream * (cumulative + x * density)
        y = tf.cast(c, tf.float32)
        if self.activation == "tanh":
            return upstream * (1 - y * y)
        return upstream * y * (1 - y)

    def _grad_a(
        self, a: tf.Tensor, b: tf.Tensor, alpha: tf.Tensor, grad: tf.Tensor
    ) -> tf.Tensor:
        if self.transpose_a:
            # Only the second matrix may be FP32.
            rounded = tf.cast(b, a.dtype)
            return _gemm_like(a, rounded, grad, self.transpose_b, True, alpha)
        return _gemm_like(a, grad, b, False, not self.transpose_b, alpha)

    def _grad_b(
        self, a: tf.Tensor, b: tf.Tensor, alpha: tf.Tensor, grad: tf.Tensor
    ) -> tf.Tensor:
        if b.shape.rank == 2 and a.shape.rank != 2 and not self.transpose_a:
            # One weight for a batch of matrices: one product sums over all rows of all
            # matrices in FP32.
            a, grad = (tf.reshape(x, [-1, _columns(x)]) for x in (a, grad))
        if self.transpose_b:
            return _gemm_like(b, grad, a, True, self.transpose_a, alpha)
        return _gemm_like(b, a, grad, not self.transpose_a, False, alpha)


def _gemm_like(
    target: tf.Tensor,
    a: tf.Tensor,
    b: tf.Tensor,
    transpose_a: bool,
    transpose_b: bool,
    alpha: tf.Tensor,
) -> tf.Tensor:
    """Returns the product of a and b, summed in FP32 to the shape of `target`.

    `target` is the operand that has this gradient. The sum is over the batch dimensions
    along which it was broadcast in the forward pass. There are none if one of the three
    is a single matrix or if all have the same batch.
    """
    batches = [x.shape[:-2] for x in (a, b, target)]
    if any(x.shape.rank == 2 for x in (a, b)) or (
        all(batch.is_fully_defined() and batch == batches[0] for batch in batches)
    ):
        gemm = _Gemm(transpose_a, transpose_b, None, target.dtype.name)
        return gemm.forward(a, b, alpha)
    product = _Gemm(transpose_a, transpose_b, None, "float32").forward(a, b, alpha)
    return tf.cast(sum_over_broadcast(product, target), target.dtype)


def sum_over_broadcast(product: tf.Tensor, target: tf.Tensor) -> tf.Tensor:
    """Returns a product, summed to the shape of `target`.

    `target` is the operand that has this gradient. The sum is over the batch dimensions
    along which it was broadcast.
    """
    is_known = product.shape.is_fully_defined()
    if product.shape.rank == 2 or (is_known and product.shape == target.shape):
        return product
    axes, _ = tf.raw_ops.BroadcastGradientArgs(
        s0=tf.shape(target)[:-2], s1=tf.shape(product)[:-2]
    )
    total = tf.reshape(tf.reduce_sum(product, axes), tf.shape(target))
    return tf.ensure_shape(total, target.shape)


def _sum_rows(x: tf.Tensor, columns: Any) -> tf.Tensor:
    """Returns the sum of all rows of `x` in FP32, the gradient of a bias."""
    return tf.squeeze(accumulate(tf.reshape(x, [-1, columns]), [0]), 0)


def _columns(x: tf.Tensor) -> Any:
    """Returns the size of the last dimension: an int, or a tensor if it is dynamic."""
    size = x.shape[-1]
    return tf.shape(x)[-1] if size is None else size


@tf.RegisterGradient("KerasMp>Fp16Gemm")
def _fp16_gemm_grad(op: Any, upstream: tf.Tensor) -> list[tf.Tensor | None]:
    a, b, alpha, *biases = op.inputs
    gemm = _gemm_of(op, op.get_attr("activation").decode() or None)
    return gemm.backward(a, b, alpha, tuple(biases), op.outputs[0], upstream)


@tf.RegisterGradient("KerasMp>Fp16GemmGeluGradient")
def _second_gradient(op: Any, *upstream: tf.Tensor) -> list[tf.Tensor | None]:
    """Differentiates the formula."""
    gemm = _gemm_of(op, "gelu")

    def formula(
        a: tf.Tensor, b: tf.Tensor, alpha: tf.Tensor, *others: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor]:
        *biases, of_result = others
        grad = gemm.activation_grad(a, b, alpha, tuple(biases), None, of_result)
        return tf.cast(grad, a.dtype), _sum_rows(grad, _columns(op.outputs[1]))

    return vjp(formula, list(op.inputs), upstream)


def _gemm_of(op: Any, activation: str | None) -> _Gemm:
    transposes = op.get_attr("transpose_a"), op.get_attr("transpose_b")
    return _Gemm(*transposes, activation, op.outputs[0].dtype.name)
