"""The kernel that normalizes a batch in one op, forward and backward."""

import math
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from keras_mp.ops.kernels import native
from keras_mp.ops.kernels.dispatch import has_kernels, slopes_of
from keras_mp.ops.kernels.rows import sizes_of
from keras_mp.ops.normalization import ChannelNormalization
from keras_mp.ops.statistics import Total


@dataclass(frozen=True)
class NativeKernel:
    """The kernel of the native library."""

    data_format: str
    epsilon: float

    def forward(
        self, x: tf.Tensor, gamma: tf.Tensor, beta: tf.Tensor
    ) -> tuple[tf.Tensor, ...]:
        y, mean, variance = native.library().keras_mp_batch_norm(
            x=self.matrix(x), gamma=gamma, beta=beta, epsilon=self.epsilon
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
        of_x, of_gamma, of_beta = native.library().keras_mp_batch_norm_gradient(
            x=self.matrix(x),
            grad_y=self.matrix(upstream),
            gamma=gamma,
            mean=mean,
            variance=variance,
            epsilon=self.epsilon,
            inference=inference,
        )
        return tf.reshape(of_x, sizes_of(x)), of_gamma, of_beta

    def apply(self, x: tf.Tensor, *channels: tf.Tensor) -> tf.Tensor:
        gamma, beta, mean, variance = channels
        y = native.library().keras_mp_batch_norm_inference(
            x=self.matrix(x),
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
        return self.backward(x, upstream, gamma, mean, variance, inference=True)

    def matrix(self, x: tf.Tensor) -> tf.Tensor:
        """Returns `x` as `[outer, channels, inner]`."""
        outer, *inside, last = sizes_of(x)
        if self.data_format == "NHWC":
            return tf.reshape(x, [outer * math.prod(inside), last, 1])
        return tf.reshape(x, [outer, inside[0], inside[1] * last])


def kernel_for(data_format: str, epsilon: float) -> NativeKernel | None:
    """Returns the kernel, or None where there is none.

    Args:
        data_format: `"NHWC"` or `"NCHW"`, of the tensors of rank 4 that it takes.
        epsilon: number.
    """
    return NativeKernel(data_format, epsilon) if has_kernels() else None


def _formula_of(op: Any) -> ChannelNormalization:
    return ChannelNormalization(Total((0, 2)), op.get_attr("epsilon"))


def _wide(*channels: tf.Tensor) -> list[tf.Tensor]:
    """Returns `[channels]` beside `[outer, channels, inner]`."""
    return [tf.reshape(p, [1, -1, 1]) for p in channels]


def _flat(*channels: tf.Tensor) -> list[tf.Tensor]:
    return [tf.reshape(p, [-1]) for p in channels]


# For the bare ops: in a reloaded SavedModel, and for a second order.
@tf.RegisterGradient("KerasMp>BatchNorm")
def _of_batch_norm(op: Any, *upstream: tf.Tensor) -> list[tf.Tensor | None]:
    def formula(x: tf.Tensor, *parameters: tf.Tensor) -> tuple[tf.Tensor, ...]:
        y, mean, variance, _ = _formula_of(op).forward(x, *_wide(*parameters))
        return y, *_flat(mean, variance)

    return slopes_of(formula, op.inputs, upstream)


@tf.RegisterGradient("KerasMp>BatchNormInference")
def _of_batch_norm_inference(op: Any, upstream: tf.Tensor) -> list[tf.Tensor | None]:
    def formula(x: tf.Tensor, *channels: tf.Tensor) -> tf.Tensor:
        return _formula_of(op).apply(x, *_wide(*channels))

    return slopes_of(formula, op.inputs, [upstream])


@tf.RegisterGradient("KerasMp>BatchNormGradient")
def _of_batch_norm_gradient(op: Any, *upstream: tf.Tensor) -> list[tf.Tensor | None]:
    def formula(
        x: tf.Tensor, of_y: tf.Tensor, *channels: tf.Tensor
    ) -> tuple[tf.Tensor, ...]:
        count = None
        if not op.get_attr("inference"):
            outer, _, inner = sizes_of(x)
            count = tf.cast(outer * inner, tf.float32)
        slopes = _formula_of(op).backward(x, of_y, count, *_wide(*channels))
        return slopes[0], *_flat(*slopes[1:])

    return slopes_of(formula, op.inputs, upstream)
