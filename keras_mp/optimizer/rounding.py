"""Rounding of FP32 masters to the 16-bit weights that the model computes with.

Two modes, as in the paper's Appendix A: to nearest even, and stochastic. Both
saturate at the largest finite value, so that a weight is never inf.
"""

from typing import Any

import keras
from keras import ops, random

from keras_mp import keras_internals

ROUNDING_MODES = ("nearest", "stochastic")

# Of each format: the largest finite value, the exponent of the smallest normal number,
# the number of fraction bits. Processors flush float32 below 2**-126 to zero, so that
# is the smallest spacing of bfloat16 here, though the format has one of 2**-133.
_FORMATS = {
    "float16": (65504.0, -14, 10),
    "bfloat16": (float.fromhex("0x1.FEp127"), -119, 7),
}


def round_nearest(x: Any, dtype: str) -> Any:
    """Rounds to nearest even, saturating.

    Args:
        x: float32 tensor.
        dtype: `"float16"` or `"bfloat16"`.

    Returns:
        Tensor of `dtype`, the shape of `x`; finite wherever `x` is not NaN.
    """
    return ops.cast(_saturate(x, dtype), dtype)


def round_stochastic(x: Any, dtype: str, seed: random.SeedGenerator) -> Any:
    """Rounds up with probability `(x - z1) / (z2 - z1)`, else down, saturating.

    `z1 <= x <= z2` are the neighbours of `x` in `dtype`; the expectation is `x`.

    Args:
        x: float32 tensor.
        dtype: `"float16"` or `"bfloat16"`.
        seed: `keras.random.SeedGenerator`, advanced once.

    Returns:
        Tensor of `dtype`, the shape of `x`; finite wherever `x` is not NaN.

    Reference: Mixed Precision Training, Appendix A.
    """
    return round_by(x, dtype, draw_uniforms(x, seed))


def round_by(x: Any, dtype: str, uniforms: Any) -> Any:
    """Rounds as `round_stochastic`, by given random numbers.

    Args:
        x: float32 tensor.
        dtype: `"float16"` or `"bfloat16"`.
        uniforms: float32 tensor of the shape of `x`, from [0, 1).
    """
    x = _saturate(x, dtype)
    spacing = _spacing(x, dtype)
    steps = x / spacing
    down = ops.floor(steps)
    up = uniforms < steps - down
    return ops.cast((down + ops.cast(up, "float32")) * spacing, dtype)


def draw_uniforms(x: Any, seed: random.SeedGenerator) -> Any:
    """Returns random numbers, uniform in [0, 1): float32, of the shape of `x`."""
    return random.uniform(ops.shape(x), dtype="float32", seed=seed)


def differs(weight: Any, master: Any, rounding: str) -> Any:
    """Tells where `weight` is not a rounding of `master`.

    With `"nearest"` the bits are compared: a compiler may widen a comparison of
    halves to float32 and drop the rounding, but not one of integers. With
    `"stochastic"` both neighbours of the master are its roundings.

    Args:
        weight: float16 or bfloat16 tensor.
        master: float32 tensor of the same shape.
        rounding: `"nearest"` or `"stochastic"`.

    Returns:
        bool tensor of the same shape.
    """
    dtype = keras.backend.standardize_dtype(weight.dtype)
    if rounding == "nearest":
        rounded = round_nearest(master, dtype)
        return ops.not_equal(bits_of(rounded, "int16"), bits_of(weight, "int16"))
    master = _saturate(master, dtype)
    spacing = _spacing(master, dtype)
    steps = master / spacing
    found = ops.cast(weight, "float32") / spacing
    return ops.logical_and(found != ops.floor(steps), found != ops.ceil(steps))


def _saturate(x: Any, dtype: str) -> Any:
    """Returns `x` within the finite values of `dtype`, and NaN where it is NaN."""
    largest, _, _ = _FORMATS[dtype]
    # XLA of TensorFlow 2.20 compiles a clip that makes a NaN one of the bounds.
    return ops.where(ops.isnan(x), x, ops.clip(x, -largest, largest))


def _spacing(x: Any, dtype: str) -> Any:
    """Returns the distance between neighbours in `dtype` at `x`, a power of two."""
    _, smallest_exponent, fraction_bits = _FORMATS[dtype]
    exponent_bits = ops.bitwise_and(bits_of(x, "int32"), 0x7F800000)
    power_of_two = bits_of(exponent_bits, "float32")
    return ops.maximum(power_of_two, 2.0**smallest_exponent) * 2.0**-fraction_bits


def bits_of(x: Any, dtype: str) -> Any:
    """Returns the bits of `x` as `dtype`, of the same size."""
    # `view` needs a last dimension of static size: a new one of size 1.
    return ops.squeeze(keras_internals.view(ops.expand_dims(x, -1), dtype), -1)
