"""Normalization of vectors along axes: 16 bits in and out, FP32 arithmetic."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from keras_mp.ops.checks import normalize_axes
from keras_mp.ops.gradients import as_one_operation, defer_until_upstream, vjp
from keras_mp.ops.kernels import native
from keras_mp.ops.kernels.rows import as_rows, has_row_kernel, sizes_of
from keras_mp.ops.normalization import sum_like

LAYER = "layer"
ROOT_MEAN_SQUARE = "root_mean_square"
UNIT_LENGTH = "unit_length"


def normalize_rows(
    x: tf.Tensor,
    axis: int | Sequence[int],
    kind: str,
    epsilon: float,
    gamma: tf.Tensor | None = None,
    beta: tf.Tensor | None = None,
) -> tf.Tensor:
    """Returns `round(gamma * z + beta)`, where `z` is `x` normalized along axes.

    Along the last axes one native kernel computes it, if there are such kernels. Only
    `x` is kept for the backward pass.

    Args:
        x: float16 or bfloat16 tensor.
        axis: int or several.
        kind: `"layer"`: `z = (x - mean) / sqrt(variance + epsilon)`;
            `"root_mean_square"`: `z = x / sqrt(mean(x**2) + epsilon)`; `"unit_length"`:
            `z = x / max(norm(x), epsilon)`; at a vector of zeros, which has no
            derivative, the gradient is 0.
        epsilon: number.
        gamma: FP32 tensor of the rank of `x`, with size 1 except along the axes;
            default None: 1.
        beta: FP32 tensor of the same shape; default None: 0.

    Returns:
        A tensor of the dtype and shape of `x`.
    """
    axes = normalize_axes(axis, x)
    given = gamma is not None, beta is not None
    parameters = [p for p in (gamma, beta) if p is not None]
    if has_row_kernel(x, axes):
        # Its gradient is registered.
        return _normalize_by_kernel(x, axes, kind, epsilon, given, parameters)
    formula = _RowNormFormula(kind, axes, epsilon, given)

    @tf.custom_gradient
    def normalized(x: tf.Tensor, *parameters: tf.Tensor) -> tuple[tf.Tensor, Any]:
        @defer_until_upstream
        def gradient(upstream: tf.Tensor) -> Any:
            return as_one_operation(formula.backward, x, upstream, *parameters)

        return as_one_operation(formula.forward, x, *parameters), gradient

    return normalized(x, *parameters)


def _normalize_by_kernel(
    x: tf.Tensor,
    axes: list[int],
    kind: str,
    epsilon: float,
    given: tuple[bool, bool],
    parameters: list[tf.Tensor],
) -> tf.Tensor:
    rows = [tf.reshape(parameter, [-1]) for parameter in parameters]
    gamma, beta = split_parameters(given, rows)
    y = native.library().keras_mp_row_norm(
        x=as_rows(x, axes), gamma=gamma, beta=beta, kind=kind, epsilon=epsilon
    )
    return tf.reshape(y, sizes_of(x))


@dataclass(frozen=True)
class _RowNormFormula:
    """The forward and backward pass in TensorFlow.

    Args:
        kind: as in `normalize_rows`.
        axes: non-negative ints.
        epsilon: number.
        given: whether there is a gamma, and whether there is a beta.
    """

    kind: str
    axes: list[int]
    epsilon: float
    given: tuple[bool, bool]

    def forward(self, x: tf.Tensor, *parameters: tf.Tensor) -> tf.Tensor:
        gamma, beta = split_parameters(self.given, parameters)
        y, _ = self.normalize(x)
        for scale in gamma:
            y *= scale
        for offset in beta:
            y += offset
        return tf.cast(y, x.dtype)

    def normalize(self, x: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns `z` and the factor of the centered `x` in it, both in FP32."""
        x = tf.cast(x, tf.float32)
        if self.kind == LAYER:
            x -= tf.reduce_mean(x, self.axes, keepdims=True)
        squares = tf.square(x)
        if self.kind == UNIT_LENGTH:
            length = tf.sqrt(tf.reduce_sum(squares, self.axes, keepdims=True))
            # XLA's maximum may drop a NaN on CPUs.
            inverse = 1.0 / tf.where(length < self.epsilon, self.epsilon, length)
            return x * inverse, tf.where(length > 0.0, inverse, 0.0)
        mean = tf.reduce_mean(squares, self.axes, keepdims=True)
        inverse = tf.math.rsqrt(mean + self.epsilon)
        return x * inverse, inverse

    def backward(
        self, x: tf.Tensor, upstream: tf.Tensor, *parameters: tf.Tensor
    ) -> tuple[tf.Tensor, ...]:
        """Returns the gradients of x and of the given parameters."""
        gamma, beta = split_parameters(self.given, parameters)
        z, inverse = self.normalize(x)
        upstream = tf.cast(upstream, tf.float32)
        grad_z = upstream
        for scale in gamma:
            grad_z = upstream * scale
        average = tf.reduce_sum if self.kind == UNIT_LENGTH else tf.reduce_mean
        projection = average(grad_z * z, self.axes, keepdims=True)
        if self.kind == UNIT_LENGTH:
            # A vector shorter than epsilon is divided by a constant: epsilon.
            projection = tf.where(inverse * self.epsilon < 1.0, projection, 0.0)
        grad = grad_z - z * projection
        if self.kind == LAYER:
            grad -= tf.reduce_mean(grad_z, self.axes, keepdims=True)
        return (
            tf.cast(grad * inverse, x.dtype),
            *(sum_like(upstream * z, scale) for scale in gamma),
            *(sum_like(upstream, offset) for offset in beta),
        )


def split_parameters(
    given: tuple[bool, bool], parameters: Sequence[tf.Tensor]
) -> tuple[list[tf.Tensor], list[tf.Tensor]]:
    """Splits the given parameters into lists of gammas and betas, one or none each."""
    num_gamma = int(given[0])
    return list(parameters[:num_gamma]), list(parameters[num_gamma:])


# The gradients of the ops themselves serve reloaded SavedModels and second-order
# gradients.
@tf.RegisterGradient("KerasMp>RowNorm")
def _row_norm_grad(op: Any, upstream: tf.Tensor) -> list[tf.Tensor]:
    x, *parameters = op.inputs
    gamma, beta = split_parameters(_has_parameters(op), parameters)
    grad_x, grad_gamma, grad_beta = native.library().keras_mp_row_norm_gradient(
        x=x,
        grad_y=upstream,
        gamma=gamma,
        num_beta=len(beta),
        kind=op.get_attr("kind"),
        epsilon=op.get_attr("epsilon"),
    )
    return [grad_x, *grad_gamma, *grad_beta]


@tf.RegisterGradient("KerasMp>RowNormGradient")
def _row_norm_grad_grad(op: Any, *upstream: tf.Tensor) -> list[tf.Tensor | None]:
    kind, given = op.get_attr("kind").decode(), _has_parameters(op)
    row_norm = _RowNormFormula(kind, [1], op.get_attr("epsilon"), given)

    def formula(
        x: tf.Tensor, grad_y: tf.Tensor, *gamma: tf.Tensor
    ) -> tuple[tf.Tensor, ...]:
        size = sizes_of(x)[1]
        # The gradient of beta depends on the shape of beta, not on its values.
        parameters = [*gamma, *[tf.zeros([size])] * given[1]]
        grad_x, *grads = row_norm.backward(
            x, grad_y, *(tf.reshape(p, [1, size]) for p in parameters)
        )
        return grad_x, *(tf.reshape(grad, [size]) for grad in grads)

    return vjp(formula, op.inputs, upstream)


def _has_parameters(op: Any) -> tuple[bool, bool]:
    """Tells whether an op has a gamma, and whether it has a beta."""
    return bool(op.get_attr("num_gamma")), bool(op.get_attr("num_beta"))
