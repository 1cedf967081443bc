"""Validation and conversion of the arguments of the ops."""

from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from keras_mp.dtypes import is_half


def to_tensor(x: Any, name: str, rule: str = "of dtype float16 or bfloat16") -> Any:
    """Converts an argument to a tensor without a cast, which could lose values."""
    if isinstance(x, keras.Variable):
        x = x.value
    tensor = tf.convert_to_tensor(x)
    if not tensor.dtype.is_floating:
        raise ValueError(
            f"`{name}` must be {rule}. Received: "
            f"{name}.dtype={tensor.dtype.name}, shape {tensor.shape}. "
            "Cast it first."
        )
    return tensor


def to_float_tensor(x: Any, name: str) -> tf.Tensor:
    """Converts an argument to a tensor of any floating dtype, without a cast."""
    return to_tensor(x, name, "of a floating dtype")


def normalize_axes(axis: int | Sequence[int] | None, x: tf.Tensor) -> list[int]:
    """Returns the axes as sorted non-negative ints; all axes for None."""
    if x.shape.rank is None:
        raise ValueError(
            "The number of dimensions must be known. Received: a tensor of shape "
            f"{x.shape}. Give it one with `set_shape` or `tf.ensure_shape`."
        )
    if axis is None:
        return list(range(x.shape.rank))
    rank = x.shape.rank
    axes = list(axis) if isinstance(axis, Sequence) else [axis]
    if not all(isinstance(a, int | np.integer) and a is not True for a in axes):
        raise ValueError(
            f"`axis` must be an int, several, or None. Received: axis={axis!r}."
        )
    found = sorted({int(a % rank) for a in axes if -rank <= a < rank}) if rank else []
    if len(found) < len(axes):
        raise ValueError(
            f"`axis` must be from {-rank} to {rank - 1}, and none twice, for a tensor "
            f"of {rank} dimensions. Received: axis={axis!r} and shape {x.shape}."
        )
    return found


def resolve_output_dtype(output_dtype: str | None, x: tf.Tensor) -> str:
    """Returns `output_dtype` as a name; the dtype of `x` for None."""
    if output_dtype is None:
        return str(x.dtype.name)
    try:
        dtype = tf.as_dtype(output_dtype)
    except TypeError:
        dtype = tf.string
    if not dtype.is_floating:
        raise ValueError(
            "`output_dtype` must be a floating dtype, or None for the input's dtype. "
            f"Received: output_dtype={output_dtype!r}, input {x.dtype.name} {x.shape}."
        )
    return str(dtype.name)


def to_bool_mask(x: tf.Tensor, mask: Any) -> tf.Tensor:
    """Returns a mask as bool tensor; raises ValueError unless it broadcasts to `x`."""
    mask = tf.convert_to_tensor(mask)
    sizes = [] if mask.shape.rank is None else mask.shape[::-1]
    fits = len(sizes) <= len(x.shape) and all(
        m in (1, None) or size in (m, None)
        for m, size in zip(sizes, x.shape[::-1], strict=False)
    )
    if not fits:
        raise ValueError(
            "`mask` must broadcast to the input: no more dimensions, each of the same "
            f"size or 1. Received: mask.shape={mask.shape} for the shape {x.shape}."
        )
    return mask if mask.dtype == tf.bool else mask > tf.cast(0.5, mask.dtype)


def check_dtypes(
    a: tf.Tensor, b: tf.Tensor, biases: tuple[tf.Tensor, ...], output_dtype: str
) -> None:
    """Raises ValueError unless `fp16_gemm` supports this combination of dtypes."""
    half = a.dtype.name

    def received() -> str:
        return f"a {half} {a.shape}, b {b.dtype.name} {b.shape}"

    if not is_half(half):
        raise ValueError(
            f"`a` must be of dtype float16 or bfloat16. Received: {received()}. "
            "Cast it, or use `keras.ops.matmul` for FP32."
        )
    if b.dtype.name not in (half, "float32"):
        raise ValueError(
            "`b` must have the dtype of `a`, or float32 for a master weight. "
            f"Received: {received()}. Cast one of them."
        )
    for bias in biases:
        if bias.dtype.name not in (half, "float32"):
            raise ValueError(
                "`bias` must have the dtype of `a`, or float32. Received: bias "
                f"{bias.dtype.name} {bias.shape}, {received()}. Cast it."
            )
    if output_dtype not in (half, "float32"):
        raise ValueError(
            "`output_dtype` must be the dtype of `a`, or 'float32'. Received: "
            f"output_dtype={output_dtype!r}, {received()}."
        )


def check_shapes(
    a: tf.Tensor,
    b: tf.Tensor,
    transpose_a: bool,
    transpose_b: bool,
    biases: tuple[tf.Tensor, ...],
    alpha: tf.Tensor,
) -> None:
    """Raises ValueError if the static shapes do not fit together."""

    def received() -> str:
        return (
            f"a.shape={a.shape}, b.shape={b.shape}, transpose_a={transpose_a}, "
            f"transpose_b={transpose_b}"
        )

    for name, x in (("a", a), ("b", b)):
        if x.shape.rank is not None and x.shape.rank < 2:
            raise ValueError(
                f"`{name}` must have at least 2 dimensions. Received: {received()}. "
                f"Give a vector a dimension of size 1."
            )
    if alpha.shape.rank not in (None, 0):
        raise ValueError(
            "`alpha` must be a number or a scalar tensor. Received: "
            f"alpha.shape={alpha.shape}, {received()}."
        )
    if a.shape.rank is None or b.shape.rank is None:
        return
    inner_a, inner_b = (
        a.shape[-2 if transpose_a else -1],
        b.shape[-1 if transpose_b else -2],
    )
    if None not in (inner_a, inner_b) and inner_a != inner_b:
        raise ValueError(
            f"The inner sizes of `a` and `b` must be equal. Received: {inner_a} and "
            f"{inner_b}, from {received()}."
        )
    if a.shape.rank > 2 and b.shape.rank > 2:
        try:
            tf.broadcast_static_shape(a.shape[:-2], b.shape[:-2])
        except ValueError as error:
            raise ValueError(
                "The leading dimensions of `a` and `b` must broadcast. Received: "
                f"{received()}."
            ) from error
    columns = b.shape[-2 if transpose_b else -1]
    for bias in biases:
        if not bias.shape.is_compatible_with([columns]):
            raise ValueError(
                f"`bias` must have the shape [N], here [{columns}]. Received: "
                f"bias.shape={bias.shape}, {received()}."
            )
