"""`softmax`, `log_softmax`, `logsumexp`: 16 bits in and out, FP32 between."""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from keras_mp.ops.checks import (
    axes_of,
    mask_for,
    output_dtype_of,
    to_floating,
)
from keras_mp.ops.gradients import late
from keras_mp.ops.kernels import native
from keras_mp.ops.kernels.dispatch import choose, slopes_of
from keras_mp.ops.kernels.rows import as_rows, have_kernel, sizes_of
from keras_mp.ops.reductions import accumulator_of, without


def softmax(
    x: Any,
    axis: int | Sequence[int] | None = -1,
    mask: Any = None,
    output_dtype: str | None = None,
) -> tf.Tensor:
    """Computes the softmax in FP32 and rounds once.

    `round(exp(x - max(x)) / sum(exp(x - max(x))))`. Before the rounding an element errs
    by a few `2**-24` of its value, and the sum of N terms by `N * 2**-24` of its own.
    The gradient is computed in FP32 from `x`, or, where that has more bits than the
    result, from the result: one of them is held between forward and backward pass, the
    one with fewer bits.

    Where all logits are finite or -inf, and one is finite, -inf has probability 0. Any
    other row has no softmax, and is NaN as a whole, in the gradient too: one with a NaN
    or +inf, and one of nothing but -inf.

    Args:
        x: float16, bfloat16 or float32 tensor of logits. With float64, all is float64.
        axis: int or several, default -1: over which the result sums to 1. None: all.
        mask: bool tensor that broadcasts to `x`, or numbers, where more than 0.5 is
            True; default None. Where it is False the result is 0, and so it is in a
            row without a True, in the gradient too.
        output_dtype: default the dtype of `x`.

    Returns:
        A tensor of `output_dtype`, of the shape of `x`.

    Raises:
        ValueError: `x` is not of a floating dtype or has no such axis; the mask does
            not broadcast.

    Example:

    >>> logits = np.zeros(100_000, "float16")
    >>> keras_mp.ops.softmax(logits)[:2].numpy()    # tf.nn.softmax: [0., 0.]
    array([1.e-05, 1.e-05], dtype=float16)

    Reference: Mixed Precision Training, section 3.3.
    """
    x = to_floating(x, "x")
    axes = axes_of(axis, x)
    output_dtype = output_dtype_of(output_dtype, x)
    masks = () if mask is None else (mask_for(x, mask),)
    if tf.as_dtype(output_dtype).size < x.dtype.size:
        return _softmax_that_holds_its_result(x, axes, masks, output_dtype)
    has_kernel = output_dtype == x.dtype.name and have_kernel(x, axes)
    dtype, accumulator = x.dtype, accumulator_of(x)

    def formula(x: tf.Tensor) -> tf.Tensor:
        p = _softmax(tf.cast(x, accumulator), axes, masks)
        return tf.cast(p, output_dtype)

    def kernel(x: tf.Tensor) -> tf.Tensor:
        p = native.library().keras_mp_softmax(x=as_rows(_masked(x, masks), axes))
        return _unmasked(tf.reshape(p, sizes_of(x)), masks)

    def slope(x: tf.Tensor, upstream: tf.Tensor) -> tf.Tensor:
        p = _softmax(tf.cast(x, accumulator), axes, masks)
        return tf.cast(_slope(p, upstream, axes, masks), dtype)

    def slope_kernel(x: tf.Tensor, upstream: tf.Tensor) -> tf.Tensor:
        of_x = native.library().keras_mp_softmax_gradient(
            x=as_rows(_masked(x, masks), axes),
            grad_y=as_rows(_unmasked(upstream, masks), axes),
        )
        return _unmasked(tf.reshape(of_x, sizes_of(x)), masks)

    if has_kernel and not masks:
        return kernel(x)  # whose gradient is registered

    # Of what is masked, `x` alone is held.
    @tf.custom_gradient
    def normalized(x: tf.Tensor) -> tuple[tf.Tensor, Any]:
        @late
        def gradient(upstream: tf.Tensor) -> tf.Tensor:
            return choose(slope, slope_kernel if has_kernel else None, x, upstream)

        return choose(formula, kernel if has_kernel else None, x), gradient

    return normalized(x)


def _softmax_that_holds_its_result(
    x: tf.Tensor, axes: list[int], masks: tuple[tf.Tensor, ...], output_dtype: str
) -> tf.Tensor:
    dtype, accumulator = x.dtype, accumulator_of(x)

    @tf.custom_gradient
    def normalized(x: tf.Tensor) -> tuple[tf.Tensor, Any]:
        y = tf.cast(_softmax(tf.cast(x, accumulator), axes, masks), output_dtype)

        @late
        def gradient(upstream: tf.Tensor) -> tf.Tensor:
            slope = _slope(tf.cast(y, accumulator), upstream, axes, masks)
            return tf.cast(slope, dtype)

        return y, gradient

    return normalized(x)


def _slope(
    p: tf.Tensor, upstream: tf.Tensor, axes: list[int], masks: tuple[tf.Tensor, ...]
) -> tf.Tensor:
    weighted = p * tf.cast(_unmasked(upstream, masks), p.dtype)
    slope = weighted - p * tf.reduce_sum(weighted, axes, keepdims=True)
    return _unmasked(slope, masks)


def _softmax(
    x: tf.Tensor, axes: list[int], masks: tuple[tf.Tensor, ...] = ()
) -> tf.Tensor:
    x = _masked(x, masks)
    if len(axes) == 1:
        p = tf.nn.softmax(x, axes[0])
    else:
        y = tf.exp(x - tf.reduce_max(x, axes, keepdims=True))
        p = y / tf.reduce_sum(y, axes, keepdims=True)
    return _unmasked(_nan_where_undefined(p, x, axes), masks)


def _nan_where_undefined(y: tf.Tensor, x: tf.Tensor, axes: list[int]) -> tf.Tensor:
    """Makes rows of `y` NaN whose `x` has a NaN or +inf, or nothing but -inf.

    The kernels of TensorFlow differ there from CPU to CPU: those of oneDNN for AVX-512
    give probabilities of 0 beside a single NaN. A maximum is asked only of numbers
    that can be compared.
    """
    infinity = tf.constant(float("inf"), x.dtype)
    largest = tf.reduce_max(tf.where(x < infinity, x, infinity), axes, keepdims=True)
    return tf.where(tf.math.is_finite(largest), y, tf.constant(float("nan"), y.dtype))


def _masked(x: tf.Tensor, masks: tuple[tf.Tensor, ...]) -> tf.Tensor:
    for mask in masks:
        x = tf.where(mask, x, tf.constant(float("-inf"), x.dtype))
    return x


def _unmasked(y: tf.Tensor, masks: tuple[tf.Tensor, ...]) -> tf.Tensor:
    """Puts 0 for what was masked: it may have become NaN with its row."""
    for mask in masks:
        y = tf.where(mask, y, tf.zeros([], y.dtype))
    return y


# For the bare ops: in a reloaded SavedModel, and for a second order.
@tf.RegisterGradient("KerasMp>Softmax")
def _of_softmax(op: Any, upstream: tf.Tensor) -> tf.Tensor:
    return native.library().keras_mp_softmax_gradient(x=op.inputs[0], grad_y=upstream)


@tf.RegisterGradient("KerasMp>SoftmaxGradient")
def _of_softmax_gradient(op: Any, upstream: tf.Tensor) -> list[tf.Tensor | None]:
    def formula(x: tf.Tensor, of_y: tf.Tensor) -> tf.Tensor:
        p = _softmax(tf.cast(x, tf.float32), [1])
        return tf.cast(_slope(p, of_y, [1], ()), x.dtype)

    return slopes_of(formula, op.inputs, [upstream])


def log_softmax(
    x: Any,
    axis: int | Sequence[int] | None = -1,
    output_dtype: str | None = None,
) -> tf.Tensor:
    """Computes the logarithm of the softmax in FP32 and rounds once.

    `round(x - max(x) - log(sum(exp(x - max(x)))))`. The gradient is computed in FP32
    from `x`, which alone is held between forward and backward pass. A row with a NaN or
    +inf, or of nothing but -inf, is NaN as a whole, as in `softmax`.

    Args:
        x: float16, bfloat16 or float32 tensor of logits. With float64, all is float64.
        axis: int or several, default -1; None: all dimensions.
        output_dtype: default the dtype of `x`.

    Returns:
        A tensor of `output_dtype`, of the shape of `x`.

    Raises:
        ValueError: `x` is not of a floating dtype, or has no such axis.

    Example:

    >>> logits = np.zeros(100_000, "float16")
    >>> keras_mp.ops.log_softmax(logits)[:1].numpy()    # tf.nn.log_softmax: [-inf]
    array([-11.516], dtype=float16)

    Reference: Mixed Precision Training, section 3.3.
    """
    x = to_floating(x, "x")
    axes = axes_of(axis, x)
    output_dtype = output_dtype_of(output_dtype, x)
    dtype, accumulator = x.dtype, accumulator_of(x)

    @tf.custom_gradient
    def logarithm(x: tf.Tensor) -> tuple[tf.Tensor, Any]:
        y = _log_softmax(tf.cast(x, accumulator), axes)

        @late
        def gradient(upstream: tf.Tensor) -> tf.Tensor:
            upstream = tf.cast(upstream, accumulator)
            total = tf.reduce_sum(upstream, axes, keepdims=True)
            p = _softmax(tf.cast(x, accumulator), axes)
            return tf.cast(upstream - p * total, dtype)

        return tf.cast(y, output_dtype), gradient

    return logarithm(x)


def _log_softmax(x: tf.Tensor, axes: list[int]) -> tf.Tensor:
    if len(axes) == 1:
        y = tf.nn.log_softmax(x, axes[0])
    else:
        shifted = x - tf.reduce_max(x, axes, keepdims=True)
        sums = tf.reduce_sum(tf.exp(shifted), axes, keepdims=True)
        y = shifted - tf.math.log(sums)
    return _nan_where_undefined(y, x, axes)


def logsumexp(
    x: Any,
    axis: int | Sequence[int] | None = None,
    keepdims: bool = False,
    output_dtype: str | None = None,
) -> tf.Tensor:
    """Computes `log(sum(exp(x)))` in FP32 and rounds once.

    The result is NaN where there is a NaN, else inf where there is an inf, and -inf
    where there is nothing but -inf. The gradient is computed in FP32 from `x`, which
    alone is held between forward and backward pass. It is 0 for -inf, and otherwise NaN
    where the result is NaN or inf.

    Args:
        x: float16, bfloat16 or float32 tensor. With float64, all is float64.
        axis: int, several, or None (default): over all dimensions.
        keepdims: bool, default False: whether what was summed keeps size 1.
        output_dtype: default the dtype of `x`.

    Returns:
        A tensor of `output_dtype`.

    Raises:
        ValueError: `x` is not of a floating dtype, or has no such axis.

    Example:

    >>> logits = np.zeros(100_000, "float16")
    >>> keras_mp.ops.logsumexp(logits, keepdims=True).numpy()    # in FP16: inf
    array([11.516], dtype=float16)

    Reference: Mixed Precision Training, section 3.3.
    """
    x = to_floating(x, "x")
    axes = axes_of(axis, x)
    output_dtype = output_dtype_of(output_dtype, x)
    dtype, accumulator = x.dtype, accumulator_of(x)

    @tf.custom_gradient
    def logarithm(x: tf.Tensor) -> tuple[tf.Tensor, Any]:
        result = tf.reduce_logsumexp(tf.cast(x, accumulator), axes, keepdims=True)
        kept = tf.shape(result)

        @late
        def gradient(upstream: tf.Tensor) -> tf.Tensor:
            wide = tf.cast(x, accumulator)
            # Not exp(x - result): the FP32 result of large logits has no digits to
            # spare. Masked, a row of -inf is 0 and not NaN.
            slope = _softmax(wide, axes, (tf.not_equal(wide, float("-inf")),))
            upstream = tf.reshape(tf.cast(upstream, accumulator), kept)
            return tf.cast(slope * upstream, dtype)

        y = result if keepdims else without(axes, result)
        return tf.cast(y, output_dtype), gradient

    return logarithm(x)
