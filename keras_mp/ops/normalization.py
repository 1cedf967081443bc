"""Normalization of 16-bit numbers: statistics and arithmetic in FP32, one rounding.

Between forward and backward pass each function holds its input, in 16 bits, and FP32
numbers of the size of the statistics.
"""

import math
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from keras_mp.ops.gradients import late
from keras_mp.ops.kernels.rows import sizes_of
from keras_mp.ops.statistics import Total

# Outputs of `tf.custom_gradient` and the gradients that it asks for.
_Results = tuple[Any, Any]


@dataclass(frozen=True)
class ChannelNormalization:
    """`round(gamma * (x - mean) / sqrt(variance + epsilon) + beta)` and its gradient.

    Args:
        total: what the statistics are summed over; gamma and beta have size 1 along
            its axes.
        epsilon: number.
        mask: bool, of the shape of the input, True for what the statistics count; or
            None.
    """

    total: Total
    epsilon: float
    mask: tf.Tensor | None = None

    def __call__(
        self, x: tf.Tensor, gamma: tf.Tensor, beta: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """Returns the result in the dtype of `x`, and FP32 mean and variance.

        Those have size 1 along the axes of `total`, and get no gradient.

        Args:
            x: float16 or bfloat16 tensor.
            gamma: FP32, of the rank of `x`.
            beta: FP32, of the rank of `x`.
        """

        @tf.custom_gradient
        def normalized(x: tf.Tensor, gamma: tf.Tensor, beta: tf.Tensor) -> _Results:
            y, mean, variance, count = self.forward(x, gamma, beta)

            @late
            def gradient(upstream: tf.Tensor, *_: Any) -> tuple[tf.Tensor, ...]:
                return self.backward(x, upstream, count, gamma, mean, variance)

            return (y, mean, variance), gradient

        return normalized(x, gamma, beta)

    def forward(
        self, x: tf.Tensor, gamma: tf.Tensor, beta: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor, tf.Tensor]:
        """Returns the result, mean, variance, and how many numbers they are of."""
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
        """Returns the result with this mean and variance."""
        scale = gamma * tf.math.rsqrt(variance + self.epsilon)
        # Not x * scale - mean * scale, whose error grows with the mean.
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

        Mean and variance depend on `x`, unless `count` is None.
        """
        inverse = tf.math.rsqrt(variance + self.epsilon)
        if count is not None:
            # Without numbers the variance is NaN, and the sums of slopes stay 0.
            inverse = tf.where(count > 0.0, inverse, 0.0)
        centered = tf.cast(x, tf.float32) - mean
        upstream = tf.cast(upstream, tf.float32)
        axes, pool = self.total.axes, self.total.pool
        of_beta = tf.reduce_sum(upstream, axes, keepdims=True)
        of_gamma = inverse * tf.reduce_sum(upstream * centered, axes, keepdims=True)
        of_x = upstream * (gamma * inverse)
        if count is not None:
            through_mean = inverse * pool(gamma * of_beta) / count
            through_variance = inverse * inverse * pool(gamma * of_gamma) / count
            through = through_mean + centered * through_variance
            if self.mask is not None:
                through = tf.where(self.mask, through, 0.0)
            of_x -= through
        return (
            tf.cast(of_x, x.dtype),
            sum_like(of_gamma, gamma),
            sum_like(of_beta, gamma),
        )


def normalize_groups(
    x: tf.Tensor,
    gamma: tf.Tensor,
    beta: tf.Tensor,
    groups: int,
    axis: int,
    epsilon: float,
) -> tf.Tensor:
    """Normalizes each example and group of channels.

    `round(gamma * (x - mean) / sqrt(variance + epsilon) + beta)`. Each channel is
    summed where it lies, and then the sums of a group.

    Args:
        x: float16 or bfloat16 tensor.
        gamma: FP32 `[channels]`.
        beta: FP32 `[channels]`.
        groups: how many.
        axis: int from 1, that of the channels.
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
    formula = ChannelNormalization(Total((1, 3), pool), epsilon)
    y, _, _ = formula(
        tf.reshape(x, [sizes[0], between, sizes[axis], after]), gamma, beta
    )
    return tf.ensure_shape(tf.reshape(y, tf.shape(x)), x.shape)


def sum_like(x: tf.Tensor, parameter: tf.Tensor) -> tf.Tensor:
    """Sums over the axes along which a parameter was repeated."""
    axes = [i for i, size in enumerate(parameter.shape) if size == 1]
    return tf.reshape(tf.reduce_sum(x, axes), parameter.shape)
