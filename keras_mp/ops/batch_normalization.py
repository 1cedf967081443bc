"""Batch normalization of 16-bit numbers, by one kernel where there is one."""

import math
from typing import Any

import tensorflow as tf

from keras_mp.ops.batch_norm_kernel import kernel_for
from keras_mp.ops.gradients import late
from keras_mp.ops.kernels.dispatch import choose
from keras_mp.ops.kernels.rows import sizes_of
from keras_mp.ops.normalization import ChannelNormalization
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
    `round`. On a CPU, and without mask and synchronization, it is one kernel that reads
    and writes 16 bits; elsewhere, and in XLA, it is the formula. TensorFlow's
    FusedBatchNormV3 would not do: XLA computes its variance as the mean of the squares
    less the square of the mean, which is negative, and the result NaN, where a channel
    is nearly constant; and while a graph is traced nobody knows whether XLA will
    compile it.

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
        y, mean, variance = formula(images, *_wide(data_format, gamma, beta))
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
    """Runs the kernel, or the formula where there is none."""
    kernel = kernel_for(data_format, formula.epsilon)
    channels = max(gamma.shape[0], 1)
    size = tf.cast(tf.size(images, tf.int64) // channels, tf.float32)

    def compiled(x: tf.Tensor, *parameters: tf.Tensor) -> tuple[tf.Tensor, ...]:
        y, mean, variance, _ = formula.forward(x, *_wide(data_format, *parameters))
        return y, *_flat(mean, variance)

    def slopes(
        x: tf.Tensor, upstream: tf.Tensor, *channels: tf.Tensor
    ) -> tuple[tf.Tensor, ...]:
        wide = _wide(data_format, *channels[:3])
        of_x, *of_parameters = formula.backward(x, upstream, size, *wide)
        return of_x, *_flat(*of_parameters)

    @tf.custom_gradient
    def normalized(x: tf.Tensor, gamma: tf.Tensor, beta: tf.Tensor) -> Any:
        forward = kernel.forward if kernel else None
        y, *held = choose(compiled, forward, x, gamma, beta)

        @late
        def gradient(upstream: tf.Tensor, *_: Any) -> Any:
            backward = kernel.backward if kernel else None
            return choose(slopes, backward, x, upstream, gamma, *held)

        return (y, *held), gradient

    return normalized(images, gamma, beta)


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

    `round(gamma * (x - mean) / sqrt(variance + epsilon) + beta)`, on a CPU by a native
    kernel, as in `normalize_batch`.

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
    formula = ChannelNormalization(_total(data_format, synchronized=False), epsilon)
    kernel = kernel_for(data_format, epsilon)

    def compiled(x: tf.Tensor, *channels: tf.Tensor) -> tf.Tensor:
        return formula.apply(x, *_wide(data_format, *channels))

    def slopes(
        x: tf.Tensor, upstream: tf.Tensor, *channels: tf.Tensor
    ) -> tuple[tf.Tensor, ...]:
        wide = _wide(data_format, *channels)
        of_x, *of_parameters = formula.backward(x, upstream, None, *wide)
        return of_x, *_flat(*of_parameters)

    @tf.custom_gradient
    def normalized(x: tf.Tensor, *channels: tf.Tensor) -> Any:
        gamma, _, *statistics = channels

        @late
        def gradient(upstream: tf.Tensor) -> Any:
            held = x, upstream, gamma, *statistics
            backward = kernel.apply_backward if kernel else None
            return *choose(slopes, backward, *held), None, None

        apply = kernel.apply if kernel else None
        return choose(compiled, apply, x, *channels), gradient

    y = normalized(tf.reshape(x, shape), gamma, beta, mean, variance)
    return tf.ensure_shape(tf.reshape(y, tf.shape(x)), x.shape)


def _wide(data_format: str, *channels: tf.Tensor) -> list[tf.Tensor]:
    """Returns `[channels]` with the four dimensions of images."""
    return [
        tf.reshape(p, [p.shape[0] if c == "C" else 1 for c in data_format])
        for p in channels
    ]


def _flat(*channels: tf.Tensor) -> list[tf.Tensor]:
    return [tf.reshape(p, [-1]) for p in channels]


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


def _as_images(x: tf.Tensor, axis: int) -> tuple[list[Any], str]:
    """Returns a shape of four dimensions for `x`, and which of them are which."""
    sizes = sizes_of(x)
    if len(sizes) == 4 and axis in (1, 3):
        return sizes, "NHWC" if axis == 3 else "NCHW"
    before, channels, after = sizes[:axis], sizes[axis], sizes[axis + 1 :]
    if not after:
        return [*(before[:1] or [1]), math.prod(before[1:]), 1, channels], "NHWC"
    return [math.prod(before), channels, math.prod(after), 1], "NCHW"
