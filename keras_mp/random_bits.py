"""A hash of 32 bits, from which random numbers are made that every device has alike."""

from typing import Any

from keras import ops

# 2**32 / golden ratio, by which streams of numbers are held apart.
GOLDEN = 0x9E3779B9


def mix(x: Any) -> Any:
    """Returns a hash of int32 numbers: a bijection with output bits that look random.

    The constants are from Chris Wellons' `lowbias32`.
    """
    x = ops.bitwise_xor(x, shift_right(x, 16)) * int32(0x7FEB352D)
    x = ops.bitwise_xor(x, shift_right(x, 15)) * int32(0x846CA68B)
    return ops.bitwise_xor(x, shift_right(x, 16))


def shift_right(x: Any, bits: int) -> Any:
    """Shifts an int32 tensor and fills with zeros, whatever its sign."""
    return ops.bitwise_and(ops.right_shift(x, bits), 2 ** (32 - bits) - 1)


def int32(x: int) -> int:
    """Returns the int32 with the low 32 bits of `x`."""
    return (x + 2**31) % 2**32 - 2**31
