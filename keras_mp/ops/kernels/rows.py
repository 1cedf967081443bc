"""Tensors as the matrices that the native kernels take, one reduction a row."""

import math
from typing import Any

import tensorflow as tf

from keras_mp.dtypes import is_half
from keras_mp.ops.kernels.dispatch import has_reduction_kernels


def has_row_kernel(x: tf.Tensor, axes: list[int]) -> bool:
    """Tells whether a kernel can compute along these axes: the last ones of `x`."""
    return has_sum_kernel(x, axes) and are_last(axes, x)


def are_last(axes: list[int], x: tf.Tensor) -> bool:
    """Tells whether the axes (one or more) are the last ones."""
    rank = x.shape.rank
    return bool(axes) and axes == list(range(rank - len(axes), rank))


def has_sum_kernel(x: tf.Tensor, axes: list[int]) -> bool:
    """Tells whether a kernel can sum over these axes.

    It can where `has_reduction_kernels` is true, if the tensor has 16 bits and the axes
    are consecutive.
    """
    if not is_half(x.dtype.name) or not axes:
        return False
    if axes != list(range(axes[0], axes[-1] + 1)):
        return False
    return has_reduction_kernels()


def as_rows(x: tf.Tensor, axes: list[int]) -> tf.Tensor:
    """Returns `x` as `[rows, size]`; a row holds the elements along the last axes.

    Args:
        x: tensor.
        axes: its last axes, all that a row spans.
    """
    sizes = sizes_of(x)
    split = len(sizes) - len(axes)
    return tf.reshape(x, [math.prod(sizes[:split]), math.prod(sizes[split:])])


def sizes_of(x: tf.Tensor, dtype: tf.DType = tf.int64) -> list[Any]:
    """Returns the size of each dimension: an int, or a tensor if it is dynamic.

    The dtype of the tensors is int64 by default: the product of several sizes may
    exceed int32.
    """
    if x.shape.is_fully_defined():
        return list(x.shape)
    dynamic = tf.shape(x, dtype)
    return [dynamic[i] if size is None else size for i, size in enumerate(x.shape)]
