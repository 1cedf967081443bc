"""The kernels that normalize a batch in one op, forward and backward."""

import math
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from keras_mp.ops import native
from keras_mp.ops.routes import has_accelerator
from keras_mp.ops.rows import sizes_of


def kernel_for(data_format: str, epsilon: float) -> Any:
    """Returns the native kernel on a CPU, TensorFlow's elsewhere, or None.

    None is for a CPU without the native library.

    Args:
        data_format: `"NHWC"` or `"NCHW"`, of the tensors of rank 4 that it takes.
        epsilon: number.
    """
    if has_accelerator():
        return FusedKernel(data_format, epsilon)
    if native.library() is None:
        return None
    return NativeKernel(data_format, epsilon)


@dataclass(frozen=True)
class NativeKernel:
    """The kernel of the native library."""

    data_format: str
    epsilon: float
    reserves = 0  # what `forward` returns beside the result and the statistics

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
        are_given: bool = False,
    ) -> tuple[tf.Tensor, ...]:
        of_x, of_gamma, of_beta = native.library().keras_mp_batch_norm_gradient(
            x=self.matrix(x),
            of_y=self.matrix(upstream),
            gamma=gamma,
            mean=mean,
            variance=variance,
            epsilon=self.epsilon,
            are_given=are_given,
        )
        return tf.reshape(of_x, sizes_of(x)), of_gamma, of_beta

    def apply(self, x: tf.Tensor, *channels: tf.Tensor) -> tf.Tensor:
        gamma, beta, mean, variance = channels
        y = native.library().keras_mp_batch_norm_given(
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
        return self.backward(x, upstream, gamma, mean, variance, are_given=True)

    def matrix(self, x: tf.Tensor) -> tf.Tensor:
        """Returns `x` as `[outer, channels, inner]`."""
        outer, *inside, last = sizes_of(x)
        if self.data_format == "NHWC":
            return tf.reshape(x, [outer * math.prod(inside), last, 1])
        return tf.reshape(x, [outer, inside[0], inside[1] * last])


@dataclass(frozen=True)
class FusedKernel:
    """TensorFlow's kernel."""

    data_format: str
    epsilon: float
    reserves = 3
    # Not on every device for 16 bits.
    apply_backward = None

    def forward(
        self, x: tf.Tensor, gamma: tf.Tensor, beta: tf.Tensor
    ) -> tuple[tf.Tensor, ...]:
        nothing = tf.zeros([0])
        result = self.run(x, gamma, beta, nothing, nothing, is_training=True)
        # The kernel divides by one less than the number of elements.
        channels = max(gamma.shape[0], 1)
        size = tf.cast(tf.size(x, tf.int64) // channels, tf.float32)
        variance = result.batch_variance * ((size - 1.0) / size)
        return result.y, result.batch_mean, variance, *result[3:]

    def backward(
        self,
        x: tf.Tensor,
        upstream: tf.Tensor,
        gamma: tf.Tensor,
        mean: tf.Tensor,
        variance: tf.Tensor,
        *reserves: tf.Tensor,
    ) -> tuple[tf.Tensor, ...]:
        gradients = tf.raw_ops.FusedBatchNormGradV3(
            y_backprop=upstream,
            x=x,
            scale=gamma,
            reserve_space_1=reserves[0],
            reserve_space_2=reserves[1],
            reserve_space_3=reserves[2],
            epsilon=self.epsilon,
            data_format=self.data_format,
            is_training=True,
        )
        # Without rows the kernel leaves its reserves as it found the memory.
        of_x, *of_parameters = gradients[:3]
        has_rows = tf.size(x, tf.int64) > 0
        return of_x, *(tf.where(has_rows, p, 0.0) for p in of_parameters)

    def apply(self, x: tf.Tensor, *channels: tf.Tensor) -> tf.Tensor:
        return self.run(x, *channels, is_training=False).y

    def run(self, x: tf.Tensor, *channels: tf.Tensor, is_training: bool) -> Any:
        gamma, beta, mean, variance = channels
        return tf.raw_ops.FusedBatchNormV3(
            x=x,
            scale=gamma,
            offset=beta,
            mean=mean,
            variance=variance,
            epsilon=self.epsilon,
            exponential_avg_factor=1.0,
            data_format=self.data_format,
            is_training=is_training,
        )
