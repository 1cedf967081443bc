"""Batch normalization of 16-bit numbers, by one kernel where there is one."""

import math
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from keras_mp.ops import native
from keras_mp.ops.normalization import ChannelNormalization
from keras_mp.ops.routes import choose, has_accelerator
from keras_mp.ops.rows import sizes_of
from keras_mp.ops.statistics import Total, over_replicas


def normalize_batch(
    x: tf.Tensor,
    gamma: tf.Tensor,
    beta: tf.Tensor,
    axis: int,
    epsilon: float,
    mask: tf.Tensor | None = None,
    synchronized: bool = False,
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Normalizes each channel by the statistics of the batch.

    `round(gamma * (x - mean) / sqrt(variance + epsilon) + beta)`, in FP32 inside of
    `round`. Outside of XLA, and without mask and synchronization, it is one kernel that
    reads and writes 16 bits: the native one on a CPU, TensorFlow's FusedBatchNormV3 on
    a GPU. XLA compiles the formula. For FusedBatchNormV3 it would compute the variance
    as the mean of the squares less the square of the mean: negative, and the result
    NaN, where a channel is nearly constant.

    Args:
        x: float16 or bfloat16 tensor.
        gamma: FP32 `[channels]`.
        beta: FP32 `[channels]`.
        axis: int from 0, that of the channels.
        epsilon: number.
        mask: bool, of the shape of `x`, True for what the statistics count; or None.
        synchronized: bool: whether they count the batches of all replicas.

    Returns:
        The result in the dtype of `x`; mean and variance, FP32 `[channels]`, which get
        no gradient.
    """
    gamma, beta = tf.convert_to_tensor(gamma), tf.convert_to_tensor(beta)
    shape, data_format = _as_images(x, axis)
    images = tf.reshape(x, shape)
    formula = ChannelNormalization(
        _total(data_format, synchronized),
        epsilon,
        None if mask is None else tf.reshape(mask, shape),
    )
    if mask is not None or synchronized:
        channels = [-1 if c == "C" else 1 for c in data_format]
        y, mean, variance = formula(
            images, tf.reshape(gamma, channels), tf.reshape(beta, channels)
        )
    else:
        y, mean, variance = _by_kernel(formula, images, gamma, beta, data_format)
    y = tf.ensure_shape(tf.reshape(y, tf.shape(x)), x.shape)
    return y, tf.reshape(mean, gamma.shape), tf.reshape(variance, gamma.shape)


def _by_kernel(
    formula: ChannelNormalization,
    images: tf.Tensor,
    gamma: tf.Tensor,
    beta: tf.Tensor,
    data_format: str,
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Runs the kernel, and the formula where XLA compiles."""
    is_native = native.library() is not None and not has_accelerator()
    kernel = (_Native if is_native else _Fused)(data_format, formula.epsilon)
    channels = [gamma.shape[0] if c == "C" else 1 for c in data_format]
    size = tf.cast(tf.size(images) // gamma.shape[0], tf.float32)

    @tf.custom_gradient
    def normalized(x: tf.Tensor, gamma: tf.Tensor, beta: tf.Tensor) -> Any:
        wide_gamma, wide_beta = (tf.reshape(p, channels) for p in (gamma, beta))

        def compiled() -> tuple[tf.Tensor, ...]:
            y, mean, variance, _ = formula.forward(x, wide_gamma, wide_beta)
            statistics = tf.reshape(mean, [-1]), tf.reshape(variance, [-1])
            return y, *statistics, *[tf.zeros([0])] * kernel.reserves

        y, mean, variance, *reserves = choose(
            compiled, lambda: kernel.forward(x, gamma, beta, size)
        )

        def gradient(upstream: tf.Tensor, *_: Any) -> Any:
            def compiled() -> tuple[tf.Tensor, ...]:
                wide_mean, wide_variance = (
                    tf.reshape(statistic, channels) for statistic in (mean, variance)
                )
                of_x, of_gamma, of_beta = formula.backward(
                    x, wide_gamma, wide_mean, wide_variance, size, upstream
                )
                return of_x, tf.reshape(of_gamma, [-1]), tf.reshape(of_beta, [-1])

            statistics = (*reserves,) if reserves else (mean, variance)
            return choose(
                compiled, lambda: kernel.backward(x, upstream, gamma, *statistics)
            )

        return (y, mean, variance), gradient

    return normalized(images, gamma, beta)


@dataclass(frozen=True)
class _Native:
    """The kernel of the native library."""

    data_format: str
    epsilon: float
    reserves = 0

    def forward(
        self, x: tf.Tensor, gamma: tf.Tensor, beta: tf.Tensor, size: tf.Tensor
    ) -> tuple[tf.Tensor, ...]:
        y, mean, variance = native.library().keras_mp_batch_norm(
            x=self.flat(x), gamma=gamma, beta=beta, epsilon=self.epsilon
        )
        return tf.reshape(y, sizes_of(x)), mean, variance

    def backward(
        self, x: tf.Tensor, upstream: tf.Tensor, *channels: tf.Tensor
    ) -> tuple[tf.Tensor, ...]:
        gamma, mean, variance = channels
        of_x, of_gamma, of_beta = native.library().keras_mp_batch_norm_gradient(
            x=self.flat(x),
            of_y=self.flat(upstream),
            gamma=gamma,
            mean=mean,
            variance=variance,
            epsilon=self.epsilon,
        )
        return tf.reshape(of_x, sizes_of(x)), of_gamma, of_beta

    def flat(self, x: tf.Tensor) -> tf.Tensor:
        """Returns `x` as `[outer, channels, inner]`."""
        outer, *inside, last = sizes_of(x)
        if self.data_format == "NHWC":
            return tf.reshape(x, [outer * math.prod(inside), last, 1])
        return tf.reshape(x, [outer, inside[0], inside[1] * last])


@dataclass(frozen=True)
class _Fused:
    """TensorFlow's kernel."""

    data_format: str
    epsilon: float
    reserves = 3

    def forward(
        self, x: tf.Tensor, gamma: tf.Tensor, beta: tf.Tensor, size: tf.Tensor
    ) -> tuple[tf.Tensor, ...]:
        result = tf.raw_ops.FusedBatchNormV3(
            x=x,
            scale=gamma,
            offset=beta,
            mean=tf.zeros([0]),
            variance=tf.zeros([0]),
            epsilon=self.epsilon,
            exponential_avg_factor=1.0,
            data_format=self.data_format,
            is_training=True,
        )
        # The kernel divides by one less than the number of elements.
        variance = result.batch_variance * ((size - 1.0) / size)
        return result.y, result.batch_mean, variance, *result[3:]

    def backward(
        self, x: tf.Tensor, upstream: tf.Tensor, gamma: tf.Tensor, *reserves: tf.Tensor
    ) -> tuple[tf.Tensor, ...]:
        return tuple(
            tf.raw_ops.FusedBatchNormGradV3(
                y_backprop=upstream,
                x=x,
                scale=gamma,
                reserve_space_1=reserves[0],
                reserve_space_2=reserves[1],
                reserve_space_3=reserves[2],
                epsilon=self.epsilon,
                data_format=self.data_format,
                is_training=True,
            )[:3]
        )


def batch_statistics(
    x: tf.Tensor, axis: int, mask: tf.Tensor | None, synchronized: bool
) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns the mean and variance of each channel, FP32, without gradients.

    The arguments are those of `normalize_batch`.
    """
    shape, data_format = _as_images(x, axis)
    wide = tf.cast(tf.reshape(tf.stop_gradient(x), shape), tf.float32)
    if mask is not None:
        mask = tf.reshape(mask, shape)
    mean, variance, _ = _total(data_format, synchronized).moments(wide, mask)
    return tf.reshape(mean, [-1]), tf.reshape(variance, [-1])


def _total(data_format: str, synchronized: bool) -> Total:
    axes = tuple(i for i, c in enumerate(data_format) if c != "C")
    return Total(axes, over_replicas()) if synchronized else Total(axes)


def apply_statistics(
    x: tf.Tensor,
    gamma: tf.Tensor,
    beta: tf.Tensor,
    mean: tf.Tensor,
    variance: tf.Tensor,
    axis: int,
    epsilon: float,
) -> tf.Tensor:
    """Normalizes each channel by statistics that are given.

    `round(gamma * (x - mean) / sqrt(variance + epsilon) + beta)`, by TensorFlow's
    FusedBatchNormV3, with XLA and without.

    Args:
        x: float16 or bfloat16 tensor.
        gamma: FP32 `[channels]`.
        beta: FP32 `[channels]`.
        mean: FP32 `[channels]`; gets no gradient.
        variance: FP32 `[channels]`; gets no gradient.
        axis: int from 0, that of the channels.
        epsilon: number.

    Returns:
        A tensor of the dtype and shape of `x`.
    """
    shape, data_format = _as_images(x, axis)
    result = tf.raw_ops.FusedBatchNormV3(
        x=tf.reshape(x, shape),
        scale=gamma,
        offset=beta,
        mean=tf.stop_gradient(mean),
        variance=tf.stop_gradient(variance),
        epsilon=epsilon,
        data_format=data_format,
        is_training=False,
    )
    return tf.ensure_shape(tf.reshape(result.y, tf.shape(x)), x.shape)


def _as_images(x: tf.Tensor, axis: int) -> tuple[list[Any], str]:
    """Returns a shape of four dimensions for `x`, and which of them are which."""
    sizes = sizes_of(x)
    if len(sizes) == 4 and axis in (1, 3):
        return sizes, "NHWC" if axis == 3 else "NCHW"
    before, channels, after = sizes[:axis], sizes[axis], sizes[axis + 1 :]
    if not after:
        return [*(before[:1] or [1]), math.prod(before[1:]), 1, channels], "NHWC"
    return [math.prod(before), channels, math.prod(after), 1], "NCHW"
