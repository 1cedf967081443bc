"""Slots of an optimizer in 8 bits, with an exponent for each group of 32 elements.

The exponent belongs to the largest element of a group. It has eight bits as in FP32, so
it cannot underflow where FP32 does not. An element is a floating-point number relative
to it, with three fraction bits. Signed slots, such as a momentum, have a sign bit and
four exponent bits; slots that are never negative, such as a second moment, have five.

Rounding is stochastic, hence unbiased. To nearest, a second moment would never follow
its gradients: a step changes it by 0.1%, and neighbours are 6 to 12% apart. Elements
are cut off above 1.875 times the group's power of two. A positive second moment is
never stored as 0, since its root is a divisor: at least 2**-33 of that power remains.
"""

import math
from typing import Any

from keras import ops

from keras_mp.optimizer.rounding import bits_of
from keras_mp.random_bits import random_bits, shift_right

GROUP = 32
_FRACTION_BITS = 3
_DROPPED_BITS = 23 - _FRACTION_BITS
_LARGEST = 1.875
# 254 would need a subnormal inverse, which processors flush to zero.
_LARGEST_EXPONENT = 253
_SIGN = 0x80


def groups_in(size: int) -> int:
    """Returns the number of groups of a variable with `size` elements."""
    return math.ceil(size / GROUP)


def encode(x: Any, is_signed: bool, noise: Any, stream: int) -> tuple[Any, Any]:
    """Rounds FP32 numbers to 8 bits, stochastically.

    Args:
        x: float32 tensor of static shape; not negative unless `is_signed`. NaN and inf
            become the largest number of their group.
        is_signed: bool.
        noise: what `noise_of_step` returned.
        stream: int, the number of the slot.

    Returns:
        Codes, uint8 of the shape of `x`; exponents, uint8 of shape `[groups_in(size)]`.
    """
    size = math.prod(x.shape)
    flat = ops.reshape(x, (size,))
    dither = shift_right(random_bits((size,), noise, stream), 32 - _DROPPED_BITS)
    magnitude = ops.abs(flat)
    exponents = _exponents_of(magnitude)
    exponent = _of_elements(exponents, size)
    t = magnitude * _power_of_two(254 - exponent)
    t = ops.where(exponent > 0, t, 0.0)
    t = ops.where(t < _LARGEST, t, _LARGEST)
    smallest = _smallest_normal(is_signed)
    is_small = t < smallest
    above = bits_of(ops.where(is_small, t + smallest, t), "int32") - _bits(smallest)
    code = shift_right(above + dither, _DROPPED_BITS)
    code = code + ops.where(is_small, 0, 2**_FRACTION_BITS)
    if is_signed:
        code = ops.minimum(code, _SIGN - 1)
        has_sign = ops.logical_and(flat < 0, code > 0)
        code = code + ops.where(has_sign, _SIGN, 0)
    else:
        code = ops.minimum(code, 255)
        is_positive = ops.logical_and(flat > 0, exponent > 0)
        code = ops.where(is_positive, ops.maximum(code, 1), code)
    return ops.reshape(ops.cast(code, "uint8"), x.shape), ops.cast(exponents, "uint8")


def decode(codes: Any, exponents: Any, is_signed: bool) -> Any:
    """Returns the numbers that codes mean.

    Args:
        codes: uint8 tensor of static shape.
        exponents: uint8 tensor of shape `[groups_in(size)]`.
        is_signed: bool.

    Returns:
        float32 tensor of the shape of `codes`.
    """
    size = math.prod(codes.shape)
    codes_of = ops.cast(ops.reshape(codes, (size,)), "int32")
    exponent = _of_elements(ops.cast(exponents, "int32"), size)
    magnitude = ops.bitwise_and(codes_of, _SIGN - 1) if is_signed else codes_of
    smallest = _smallest_normal(is_signed)
    is_small = magnitude < 2**_FRACTION_BITS
    steps = ops.where(is_small, magnitude, magnitude - 2**_FRACTION_BITS)
    t = bits_of(steps * 2**_DROPPED_BITS + _bits(smallest), "float32")
    t = ops.where(is_small, t - smallest, t)
    x = t * _power_of_two(exponent)
    if is_signed:
        x = ops.where(codes_of >= _SIGN, -x, x)
    return ops.reshape(x, codes.shape)


def _exponents_of(magnitude: Any) -> Any:
    """Returns the biased exponent of the largest element of each group: int32."""
    (size,) = magnitude.shape
    padding = groups_in(size) * GROUP - size
    grouped = ops.reshape(ops.pad(magnitude, [(0, padding)]), (-1, GROUP))
    exponents = ops.right_shift(bits_of(grouped, "int32"), 23)
    return ops.minimum(ops.max(exponents, axis=1), _LARGEST_EXPONENT)


def _of_elements(exponents: Any, size: int) -> Any:
    return ops.repeat(exponents, GROUP)[:size]


def _power_of_two(exponent: Any) -> Any:
    """Returns 2**(exponent - 127), and 0 for 0."""
    return bits_of(exponent * 2**23, "float32")


def _smallest_normal(is_signed: bool) -> float:
    return 2.0**-14 if is_signed else 2.0**-30


def _bits(power_of_two: float) -> int:
    """Returns the bits of a power of two as FP32."""
    return (int(math.log2(power_of_two)) + 127) * 2**23
