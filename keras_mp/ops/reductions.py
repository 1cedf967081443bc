"""`sum`, `mean`, `cumsum`, `segment_sum`: 16 bits in and out, FP32 accumulation."""

import math
from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from keras_mp.ops.checks import normalize_axes, resolve_output_dtype, to_float_tensor
from keras_mp.ops.gradients import as_one_operation
from keras_mp.ops.kernels import native
from keras_mp.ops.kernels.rows import has_sum_kernel, sizes_of
from keras_mp.ops.symbolic import symbolic


@symbolic("x")
def sum(
    x: Any,
    axis: int | Sequence[int] | None = None,
    keepdims: bool = False,
    output_dtype: str | None = None,
) -> tf.Tensor:
    """Sums in FP32 and rounds once.

    `round(sum(x))`; a sum of N elements errs by at most `N * 2**-24 * sum(|x|)` before
    the rounding. The gradient is the upstream gradient, rounded to the dtype of `x` and
    broadcast to its shape.

    Args:
        x: float16, bfloat16 or float32 tensor. A float64 one is summed in float64.
        axis: int, several, or None (default) for all dimensions.
        keepdims: bool, default False: whether the summed axes remain with size 1.
        output_dtype: default the dtype of `x`; `"float32"` if the sum may exceed
            65,504.

    Returns:
        A tensor of `output_dtype`.

    Raises:
        ValueError: `x` is not of a floating dtype, or has no such axis.

    Example:

    >>> ones = np.ones((4096, 1), "float16")
    >>> keras_mp.ops.sum(ones, axis=0).numpy().tolist()    # an FP16 sum stops at 2048
    [4096.0]

    Reference: Mixed Precision Training, section 3.3.
    """
    x = to_float_tensor(x, "x")
    axes = normalize_axes(axis, x)
    dtype = resolve_output_dtype(output_dtype, x)
    return _reduce(x, axes, keepdims, dtype, averages=False)


@symbolic("x")
def mean(
    x: Any,
    axis: int | Sequence[int] | None = None,
    keepdims: bool = False,
    output_dtype: str | None = None,
) -> tf.Tensor:
    """Averages in FP32 and rounds once.

    `round(sum(x) / N)`; the mean of N elements errs by at most
    `N * 2**-24 * mean(|x|)` before the rounding.

    Args:
        x: float16, bfloat16 or float32 tensor. A float64 one is averaged in float64.
        axis: int, several, or None (default) for all dimensions.
        keepdims: bool, default False: whether the averaged axes remain with size 1.
        output_dtype: default the dtype of `x`.

    Returns:
        A tensor of `output_dtype`.

    Raises:
        ValueError: `x` is not of a floating dtype, or has no such axis.

    Example:

    >>> ones = np.ones(100_000, "float16")
    >>> float(keras_mp.ops.mean(ones))    # tf.reduce_mean: nan
    1.0

    Reference: Mixed Precision Training, section 3.3.
    """
    x = to_float_tensor(x, "x")
    axes = normalize_axes(axis, x)
    dtype = resolve_output_dtype(output_dtype, x)
    return _reduce(x, axes, keepdims, dtype, averages=True)


@symbolic("x")
def cumsum(x: Any, axis: int | None = None, output_dtype: str | None = None) -> Any:
    """Sums in FP32 along an axis, up to each element, and rounds each sum once.

    The sum of the first N elements errs by at most `N * 2**-24 * sum(|x|)` before the
    rounding.

    Args:
        x: float16, bfloat16 or float32 tensor. A float64 one is summed in float64.
        axis: int, or None (default) for the flattened tensor.
        output_dtype: default the dtype of `x`.

    Returns:
        A tensor of `output_dtype`, of the shape of `x` or flat.

    Raises:
        ValueError: `x` is not of a floating dtype, or has no such axis.

    Example:

    >>> ones = np.ones(4096, "float16")
    >>> keras_mp.ops.cumsum(ones).numpy().tolist()[-1]    # tf.cumsum: 2048.0
    4096.0

    Reference: Mixed Precision Training, section 3.3.
    """
    x = to_float_tensor(x, "x")
    if axis is None:
        x, axis = tf.reshape(x, [-1]), 0
    axes = normalize_axes(axis, x)
    if len(axes) != 1:
        raise ValueError(
            "`axis` must be one number, or None. "
            f"Received: {len(axes)} axes for the shape {x.shape}."
        )
    total = tf.cumsum(tf.cast(x, accumulator_dtype(x)), axes[0])
    return tf.cast(total, resolve_output_dtype(output_dtype, x))


@symbolic("data", "segment_ids")
def segment_sum(
    data: Any,
    segment_ids: Any,
    num_segments: int | None = None,
    sorted: bool = False,
    output_dtype: str | None = None,
) -> tf.Tensor:
    """Sums the rows of each segment in FP32 and rounds each sum once.

    The sum of N rows errs by at most `N * 2**-24 * sum(|data|)` before the rounding.

    Args:
        data: float16, bfloat16 or float32 tensor. A float64 one is summed in float64.
        segment_ids: int tensor, one for each row of `data`.
        num_segments: int, the rows of the result; default as many as there are
            different `segment_ids`. XLA needs it.
        sorted: bool, default False: whether the ids are sorted. Not to be combined
            with `num_segments`.
        output_dtype: default the dtype of `data`.

    Returns:
        A tensor of `output_dtype`, `[num_segments, ...]`.

    Raises:
        ValueError: `data` is not of a floating dtype, or as `keras.ops.segment_sum`.

    Example:

    >>> ones = np.ones(4097, "float16")
    >>> ids = np.arange(4097) // 4096
    >>> keras_mp.ops.segment_sum(ones, ids).numpy().tolist()    # in FP16: [2048.0, 1.0]
    [4096.0, 1.0]

    Reference: Mixed Precision Training, section 3.3.
    """
    data = to_float_tensor(data, "data")
    wide, ids = (
        tf.cast(data, accumulator_dtype(data)),
        tf.convert_to_tensor(segment_ids),
    )
    total = keras.ops.segment_sum(wide, ids, num_segments, sorted)
    return tf.cast(total, resolve_output_dtype(output_dtype, data))


def accumulator_dtype(x: tf.Tensor) -> tf.DType:
    """Returns the dtype to accumulate `x` in: float64 for float64, else float32."""
    return tf.float64 if x.dtype == tf.float64 else tf.float32


def squeeze_axes(axes: list[int], x: tf.Tensor) -> tf.Tensor:
    """Removes axes of size 1; without axes nothing, where `tf.squeeze` removes all."""
    return tf.squeeze(x, axes) if axes else x


def _reduce(
    x: tf.Tensor, axes: list[int], keepdims: bool, output_dtype: str, averages: bool
) -> tf.Tensor:
    """Sums or averages; nothing is kept for the backward pass."""
    shape, dtype, accumulator = tf.shape(x), x.dtype, accumulator_dtype(x)

    @tf.custom_gradient
    def reduced(x: tf.Tensor) -> tuple[tf.Tensor, Any]:
        y = accumulate(x, axes)
        kept = tf.shape(y)
        # In floating point: int32 overflows at 2^31 elements.
        elements, results = (
            tf.reduce_prod(tf.cast(size, accumulator)) for size in (shape, kept)
        )
        count = elements / results if averages else tf.ones([], accumulator)

        def gradient(upstream: tf.Tensor) -> tf.Tensor:
            upstream = tf.reshape(tf.cast(upstream, accumulator), kept) / count
            return tf.broadcast_to(tf.cast(upstream, dtype), shape)

        y = (y if keepdims else squeeze_axes(axes, y)) / count
        return tf.cast(y, output_dtype), gradient

    return reduced(x)


def accumulate(x: tf.Tensor, axes: list[int]) -> tf.Tensor:
    """Returns the sums, with size 1 along the axes."""

    def formula(x: tf.Tensor) -> tf.Tensor:
        return tf.reduce_sum(tf.cast(x, accumulator_dtype(x)), axes, keepdims=True)

    def kernel(x: tf.Tensor) -> tf.Tensor:
        sizes = sizes_of(x)
        first, end = axes[0], axes[-1] + 1
        before, along, after = sizes[:first], sizes[first:end], sizes[end:]
        matrices = _with_one_inferred([math.prod(n) for n in (before, along, after)])
        y = native.library().keras_mp_sum(x=tf.reshape(x, matrices))
        return tf.reshape(y, [*before, *[1] * len(axes), *after])

    return kernel(x) if has_sum_kernel(x, axes) else as_one_operation(formula, x)


def _with_one_inferred(sizes: list[Any]) -> list[Any]:
    """Returns -1 instead of the only dynamic size, if the others determine it.

    XLA cannot reshape to an int64 tensor of a size that it finds at run time.
    """
    known = [size for size in sizes if isinstance(size, int)]
    if len(known) < len(sizes) - 1 or 0 in known:
        return sizes
    return [size if isinstance(size, int) else -1 for size in sizes]


@tf.RegisterGradient("KerasMp>Sum")
def _sum_grad(op: Any, upstream: tf.Tensor) -> tf.Tensor:
    """For reloaded SavedModels and second-order gradients."""
    (x,) = op.inputs
    return tf.broadcast_to(tf.cast(tf.expand_dims(upstream, 1), x.dtype), tf.shape(x))
