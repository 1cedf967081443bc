"""`softmax`, `log_softmax`, `logsumexp`: 16 bits in and out, FP32 accumulation."""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from keras_mp.dtypes import is_half
from keras_mp.ops.checks import (
    normalize_axes,
    resolve_output_dtype,
    to_bool_mask,
    to_float_tensor,
)
from keras_mp.ops.gradients import as_one_operation, defer_until_upstream, vjp
from keras_mp.ops.kernels import native
from keras_mp.ops.kernels.dispatch import has_reduction_kernels
from keras_mp.ops.kernels.rows import are_last, as_rows, has_row_kernel, sizes_of
from keras_mp.ops.reductions import accumulator_dtype, squeeze_axes
from keras_mp.ops.symbolic import symbolic


@symbolic("x", "mask")
def softmax(
    x: Any,
    axis: int | Sequence[int] | None = -1,
    mask: Any = None,
    output_dtype: str | None = None,
) -> tf.Tensor:
    """Computes the softmax in FP32 and rounds once.

    `round(exp(x - max(x)) / sum(exp(x - max(x))))`. Only the result is rounded to
    `output_dtype`. Before that, its relative error is a few times `2**-24` from the
    exponential, and up to `N * 2**-24` from the sum of N terms, where `2**-24` is the
    relative error of one FP32 rounding. The gradient is computed in FP32 from `x`, or
    from the result if the result has fewer bits than `x`. Only that tensor is kept for
    the backward pass.

    A logit of -inf has probability 0 if the other logits of its row are finite or -inf
    and at least one is finite. A row with a NaN or +inf, or of -inf only, has no
    softmax: all of it is NaN, in the gradient too.

    Args:
        x: float16, bfloat16 or float32 tensor of logits. With float64, all is float64.
        axis: int or several, default -1: the axes over which the result sums to 1.
            None: all.
        mask: bool tensor that broadcasts to `x`, or a tensor of numbers: above 0.5 they
            count as True; default None. Where it is False, result and gradient are 0,
            also in a row without a True.
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
    x = to_float_tensor(x, "x")
    axes = normalize_axes(axis, x)
    output_dtype = resolve_output_dtype(output_dtype, x)
    masks = () if mask is None else (to_bool_mask(x, mask),)
    if tf.as_dtype(output_dtype).size < x.dtype.size:
        is_rounded = x.dtype == tf.float32 and is_half(output_dtype)
        is_plain = is_rounded and not masks and are_last(axes, x)
        if is_plain and has_reduction_kernels():
            rows = as_rows(x, axes)
            p = native.library().keras_mp_float_softmax(x=rows, T=output_dtype)
            return tf.reshape(p, sizes_of(x))  # its gradient is registered
        return _softmax_saving_result(x, axes, masks, output_dtype)
    has_kernel = output_dtype == x.dtype.name and has_row_kernel(x, axes)
    dtype, accumulator = x.dtype, accumulator_dtype(x)

    def formula(x: tf.Tensor) -> tf.Tensor:
        p = _softmax(tf.cast(x, accumulator), axes, masks)
        return tf.cast(p, output_dtype)

    def kernel(x: tf.Tensor) -> tf.Tensor:
        p = native.library().keras_mp_softmax(x=as_rows(_mask_logits(x, masks), axes))
        return _zero_masked(tf.reshape(p, sizes_of(x)), masks)

    def backward_formula(x: tf.Tensor, upstream: tf.Tensor) -> tf.Tensor:
        p = _softmax(tf.cast(x, accumulator), axes, masks)
        return tf.cast(_softmax_backward(p, upstream, axes, masks), dtype)

    def backward_kernel(x: tf.Tensor, upstream: tf.Tensor) -> tf.Tensor:
        grad_x = native.library().keras_mp_softmax_gradient(
            x=as_rows(_mask_logits(x, masks), axes),
            grad_y=as_rows(_zero_masked(upstream, masks), axes),
        )
        return _zero_masked(tf.reshape(grad_x, sizes_of(x)), masks)

    if has_kernel and not masks:
        return kernel(x)  # its gradient is registered

    # Keeps `x` for the backward pass, not the masked copy of it.
    @tf.custom_gradient
    def normalized(x: tf.Tensor) -> tuple[tf.Tensor, Any]:
        @defer_until_upstream
        def gradient(upstream: tf.Tensor) -> tf.Tensor:
            if has_kernel:
                return backward_kernel(x, upstream)
            return as_one_operation(backward_formula, x, upstream)

        return kernel(x) if has_kernel else as_one_operation(formula, x), gradient

    return normalized(x)


def _softmax_saving_result(
    x: tf.Tensor, axes: list[int], masks: tuple[tf.Tensor, ...], output_dtype: str
) -> tf.Tensor:
    """Computes the softmax and keeps the rounded result for the backward pass."""
    dtype, accumulator = x.dtype, accumulator_dtype(x)

    @tf.custom_gradient
    def normalized(x: tf.Tensor) -> tuple[tf.Tensor, Any]:
        y = tf.cast(_softmax(tf.cast(x, accumulator), axes, masks), output_dtype)

        @defer_until_upstream
        def gradient(upstream: tf.Tensor) -> tf.Tensor:
            p = tf.cast(y, accumulator)
            return tf.cast(_softmax_backward(p, upstream, axes, masks), dtype)

        return y, gradient

    return normalized(x)


def _softmax_backward(
    p: tf.Tensor, upstream: tf.Tensor, axes: list[int], masks: tuple[tf.Tensor, ...]
) -> tf.Tensor:
    """Returns the gradient of the logits, given the softmax `p`."""
    weighted = p * tf.cast(_zero_masked(upstream, masks), p.dtype)
    grad = weighted - p * tf.reduce_sum(weighted, axes, keepdims=True)
    return _zero_masked(grad, masks)


def _softmax(
    x: tf.Tensor, axes: list[int], masks: tuple[tf.Tensor, ...] = ()
) -> tf.Tensor:
    x = _mask_logits(x, masks)
    if len(axes) == 1:
        p = tf.nn.softmax(x, axes[0])
    else:
        y = tf.exp(x - tf.reduce_max(x, axes, keepdims=True))
        p = y / tf.reduce_sum(y, axes, keepdims=True)
    return _zero_masked(_nan_where_undefined(p, x, axes), masks)


def _nan_where_undefined(y: tf.Tensor, x: tf.Tensor, axes: list[int]) -> tf.Tensor:
    """Sets a row of `y` to NaN if its `x` has a NaN or +inf, or is all -inf.

    TensorFlow's kernels differ between CPUs for such rows: oneDNN's kernels for AVX-512
    return probabilities of 0 in a row with a NaN. The maximum is taken after NaN has
    been replaced by +inf, since XLA's maximum may drop a NaN.
    """
    infinity = tf.constant(float("inf"), x.dtype)
    largest = tf.reduce_max(tf.where(x < infinity, x, infinity), axes, keepdims=True)
    return tf.where(tf.math.is_finite(largest), y, tf.constant(float("nan"), y.dtype))


def _mask_logits(x: tf.Tensor, masks: tuple[tf.Tensor, ...]) -> tf.Tensor:
    """Sets masked logits to -inf."""
    for mask in masks:
        x = tf.where(mask, x, tf.constant(float("-inf"), x.dtype))
    return x


def _zero_masked(y: tf.Tensor, masks: tuple[tf.Tensor, ...]) -> tf.Tensor:
    """Sets masked elements to 0: the undefined softmax of their row may be NaN."""
    for mask in masks:
        y = tf.where(mask, y, tf.zeros([], y.dtype))
    return y


# The gradients of the ops themselves serve reloaded SavedModels and second-order
# gradients.
@tf.RegisterGradient("KerasMp>Softmax")
def _softmax_grad(op: Any, upstream: tf.Tensor) -> tf.Tensor:
    return native.library().keras_mp_softmax_gradient(x=op.inputs[0], grad_y=upstream)


@tf.RegisterGradient("KerasMp>SoftmaxGradient")
def _softmax_grad_grad(op: Any, upstream: tf.Tensor) -> list[tf.Tensor | None]:
    def formula(x: tf.Tensor, grad_y: tf.Tensor) -> tf.Tensor:
        p = _softmax(tf.cast(x, tf.float32), [1])
        return tf.cast(_softmax_backward(p, grad_y, [1], ()), x.dtype)

    return vjp(formula, op.inputs, [upstream])


@tf.RegisterGradient("KerasMp>FloatSoftmax")
def _float_softmax_grad(op: Any, upstream: tf.Tensor) -> tf.Tensor:
    return native.library().keras_mp_float_softmax_gradient(
        y=op.outputs[0], grad_y=upstream
    )


@tf.RegisterGradient("KerasMp>FloatSoftmaxGradient")
def _float_softmax_grad_grad(op: Any, upstream: tf.Tensor) -> list[tf.Tensor | None]:
    def formula(y: tf.Tensor, grad_y: tf.Tensor) -> tf.Tensor:
        return _softmax_backward(tf.cast(y, tf.float32), grad_y, [1], ())

    return vjp(formula, op.inputs, [upstream])


@symbolic("x")
def log_softmax(
    x: Any,
    axis: int | Sequence[int] | None = -1,
    output_dtype: str | None = None,
) -> tf.Tensor:
    """Computes the logarithm of the softmax in FP32 and rounds once.

    `round(x - max(x) - log(sum(exp(x - max(x)))))`. The gradient is computed in FP32
    from `x`, the only tensor kept for the backward pass. All of a row with a NaN or
    +inf, or of -inf only, is NaN, as in `softmax`.

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
    x = to_float_tensor(x, "x")
    axes = normalize_axes(axis, x)
    output_dtype = resolve_output_dtype(output_dtype, x)
    dtype, accumulator = x.dtype, accumulator_dtype(x)

    @tf.custom_gradient
    def logarithm(x: tf.Tensor) -> tuple[tf.Tensor, Any]:
        y = _log_softmax(tf.cast(x, accumulator), axes)

        @defer_until_upstream
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


@symbolic("x")
def logsumexp(
    x: Any,
    axis: int | Sequence[int] | None = None,
    keepdims: bool = False,
    output_dtype: str | None = None,
) -> tf.Tensor:
    """Computes `log(sum(exp(x)))` in FP32 and rounds once.

    The result is NaN for a row with a NaN, else inf for one with an inf, and -inf for
    one of -inf only. The gradient is computed in FP32 from `x`, the only tensor kept
    for the backward pass. It is 0 at -inf; elsewhere it is NaN if the result is NaN or
    inf.

    Args:
        x: float16, bfloat16 or float32 tensor. With float64, all is float64.
        axis: int, several, or None (default) for all dimensions.
        keepdims: bool, default False: whether the summed axes remain with size 1.
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
    x = to_float_tensor(x, "x")
    axes = normalize_axes(axis, x)
    output_dtype = resolve_output_dtype(output_dtype, x)
    dtype, accumulator = x.dtype, accumulator_dtype(x)

    @tf.custom_gradient
    def logarithm(x: tf.Tensor) -> tuple[tf.Tensor, Any]:
        result = tf.reduce_logsumexp(tf.cast(x, accumulator), axes, keepdims=True)
        kept = tf.shape(result)

        @defer_until_upstream
        def gradient(upstream: tf.Tensor) -> tf.Tensor:
            wide = tf.cast(x, accumulator)
            # exp(x - result) would lose digits: for large logits the FP32 result has
            # few after the point. The mask makes a row of -inf 0 instead of NaN.
            p = _softmax(wide, axes, (tf.not_equal(wide, float("-inf")),))
            upstream = tf.reshape(tf.cast(upstream, accumulator), kept)
            return tf.cast(p * upstream, dtype)

        y = result if keepdims else squeeze_axes(axes, result)
        return tf.cast(y, output_dtype), gradient

    return logarithm(x)
