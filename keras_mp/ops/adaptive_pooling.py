"""Adaptive average pooling of 16-bit numbers, in FP32."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf


def adaptive_average_pool(
    x: tf.Tensor, output_size: Sequence[int], axes: Sequence[int]
) -> tf.Tensor:
    """Returns so many averages along each axis, summed in FP32 and rounded once.

    Of n windows along `size` elements, window i begins at `floor(i * size / n)` and
    ends before `ceil((i + 1) * size / n)`. Nothing is held between forward and
    backward pass.

    Args:
        x: float16 or bfloat16 tensor.
        output_size: a number for each axis.
        axes: those along which `x` is pooled.

    Raises:
        ValueError: the size of such an axis is not known, or 0.
    """
    sizes = [x.shape[axis] for axis in axes]
    if None in sizes or 0 in sizes:
        raise ValueError(
            "Adaptive pooling needs sizes that are known and not 0, except for the "
            "batch and the channels. "
            f"Received: shape={x.shape}. Give them to `keras.Input`."
        )
    windows = [_Windows(*of_axis) for of_axis in zip(sizes, output_size, strict=True)]
    dtype = x.dtype

    @tf.custom_gradient
    def pooled(x: tf.Tensor) -> tuple[tf.Tensor, Any]:
        def gradient(upstream: tf.Tensor) -> tf.Tensor:
            grad = tf.cast(upstream, tf.float32)
            for axis, along in zip(axes, windows, strict=True):
                grad = along.spread(grad, axis)
            return tf.cast(grad, dtype)

        means = tf.cast(x, tf.float32)
        for axis, along in zip(axes, windows, strict=True):
            means = along.means(means, axis)
        return tf.cast(means, dtype), gradient

    return pooled(x)


class _Windows:
    """The windows along an axis, and the sums that go with them."""

    def __init__(self, size: int, count: int) -> None:
        steps = np.arange(count + 1, dtype="int64") * size
        self._starts = steps[:-1] // count
        self._ends = -(-steps[1:] // count)
        # Neither starts nor ends ever decrease, so an element lies in a row of windows.
        elements = np.arange(size)
        self._first = np.searchsorted(self._ends, elements, "right")
        self._last = np.searchsorted(self._starts, elements, "right")

    def means(self, x: tf.Tensor, axis: int) -> tf.Tensor:
        """Returns the mean of each window."""
        return self._divided(_sums(x, axis, self._starts, self._ends), axis)

    def spread(self, grad: tf.Tensor, axis: int) -> tf.Tensor:
        """Returns the gradient of `means`: what each element has of its windows."""
        return _sums(self._divided(grad, axis), axis, self._first, self._last)

    def _divided(self, x: tf.Tensor, axis: int) -> tf.Tensor:
        lengths = np.float32(self._ends - self._starts)
        return x / lengths.reshape([-1] + [1] * (len(x.shape) - axis - 1))


def _sums(x: tf.Tensor, axis: int, starts: Any, ends: Any) -> tf.Tensor:
    """Returns the sums of `x` from each start until before the end that goes with it.

    They are gathered, not multiplied with ones and zeros: an inf stays in its windows.
    """
    index = starts[:, None] + np.arange(np.max(ends - starts))
    # What a shorter window lacks is the zero behind the last element.
    index = np.where(index < ends[:, None], index, x.shape[axis])
    padding = [[0, int(i == axis)] for i in range(len(x.shape))]
    return tf.reduce_sum(tf.gather(tf.pad(x, padding), index, axis=axis), axis + 1)
