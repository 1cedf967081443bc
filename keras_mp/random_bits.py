"""Random bits that every device computes alike, from a hash of a step and a position.

No generator keeps a state, and no tensor of random numbers exists outside the kernels.
"""

import math
from collections.abc import Sequence
from typing import Any

from keras import ops

from keras_mp.typing import Tensor

# 2**32 / golden ratio, by which streams of numbers are held apart.
GOLDEN = 0x9E3779B9


def mix(x: Tensor) -> Any:
    """Returns a hash of int32 numbers: a bijection with output bits that look random.

    The constants are from Chris Wellons' `lowbias32`.
    """
    x = ops.bitwise_xor(x, shift_right(x, 16)) * int32(0x7FEB352D)
    x = ops.bitwise_xor(x, shift_right(x, 15)) * int32(0x846CA68B)
    return ops.bitwise_xor(x, shift_right(x, 16))


def shift_right(x: Tensor, bits: int) -> Tensor:
    """Shifts an int32 tensor and fills with zeros, whatever its sign."""
    return ops.bitwise_and(ops.right_shift(x, bits), 2 ** (32 - bits) - 1)


def int32(x: int) -> int:
    """Returns the int32 with the low 32 bits of `x`."""
    return (x + 2**31) % 2**32 - 2**31


# Of the slots, and after them of weights that are rounded stochastically.
STREAM_OF_WEIGHTS = 3


def noise_of_step(seed: int, step: Tensor) -> Tensor:
    """Returns the noise of a step.

    Args:
        seed: int.
        step: scalar int tensor, the number of the step.

    Returns:
        Scalar int32 tensor.
    """
    return mix(ops.cast(step, "int32") * int32(GOLDEN) + int32(seed))


def random_bits(shape: Sequence[int], noise: Tensor, stream: int) -> Tensor:
    """Returns 32 random bits for each element: a hash of its position.

    Args:
        shape: tuple of ints.
        noise: what `noise_of_step` returned.
        stream: int, the number of a slot, or `STREAM_OF_WEIGHTS`.

    Returns:
        int32 tensor of `shape`.
    """
    positions = ops.arange(math.prod(shape), dtype="int32")
    return ops.reshape(mix(positions + noise + int32(stream * GOLDEN)), shape)


def uniforms(shape: Sequence[int], noise: Tensor) -> Tensor:
    """Returns multiples of 2**-24 from [0, 1) for the rounding of weights.

    Args:
        shape: tuple of ints.
        noise: what `noise_of_step` returned.

    Returns:
        float32 tensor of `shape`.
    """
    return uniforms_of(random_bits(shape, noise, STREAM_OF_WEIGHTS))


def uniforms_of(bits: Tensor) -> Tensor:
    """Returns multiples of 2**-24 from [0, 1), made of the upper 24 of 32 bits.

    Args:
        bits: int32 tensor.

    Returns:
        float32 tensor of the same shape.
    """
    return ops.cast(shift_right(bits, 8), "float32") * 2.0**-24


def halves_of(noise: Tensor) -> tuple[Any, Any]:
    """Returns the low and the high 16 bits of noise, as float32 scalars."""
    low, high = ops.bitwise_and(noise, 0xFFFF), shift_right(noise, 16)
    return ops.cast(low, "float32"), ops.cast(high, "float32")
