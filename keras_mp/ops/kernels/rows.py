"""A tensor as the matrix whose rows the native kernels take."""

import math
from typing import Any

import tensorflow as tf

from keras_mp.dtypes import is_half
from keras_mp.ops.kernels.dispatch import has_kernels


def have_kernel(x: tf.Tensor, axes: list[int]) -> bool:
    """Tells whether a kernel computes along these axes of a tensor, its last ones."""
    last = x.shape.rank - 1
    return have_sum(x, axes) and axes[-1] == last


def have_sum(x: tf.Tensor, axes: list[int]) -> bool:
    """Tells whether a kernel sums over these axes.

    It does on a CPU, for 16-bit tensors, and axes that follow one another.
    """
    if not is_half(x.dtype.name) or not axes:
        return False
    if axes != list(range(axes[0], axes[-1] + 1)):
        return False
    return has_kernels()


def as_rows(x: tf.Tensor, axes: list[int]) -> tf.Tensor:
    """Returns `[rows, size]`, a row for what lies along the last axes, these."""
    sizes = sizes_of(x)
    split = len(sizes) - len(axes)
    return tf.reshape(x, [math.prod(sizes[:split]), math.prod(sizes[split:])])


def sizes_of(x: tf.Tensor, dtype: tf.DType = tf.int64) -> list[Any]:
    """Returns the size of each dimension: an int, or a tensor where it is not known.

    In int64, of which the product of several may be, too.
    """
    if x.shape.is_fully_defined():
        return list(x.shape)
    dynamic = tf.shape(x, dtype)
    return [dynamic[i] if size is None else size for i, size in enumerate(x.shape)]
