"""The native batch normalization ops: forward, backward, and their gradients."""

import math
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from keras_mp.ops.gradients import vjp
from keras_mp.ops.kernels import native
from keras_mp.ops.kernels.dispatch import has_reduction_kernels
from keras_mp.ops.kernels.rows import sizes_of
from keras_mp.ops.normalization import ChannelNormalization
from keras_mp.ops.statistics import PooledSum


@dataclass(frozen=True)
class BatchNormKernel:
    """The ops of the native library, for tensors of rank 4.

    Args:
        data_format: `"NHWC"` or `"NCHW"`.
        epsilon: number.
    """

    data_format: str
    epsilon: float

    def forward(
        self, x: tf.Tensor, gamma: tf.Tensor, beta: tf.Tensor
    ) -> tuple[tf.Tensor, ...]:
        """Returns the result, and mean and variance of the batch."""
        y, mean, variance = native.library().keras_mp_batch_norm(
            x=self.to_3d(x), gamma=gamma, beta=beta, epsilon=self.epsilon
        )
        return tf.reshape(y, sizes_of(x)), mean, variance

    def backward(
        self,
        x: tf.Tensor,
        upstream: tf.Tensor,
        gamma: tf.Tensor,
        mean: tf.Tensor,
        variance: tf.Tensor,
        inference: bool = False,
    ) -> tuple[tf.Tensor, ...]:
        """Returns the gradients of x, gamma and beta.

        With `inference=True`, mean and variance do not depend on `x`.
        """
        grad_x, grad_gamma, grad_beta = native.library().keras_mp_batch_norm_gradient(
            x=self.to_3d(x),
            grad_y=self.to_3d(upstream),
            gamma=gamma,
            mean=mean,
            variance=variance,
            epsilon=self.epsilon,
            inference=inference,
        )
        return tf.reshape(grad_x, sizes_of(x)), grad_gamma, grad_beta

    def apply(self, x: tf.Tensor, *channels: tf.Tensor) -> tf.Tensor:
        """Returns the result for gamma, beta, mean and variance in `channels`."""
        gamma, beta, mean, variance = channels
        y = native.library().keras_mp_batch_norm_inference(
            x=self.to_3d(x),
            gamma=gamma,
            beta=beta,
            mean=mean,
            variance=variance,
            epsilon=self.epsilon,
        )
        return tf.reshape(y, sizes_of(x))

    def apply_backward(
        self,
        x: tf.Tensor,
        upstream: tf.Tensor,
        gamma: tf.Tensor,
        mean: tf.Tensor,
        variance: tf.Tensor,
    ) -> tuple[tf.Tensor, ...]:
        """Returns the gradients of `apply` with respect to x, gamma and beta."""
        return self.backward(x, upstream, gamma, mean, variance, inference=True)

    def to_3d(self, x: tf.Tensor) -> tf.Tensor:
        """Returns `x` as `[outer, channels, inner]`."""
        outer, *inside, last = sizes_of(x)
        if self.data_format == "NHWC":
            return tf.reshape(x, [outer * math.prod(inside), last, 1])
        return tf.reshape(x, [outer, inside[0], inside[1] * last])


def find_kernel(data_format: str, epsilon: float) -> BatchNormKernel | None:
    """Returns the kernel, or None if this machine has none.

    The arguments are as in `BatchNormKernel`.
    """
    return BatchNormKernel(data_format, epsilon) if has_reduction_kernels() else None


def _formula(op: Any) -> ChannelNormalization:
    """Returns the formula that a native op computes, on `[outer, channels, inner]`."""
    return ChannelNormalization(PooledSum((0, 2)), op.get_attr("epsilon"))


def _expand_channels(*channels: tf.Tensor) -> list[tf.Tensor]:
    """Reshapes `[channels]` to `[1, channels, 1]`."""
    return [tf.reshape(p, [1, -1, 1]) for p in channels]


def _flatten_channels(*channels: tf.Tensor) -> list[tf.Tensor]:
    """Reshapes `[1, channels, 1]` to `[channels]`."""
    return [tf.reshape(p, [-1]) for p in channels]


# The gradients of the ops themselves serve reloaded SavedModels and second-order
# gradients.
@tf.RegisterGradient("KerasMp>BatchNorm")
def _batch_norm_grad(op: Any, *upstream: tf.Tensor) -> list[tf.Tensor | None]:
    def formula(x: tf.Tensor, *parameters: tf.Tensor) -> tuple[tf.Tensor, ...]:
        y, mean, variance, _ = _formula(op).forward(x, *_expand_channels(*parameters))
        return y, *_flatten_channels(mean, variance)

    return vjp(formula, op.inputs, upstream)


@tf.RegisterGradient("KerasMp>BatchNormInference")
def _batch_norm_inference_grad(op: Any, upstream: tf.Tensor) -> list[tf.Tensor | None]:
    def formula(x: tf.Tensor, *channels: tf.Tensor) -> tf.Tensor:
        return _formula(op).apply(x, *_expand_channels(*channels))

    return vjp(formula, op.inputs, [upstream])


@tf.RegisterGradient("KerasMp>BatchNormGradient")
def _batch_norm_grad_grad(op: Any, *upstream: tf.Tensor) -> list[tf.Tensor | None]:
    def formula(
        x: tf.Tensor, grad_y: tf.Tensor, *channels: tf.Tensor
    ) -> tuple[tf.Tensor, ...]:
        count = None
        if not op.get_attr("inference"):
            outer, _, inner = sizes_of(x)
            count = tf.cast(outer * inner, tf.float32)
        expanded = _expand_channels(*channels)
        grad_x, *grads = _formula(op).backward(x, grad_y, count, *expanded)
        return grad_x, *_flatten_channels(*grads)

    return vjp(formula, op.inputs, upstream)
