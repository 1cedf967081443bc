"""Normalization along axes of 16-bit numbers: FP32 inside, one rounding."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from keras_mp.ops.checks import axes_of
from keras_mp.ops.gradients import late
from keras_mp.ops.kernels import native
from keras_mp.ops.kernels.dispatch import choose, slopes_of
from keras_mp.ops.kernels.rows import as_rows, have_kernel, sizes_of
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

    On a CPU one native kernel does it along the last axes. Between forward and backward
    pass `x` alone is held.

    Args:
        x: float16 or bfloat16 tensor.
        axis: int or several.
        kind: `"layer"`: `z = (x - mean) / sqrt(variance + epsilon)`;
            `"root_mean_square"`: `z = x / sqrt(mean(x**2) + epsilon)`;
            `"unit_length"`: `z = x / max(norm(x), epsilon)`, where the gradient of a
            vector of zeros, which does not exist, is 0.
        epsilon: number.
        gamma: FP32, of the rank of `x`, its values along the axes; default None: 1.
        beta: the same; default None: 0.

    Returns:
        A tensor of the dtype and shape of `x`.
    """
    axes = axes_of(axis, x)
    given = gamma is not None, beta is not None
    parameters = [p for p in (gamma, beta) if p is not None]
    if have_kernel(x, axes):
        # Its gradient is registered.
        return _by_kernel(x, axes, kind, epsilon, given, parameters)
    formula = _Formula(kind, axes, epsilon, given)

    @tf.custom_gradient
    def normalized(x: tf.Tensor, *parameters: tf.Tensor) -> tuple[tf.Tensor, Any]:
        @late
        def gradient(upstream: tf.Tensor) -> Any:
            return choose(formula.backward, None, x, upstream, *parameters)

        return choose(formula.forward, None, x, *parameters), gradient

    return normalized(x, *parameters)


def _by_kernel(
    x: tf.Tensor,
    axes: list[int],
    kind: str,
    epsilon: float,
    given: tuple[bool, bool],
    parameters: list[tf.Tensor],
) -> tf.Tensor:
    rows = [tf.reshape(parameter, [-1]) for parameter in parameters]
    gamma, beta = split(given, rows)
    y = native.library().keras_mp_row_norm(
        x=as_rows(x, axes), gamma=gamma, beta=beta, kind=kind, epsilon=epsilon
    )
    return tf.reshape(y, sizes_of(x))


@dataclass(frozen=True)
class _Formula:
    """In TensorFlow."""

    kind: str
    axes: list[int]
    epsilon: float
    given: tuple[bool, bool]  # gamma, beta

    def forward(self, x: tf.Tensor, *parameters: tf.Tensor) -> tf.Tensor:
        gamma, beta = split(self.given, parameters)
        y, _ = self.normalize(x)
        for scale in gamma:
            y *= scale
        for offset in beta:
            y += offset
        return tf.cast(y, x.dtype)

    def normalize(self, x: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns `z`, and what the centered `x` was multiplied with, in FP32."""
        x = tf.cast(x, tf.float32)
        if self.kind == LAYER:
            x -= tf.reduce_mean(x, self.axes, keepdims=True)
        squares = tf.square(x)
        if self.kind == UNIT_LENGTH:
            length = tf.sqrt(tf.reduce_sum(squares, self.axes, keepdims=True))
            # Not a maximum, of which XLA on a CPU may lose the NaN.
            inverse = 1.0 / tf.where(length < self.epsilon, self.epsilon, length)
            return x * inverse, tf.where(length > 0.0, inverse, 0.0)
        mean = tf.reduce_mean(squares, self.axes, keepdims=True)
        inverse = tf.math.rsqrt(mean + self.epsilon)
        return x * inverse, inverse

    def backward(
        self, x: tf.Tensor, upstream: tf.Tensor, *parameters: tf.Tensor
    ) -> tuple[tf.Tensor, ...]:
        """Returns the gradients of x and of the parameters."""
        gamma, beta = split(self.given, parameters)
        z, inverse = self.normalize(x)
        upstream = tf.cast(upstream, tf.float32)
        of_z = upstream
        for scale in gamma:
            of_z = upstream * scale
        average = tf.reduce_sum if self.kind == UNIT_LENGTH else tf.reduce_mean
        along = average(of_z * z, self.axes, keepdims=True)
        if self.kind == UNIT_LENGTH:
            # A vector shorter than epsilon is divided by a constant.
            along = tf.where(inverse * self.epsilon < 1.0, along, 0.0)
        slope = of_z - z * along
        if self.kind == LAYER:
            slope -= tf.reduce_mean(of_z, self.axes, keepdims=True)
        return (
            tf.cast(slope * inverse, x.dtype),
            *(sum_like(upstream * z, scale) for scale in gamma),
            *(sum_like(upstream, offset) for offset in beta),
        )


def split(
    given: tuple[bool, bool], parameters: Sequence[tf.Tensor]
) -> tuple[list[tf.Tensor], list[tf.Tensor]]:
    """Returns gamma and beta of those that are given, as lists of one or none."""
    at = int(given[0])
    return list(parameters[:at]), list(parameters[at:])


# For the bare ops: in a reloaded SavedModel, and for a second order.
@tf.RegisterGradient("KerasMp>RowNorm")
def _of_row_norm(op: Any, upstream: tf.Tensor) -> list[tf.Tensor]:
    x, *parameters = op.inputs
    gamma, beta = split(_given(op), parameters)
    of_x, of_gamma, of_beta = native.library().keras_mp_row_norm_gradient(
        x=x,
        grad_y=upstream,
        gamma=gamma,
        num_beta=len(beta),
        kind=op.get_attr("kind"),
        epsilon=op.get_attr("epsilon"),
    )
    return [of_x, *of_gamma, *of_beta]


@tf.RegisterGradient("KerasMp>RowNormGradient")
def _of_row_norm_gradient(op: Any, *upstream: tf.Tensor) -> list[tf.Tensor | None]:
    kind, given = op.get_attr("kind").decode(), _given(op)
    row_norm = _Formula(kind, [1], op.get_attr("epsilon"), given)

    def formula(
        x: tf.Tensor, of_y: tf.Tensor, *gamma: tf.Tensor
    ) -> tuple[tf.Tensor, ...]:
        size = sizes_of(x)[1]
        # Of beta the gradient depends on the shape alone.
        parameters = [*gamma, *[tf.zeros([size])] * given[1]]
        of_x, *slopes = row_norm.backward(
            x, of_y, *(tf.reshape(p, [1, size]) for p in parameters)
        )
        return of_x, *(tf.reshape(slope, [size]) for slope in slopes)

    return slopes_of(formula, op.inputs, upstream)


def _given(op: Any) -> tuple[bool, bool]:
    return bool(op.get_attr("num_gamma")), bool(op.get_attr("num_beta"))
