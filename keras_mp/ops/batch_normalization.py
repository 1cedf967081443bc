"""Batch normalization of 16-bit numbers, by TensorFlow's fused kernel where it can."""

import math
from typing import Any

import tensorflow as tf

from keras_mp.ops.normalization import ChannelNormalization, sizes_of
from keras_mp.ops.routes import choose
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
    `round`. Outside of XLA, and without mask and synchronization, it is one kernel,
    FusedBatchNormV3, which reads and writes 16 bits. For that kernel XLA would compute
    the variance as the mean of the squares less the square of the mean: negative, and
    the result NaN, where a channel is nearly constant. So XLA compiles the formula.

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
        y, mean, variance = _fused_or(formula, images, gamma, beta, data_format)
    y = tf.ensure_shape(tf.reshape(y, tf.shape(x)), x.shape)
    return y, tf.reshape(mean, gamma.shape), tf.reshape(variance, gamma.shape)


def _fused_or(
    formula: ChannelNormalization,
    images: tf.Tensor,
    gamma: tf.Tensor,
    beta: tf.Tensor,
    data_format: str,
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Runs the fused kernel, and the formula where XLA compiles."""
    nothing = tf.zeros([0])
    channels = [gamma.shape[0] if c == "C" else 1 for c in data_format]
    attributes = {"epsilon": formula.epsilon, "data_format": data_format}
    size = tf.cast(tf.size(images) // gamma.shape[0], tf.float32)

    @tf.custom_gradient
    def normalized(x: tf.Tensor, gamma: tf.Tensor, beta: tf.Tensor) -> Any:
        wide_gamma, wide_beta = (tf.reshape(p, channels) for p in (gamma, beta))

        def compiled() -> tuple[tf.Tensor, ...]:
            y, mean, variance, _ = formula.forward(x, wide_gamma, wide_beta)
            mean, variance = tf.reshape(mean, [-1]), tf.reshape(variance, [-1])
            return y, mean, variance, mean, variance, nothing

        def fused() -> tuple[tf.Tensor, ...]:
            result = tf.raw_ops.FusedBatchNormV3(
                x=x,
                scale=gamma,
                offset=beta,
                mean=nothing,
                variance=nothing,
                exponential_avg_factor=1.0,
                is_training=True,
                **attributes,
            )
            # The kernel divides by one less than the number of elements.
            variance = result.batch_variance * ((size - 1.0) / size)
            return result.y, result.batch_mean, variance, *result[3:]

        y, mean, variance, *reserves = choose(compiled, fused)

        def gradient(upstream: tf.Tensor, *_: Any) -> Any:
            def compiled() -> tuple[tf.Tensor, ...]:
                wide_mean, wide_variance = (
                    tf.reshape(statistic, channels) for statistic in (mean, variance)
                )
                of_x, of_gamma, of_beta = formula.backward(
                    x, wide_gamma, wide_mean, wide_variance, size, upstream
                )
                return of_x, tf.reshape(of_gamma, [-1]), tf.reshape(of_beta, [-1])

            def fused() -> tuple[tf.Tensor, ...]:
                return tuple(
                    tf.raw_ops.FusedBatchNormGradV3(
                        y_backprop=upstream,
                        x=x,
                        scale=gamma,
                        reserve_space_1=reserves[0],
                        reserve_space_2=reserves[1],
                        reserve_space_3=reserves[2],
                        is_training=True,
                        **attributes,
                    )[:3]
                )

            return choose(compiled, fused)

        return (y, mean, variance), gradient

    return normalized(images, gamma, beta)


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
