"""Batch normalization of 16-bit tensors, by a native kernel if there is one."""

import math
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from keras_mp.ops.gradients import as_one_operation, defer_until_upstream, vjp
from keras_mp.ops.kernels import native
from keras_mp.ops.kernels.dispatch import has_reduction_kernels
from keras_mp.ops.kernels.rows import sizes_of
from keras_mp.ops.normalization import ChannelNormalization
from keras_mp.ops.statistics import PooledSum, cross_replica_sum


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
    `round`. On a CPU, without mask and synchronization, one native kernel computes it,
    which reads and writes 16 bits; otherwise, and in XLA, TensorFlow operations do.
    TensorFlow's FusedBatchNormV3 is no alternative: XLA computes its variance as
    `mean(x**2) - mean(x)**2`, which can be negative for a nearly constant channel and
    makes the result NaN, and whether XLA will compile a graph is not known while it is
    traced.

    Args:
        x: float16 or bfloat16 tensor.
        gamma: FP32 `[channels]`.
        beta: FP32 `[channels]`.
        axis: non-negative int, the axis of the channels.
        epsilon: number.
        mask: bool tensor of the shape of `x`, or None. Where it is False, an element
            does not count in the statistics.
        synchronized: bool, whether the statistics are over all replicas' batches.

    Returns:
        The result in the dtype of `x`, and the mean and variance, FP32 `[channels]`,
        through which no gradient flows.
    """
    gamma, beta = tf.convert_to_tensor(gamma), tf.convert_to_tensor(beta)
    shape, data_format = _image_shape(x, axis)
    images = tf.reshape(x, shape)
    formula = ChannelNormalization(
        _channel_sum(data_format, synchronized),
        epsilon,
        None if mask is None else tf.reshape(mask, shape),
    )
    if mask is not None or synchronized:
        y, mean, variance = formula(images, *_expand_channels(data_format, gamma, beta))
    else:
        y, mean, variance = _normalize_by_kernel(
            formula, images, gamma, beta, data_format
        )
    y = tf.ensure_shape(tf.reshape(y, tf.shape(x)), x.shape)
    return y, tf.reshape(mean, gamma.shape), tf.reshape(variance, gamma.shape)


def _normalize_by_kernel(
    formula: ChannelNormalization,
    images: tf.Tensor,
    gamma: tf.Tensor,
    beta: tf.Tensor,
    data_format: str,
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Runs the native kernel, or the formula if there is no kernel."""
    kernel = find_kernel(data_format, formula.epsilon)
    channels = max(gamma.shape[0], 1)
    size = tf.cast(tf.size(images, tf.int64) // channels, tf.float32)

    def forward_formula(x: tf.Tensor, *parameters: tf.Tensor) -> tuple[tf.Tensor, ...]:
        y, mean, variance, _ = formula.forward(
            x, *_expand_channels(data_format, *parameters)
        )
        return y, *_flatten_channels(mean, variance)

    def backward_formula(
        x: tf.Tensor, upstream: tf.Tensor, *channels: tf.Tensor
    ) -> tuple[tf.Tensor, ...]:
        wide = _expand_channels(data_format, *channels[:3])
        grad_x, *grad_parameters = formula.backward(x, upstream, size, *wide)
        return grad_x, *_flatten_channels(*grad_parameters)

    @tf.custom_gradient
    def normalized(x: tf.Tensor, gamma: tf.Tensor, beta: tf.Tensor) -> Any:
        if kernel:
            y, *statistics = kernel.forward(x, gamma, beta)
        else:
            y, *statistics = as_one_operation(forward_formula, x, gamma, beta)

        @defer_until_upstream
        def gradient(upstream: tf.Tensor, *_: Any) -> Any:
            held = x, upstream, gamma, *statistics
            if kernel:
                return kernel.backward(*held)
            return as_one_operation(backward_formula, *held)

        return (y, *statistics), gradient

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
    """Normalizes each channel by a given mean and variance (inference).

    `round(gamma * (x - mean) / sqrt(variance + epsilon) + beta)`, in FP32 inside of
    `round`; on a CPU by a native kernel, as in `normalize_batch`.

    Args:
        x: float16 or bfloat16 tensor.
        gamma: FP32 `[channels]`.
        beta: FP32 `[channels]`.
        mean: FP32 `[channels]`; gets no gradient.
        variance: FP32 `[channels]`; gets no gradient.
        axis: non-negative int, the axis of the channels.
        epsilon: number.

    Returns:
        A tensor of the dtype and shape of `x`.
    """
    shape, data_format = _image_shape(x, axis)
    formula = ChannelNormalization(
        _channel_sum(data_format, synchronized=False), epsilon
    )
    kernel = find_kernel(data_format, epsilon)

    def forward_formula(x: tf.Tensor, *channels: tf.Tensor) -> tf.Tensor:
        return formula.apply(x, *_expand_channels(data_format, *channels))

    def backward_formula(
        x: tf.Tensor, upstream: tf.Tensor, *channels: tf.Tensor
    ) -> tuple[tf.Tensor, ...]:
        wide = _expand_channels(data_format, *channels)
        grad_x, *grad_parameters = formula.backward(x, upstream, None, *wide)
        return grad_x, *_flatten_channels(*grad_parameters)

    @tf.custom_gradient
    def normalized(x: tf.Tensor, *channels: tf.Tensor) -> Any:
        gamma, _, *statistics = channels

        @defer_until_upstream
        def gradient(upstream: tf.Tensor) -> Any:
            held = x, upstream, gamma, *statistics
            if kernel:
                return *kernel.apply_backward(*held), None, None
            return *as_one_operation(backward_formula, *held), None, None

        if kernel:
            return kernel.apply(x, *channels), gradient
        return as_one_operation(forward_formula, x, *channels), gradient

    y = normalized(tf.reshape(x, shape), gamma, beta, mean, variance)
    return tf.ensure_shape(tf.reshape(y, tf.shape(x)), x.shape)


def _expand_channels(data_format: str, *channels: tf.Tensor) -> list[tf.Tensor]:
    """Reshapes `[channels]` to the rank of the data, of size 1 along all other axes."""
    return [
        tf.reshape(p, [-1 if c == "C" else 1 for c in data_format]) for p in channels
    ]


def _flatten_channels(*channels: tf.Tensor) -> list[tf.Tensor]:
    """Reshapes tensors with one value a channel to `[channels]`."""
    return [tf.reshape(p, [-1]) for p in channels]


def batch_statistics(
    x: tf.Tensor, axis: int, mask: tf.Tensor | None, synchronized: bool
) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns the mean and variance of each channel in FP32, without gradients.

    The arguments are as in `normalize_batch`.
    """
    shape, data_format = _image_shape(x, axis)
    wide = tf.cast(tf.reshape(tf.stop_gradient(x), shape), tf.float32)
    if mask is not None:
        mask = tf.reshape(mask, shape)
    mean, variance, _ = _channel_sum(data_format, synchronized).moments(wide, mask)
    return tf.reshape(mean, [-1]), tf.reshape(variance, [-1])


def _channel_sum(data_format: str, synchronized: bool) -> PooledSum:
    """Returns the sum over all axes except the channels."""
    axes = tuple(i for i, c in enumerate(data_format) if c != "C")
    return PooledSum(axes, cross_replica_sum()) if synchronized else PooledSum(axes)


def _image_shape(x: tf.Tensor, axis: int) -> tuple[list[Any], str]:
    """Returns a shape of rank 4 for `x`, and its data format, `"NHWC"` or `"NCHW"`."""
    sizes = sizes_of(x)
    if len(sizes) == 4 and axis in (1, 3):
        return sizes, "NHWC" if axis == 3 else "NCHW"
    before, channels, after = sizes[:axis], sizes[axis], sizes[axis + 1 :]
    if not after:
        return [*(before[:1] or [1]), math.prod(before[1:]), 1, channels], "NHWC"
    return [math.prod(before), channels, math.prod(after), 1], "NCHW"


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


# The gradients of the ops themselves serve reloaded SavedModels and second-order
# gradients.
@tf.RegisterGradient("KerasMp>BatchNorm")
def _batch_norm_grad(op: Any, *upstream: tf.Tensor) -> list[tf.Tensor | None]:
    def formula(x: tf.Tensor, *parameters: tf.Tensor) -> tuple[tf.Tensor, ...]:
        y, mean, variance, _ = _formula(op).forward(
            x, *_expand_channels("NCW", *parameters)
        )
        return y, *_flatten_channels(mean, variance)

    return vjp(formula, op.inputs, upstream)


@tf.RegisterGradient("KerasMp>BatchNormInference")
def _batch_norm_inference_grad(op: Any, upstream: tf.Tensor) -> list[tf.Tensor | None]:
    def formula(x: tf.Tensor, *channels: tf.Tensor) -> tf.Tensor:
        return _formula(op).apply(x, *_expand_channels("NCW", *channels))

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
        expanded = _expand_channels("NCW", *channels)
        grad_x, *grads = _formula(op).backward(x, grad_y, count, *expanded)
        return grad_x, *_flatten_channels(*grads)

    return vjp(formula, op.inputs, upstream)
