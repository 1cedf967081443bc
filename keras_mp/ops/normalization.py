"""Normalization of channels: 16 bits in and out, statistics and arithmetic in FP32.

For the backward pass each function keeps its 16-bit input and FP32 tensors of the size
of the statistics.
"""

import math
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from keras_mp.ops.gradients import defer_until_upstream
from keras_mp.ops.kernels.rows import sizes_of
from keras_mp.ops.statistics import PooledSum

# The outputs of a function under `tf.custom_gradient`, and its gradient function.
_Results = tuple[Any, Any]


@dataclass(frozen=True)
class ChannelNormalization:
    """`round(gamma * (x - mean) / sqrt(variance + epsilon) + beta)` and its gradient.

    Args:
        total: the sum for the statistics; gamma and beta have size 1 along its axes.
        epsilon: number.
        mask: bool tensor of the shape of the input, or None. Where it is False, an
            element does not count in the statistics.
    """

    total: PooledSum
    epsilon: float
    mask: tf.Tensor | None = None

    def __call__(
        self, x: tf.Tensor, gamma: tf.Tensor, beta: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """Returns the result in the dtype of `x`, and mean and variance in FP32.

        Mean and variance have size 1 along the axes of `total`; no gradient flows
        through them.

        Args:
            x: float16 or bfloat16 tensor.
            gamma: FP32, of the rank of `x`.
            beta: FP32, of the rank of `x`.
        """

        @tf.custom_gradient
        def normalized(x: tf.Tensor, gamma: tf.Tensor, beta: tf.Tensor) -> _Results:
            y, mean, variance, count = self.forward(x, gamma, beta)

            @defer_until_upstream
            def gradient(upstream: tf.Tensor, *_: Any) -> tuple[tf.Tensor, ...]:
                return self.backward(x, upstream, count, gamma, mean, variance)

            return (y, mean, variance), gradient

        return normalized(x, gamma, beta)

    def forward(
        self, x: tf.Tensor, gamma: tf.Tensor, beta: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor, tf.Tensor]:
        """Returns the result, mean, variance, and the number of elements averaged."""
        mean, variance, count = self.total.moments(tf.cast(x, tf.float32), self.mask)
        return self.apply(x, gamma, beta, mean, variance), mean, variance, count

    def apply(
        self,
        x: tf.Tensor,
        gamma: tf.Tensor,
        beta: tf.Tensor,
        mean: tf.Tensor,
        variance: tf.Tensor,
    ) -> tf.Tensor:
        """Returns the result for a given mean and variance."""
        scale = gamma * tf.math.rsqrt(variance + self.epsilon)
        # The error of x * scale - mean * scale would grow with the mean.
        return tf.cast((tf.cast(x, tf.float32) - mean) * scale + beta, x.dtype)

    def backward(
        self,
        x: tf.Tensor,
        upstream: tf.Tensor,
        count: tf.Tensor | None,
        gamma: tf.Tensor,
        mean: tf.Tensor,
        variance: tf.Tensor,
    ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """Returns the gradients of x, gamma and beta.

        If `count` is None, mean and variance are constants (inference); otherwise they
        are functions of `x`.
        """
        inverse = tf.math.rsqrt(variance + self.epsilon)
        if count is not None:
            # Without elements the variance is NaN; the gradients shall be 0.
            inverse = tf.where(count > 0.0, inverse, 0.0)
        centered = tf.cast(x, tf.float32) - mean
        upstream = tf.cast(upstream, tf.float32)
        axes, pool = self.total.axes, self.total.pool
        grad_beta = tf.reduce_sum(upstream, axes, keepdims=True)
        grad_gamma = inverse * tf.reduce_sum(upstream * centered, axes, keepdims=True)
        grad_x = upstream * (gamma * inverse)
        if count is not None:
            through_mean = inverse * pool(gamma * grad_beta) / count
            through_variance = inverse * inverse * pool(gamma * grad_gamma) / count
            grad_statistics = through_mean + centered * through_variance
            if self.mask is not None:
                grad_statistics = tf.where(self.mask, grad_statistics, 0.0)
            grad_x -= grad_statistics
        return (
            tf.cast(grad_x, x.dtype),
            sum_like(grad_gamma, gamma),
            sum_like(grad_beta, gamma),
        )


def normalize_groups(
    x: tf.Tensor,
    gamma: tf.Tensor,
    beta: tf.Tensor,
    groups: int,
    axis: int,
    epsilon: float,
) -> tf.Tensor:
    """Normalizes each group of channels of each example.

    `round(gamma * (x - mean) / sqrt(variance + epsilon) + beta)`. Each channel is
    summed first, without a transpose, and then the sums of a group are added.

    Args:
        x: float16 or bfloat16 tensor.
        gamma: FP32 `[channels]`.
        beta: FP32 `[channels]`.
        groups: int, the number of groups.
        axis: positive int, the axis of the channels.
        epsilon: number.

    Returns:
        A tensor of the dtype and shape of `x`.
    """
    members = gamma.shape[0] // groups

    def pool(sums: tf.Tensor) -> tf.Tensor:
        grouped = tf.reshape(sums, [-1, groups, members])
        totals = tf.reduce_sum(grouped, axis=2, keepdims=True)
        each = tf.broadcast_to(totals, tf.shape(grouped))
        return tf.reshape(each, tf.shape(sums))

    gamma, beta = (
        tf.reshape(tf.convert_to_tensor(p), [1, 1, -1, 1]) for p in (gamma, beta)
    )
    sizes = sizes_of(x)
    between, after = math.prod(sizes[1:axis]), math.prod(sizes[axis + 1 :])
    formula = ChannelNormalization(PooledSum((1, 3), pool), epsilon)
    y, _, _ = formula(
        tf.reshape(x, [sizes[0], between, sizes[axis], after]), gamma, beta
    )
    return tf.ensure_shape(tf.reshape(y, tf.shape(x)), x.shape)


def sum_like(x: tf.Tensor, parameter: tf.Tensor) -> tf.Tensor:
    """Sums `x` over the axes along which a parameter was broadcast."""
    axes = [i for i, size in enumerate(parameter.shape) if size == 1]
    return tf.reshape(tf.reduce_sum(x, axes), parameter.shape)
