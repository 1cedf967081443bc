"""How weights and masters are stored in 16 bits and in 24.

Weights are rounded masters. Two modes, as in the paper's Appendix A: to nearest even,
and stochastic. Both saturate at the largest finite value, so a weight is never inf.

A remainder makes a 16-bit weight a whole FP32 master again. The weight is its master,
rounded to nearest even. The remainder is what the rounding dropped: the difference of
their bit patterns as FP32, at most half a unit in the last place of the weight. So the
two are the master, in four bytes instead of six. The FP16 numbers up to 2**-14 have a
fixed unit, 2**-24, and no bound on that difference. There the remainder counts units of
2**-40.

What is lost: a master lies exactly half-way above an even bfloat16 weight in one of
2**17 cases, and there moves by one unit in the last place of FP32, as 65,537 masters
round to such a weight. Up to 2**-14 an FP16 weight's master is kept to 2**-40, exactly
if it is at least 2**-17 and not half-way above an even weight. An FP16 master beyond
65,520 becomes that number.

A remainder of 8 bits makes a master of 24: its weight's format with eight more bits of
fraction. FP16 masters have 18 of them, and a spacing of 2**-32 up to 2**-14; bfloat16
masters have 15, and a spacing of 2**-125 up to 2**-110. An update is rounded to one of
the two neighbours stochastically, hence without bias. To nearest, one below half of the
spacing would be lost. No master lies half-way between two weights, one place in 256:
a code is missing there. What is rounded to it moves to a neighbour on either side, at
random. So the error is less than the spacing, or than twice that next to such a place.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import keras
from keras import ops, random

from keras_mp import keras_internals
from keras_mp.random_bits import noise_of_step, uniforms_of
from keras_mp.typing import Tensor, Variable

ROUNDING_MODES = ("nearest", "stochastic")

# Of each format: the largest finite value, the exponent of the smallest normal number,
# the number of fraction bits. Processors flush float32 below 2**-126 to zero, so that
# is the smallest spacing of bfloat16 here, though the format has one of 2**-133.
_FORMATS = {
    "float16": (65504.0, -14, 10),
    "bfloat16": (float.fromhex("0x1.FEp127"), -119, 7),
}
# The same of masters of 24 bits. The largest is the largest weight and remainder.
_FORMATS_OF_MASTERS = {
    "float16": (65519.875, -14, 18),
    "bfloat16": (float.fromhex("0x1.FEFEp127"), -110, 15),
}


def round_nearest(x: Tensor, dtype: str) -> Tensor:
    """Rounds to nearest even, saturating.

    Args:
        x: float32 tensor.
        dtype: `"float16"` or `"bfloat16"`.

    Returns:
        Tensor of `dtype`, the shape of `x`; finite wherever `x` is not NaN.
    """
    return ops.cast(_saturate(x, _FORMATS[dtype]), dtype)


def round_stochastic(x: Tensor, dtype: str, seed: random.SeedGenerator) -> Tensor:
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


def round_by(x: Tensor, dtype: str, uniforms: Tensor) -> Any:
    """Rounds as `round_stochastic`, by given random numbers.

    Args:
        x: float32 tensor.
        dtype: `"float16"` or `"bfloat16"`.
        uniforms: float32 tensor of the shape of `x`, from [0, 1).
    """
    return ops.cast(_round_by(x, _FORMATS[dtype], uniforms), dtype)


def _round_by(
    x: Tensor, number_format: tuple[float, int, int], uniforms: Tensor
) -> Any:
    x = _saturate(x, number_format)
    spacing = _spacing(x, number_format)
    steps = x / spacing
    down = ops.floor(steps)
    up = uniforms < steps - down
    return (down + ops.cast(up, "float32")) * spacing


def draw_uniforms(x: Tensor, seed: random.SeedGenerator) -> Any:
    """Returns random numbers, uniform in [0, 1): float32, of the shape of `x`."""
    return random.uniform(ops.shape(x), dtype="float32", seed=seed)


@dataclass(frozen=True)
class Rounding:
    """How masters become weights.

    Attributes:
        mode: `"nearest"` or `"stochastic"`.
        seed: `keras.random.SeedGenerator`, of all stochastic rounding.
    """

    mode: str
    seed: random.SeedGenerator

    def round(self, master: Any, dtype: str) -> Tensor:
        """Returns a float32 tensor in float16 or bfloat16."""
        if self.mode == "stochastic":
            return round_stochastic(master, dtype, self.seed)
        return round_nearest(master, dtype)

    def uniforms(self, weights: Sequence[Variable]) -> list[Any]:
        """Returns random numbers for stochastic rounding, a tensor for each weight.

        An empty list where the rounding is to nearest.
        """
        if self.mode == "nearest":
            return []
        return [draw_uniforms(weight, self.seed) for weight in weights]

    def noise(self, step: Tensor) -> Any:
        """Returns the noise that a step rounds compressed state with.

        Args:
            step: scalar int tensor, the number of the step.
        """
        return noise_of_step(self.seed.get_config()["seed"], step)


def differs(weight: Tensor, master: Any, rounding: str) -> Tensor:
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
    master = _saturate(master, _FORMATS[dtype])
    spacing = _spacing(master, _FORMATS[dtype])
    steps = master / spacing
    found = ops.cast(weight, "float32") / spacing
    return ops.logical_and(found != ops.floor(steps), found != ops.ceil(steps))


def _saturate(x: Tensor, number_format: tuple[float, int, int]) -> Any:
    """Returns `x` within the finite values of a format, and NaN where it is NaN."""
    largest, _, _ = number_format
    # XLA of TensorFlow 2.20 compiles a clip that makes a NaN one of the bounds.
    return ops.where(ops.isnan(x), x, ops.clip(x, -largest, largest))


def _spacing(x: Tensor, number_format: tuple[float, int, int]) -> Any:
    """Returns the distance between neighbours in a format at `x`, a power of two."""
    _, smallest_exponent, fraction_bits = number_format
    exponent_bits = ops.bitwise_and(bits_of(x, "int32"), 0x7F800000)
    power_of_two = bits_of(exponent_bits, "float32")
    return ops.maximum(power_of_two, 2.0**smallest_exponent) * 2.0**-fraction_bits


def bits_of(x: Tensor, dtype: str) -> Any:
    """Returns the bits of `x` as `dtype`, of the same size."""
    # `view` needs a last dimension of static size: a new one of size 1.
    return ops.squeeze(keras_internals.view(ops.expand_dims(x, -1), dtype), -1)


# Of FP16, and the unit of the remainders up to there.
_SMALLEST_NORMAL = 2.0**-14
_UNIT_BELOW = 2.0**-40


def join(weight: Tensor, remainder: Tensor) -> Tensor:
    """Returns the masters of weights.

    Args:
        weight: float16 or bfloat16 tensor.
        remainder: int16 or int8 tensor of the same shape.

    Returns:
        float32 tensor of the same shape: the weight where that is not finite.
    """
    rounded = ops.cast(weight, "float32")
    unit = _unit(weight, keras.backend.standardize_dtype(remainder.dtype))
    remainder = ops.cast(remainder, "int32") * unit
    # Beyond the bounds it is that of a subnormal weight, which other code overwrote.
    bounded = ops.clip(remainder, *_bounds(weight))
    master = bits_of(bits_of(rounded, "int32") + bounded, "float32")
    if keras.backend.standardize_dtype(weight.dtype) == "float16":
        more = ops.cast(remainder, "float32") * _UNIT_BELOW
        # Without the first case -0 would become 0.
        below = ops.where(ops.equal(remainder, 0), rounded, rounded + more)
        master = ops.where(ops.abs(rounded) <= _SMALLEST_NORMAL, below, master)
    return ops.where(ops.isfinite(rounded), master, rounded)


def split(master: Any, weight: Tensor, dtype: str = "int16") -> Tensor:
    """Returns the remainders of masters, rounded to nearest.

    Args:
        master: float32 tensor.
        weight: float16 or bfloat16 tensor, `round_nearest(master)`.
        dtype: `"int16"` or `"int8"`. Defaults to `"int16"`.

    Returns:
        Tensor of `dtype`, of the same shape; 0 where a weight is not finite.
    """
    rounded = ops.cast(weight, "float32")
    remainder = bits_of(master, "int32") - bits_of(rounded, "int32")
    remainder = ops.clip(remainder, *_bounds(weight))
    if keras.backend.standardize_dtype(weight.dtype) == "float16":
        units = ops.round((master - rounded) / _UNIT_BELOW)
        below = ops.cast(ops.clip(units, -(2**15), 2**15 - 1), "int32")
        is_small = ops.abs(rounded) <= _SMALLEST_NORMAL
        remainder = ops.where(is_small, below, remainder)
    if dtype == "int8":
        unit = ops.cast(_unit(weight, dtype), "float32")
        units = ops.round(ops.cast(remainder, "float32") / unit)
        remainder = ops.cast(ops.clip(units, -127, 127), "int32")
    return ops.cast(ops.where(ops.isfinite(rounded), remainder, 0), dtype)


def round_to_24_bits(master: Any, dtype: str, bits: Tensor) -> tuple[Any, Any]:
    """Rounds masters to what a weight and a remainder of 8 bits can be.

    Args:
        master: float32 tensor.
        dtype: `"float16"` or `"bfloat16"`, of the weights.
        bits: int32 tensor of the same shape, random bits.

    Returns:
        float32 tensor, one of the two neighbours of each master; and the weights, of
        `dtype`, to nearest. Half-way between two weights one of them, at random: there
        `split` takes the master that is next to it.
    """
    master = _round_by(master, _FORMATS_OF_MASTERS[dtype], uniforms_of(bits))
    is_down = ops.equal(ops.bitwise_and(bits, 1), 0)
    beside = master * ops.where(is_down, 1 - 2.0**-23, 1 + 2.0**-23)
    return master, round_nearest(beside, dtype)


def _unit(weight: Tensor, dtype: str) -> Any:
    """Returns how many units of a remainder of 16 bits one in `dtype` counts."""
    if dtype == "int16":
        return 1
    if keras.backend.standardize_dtype(weight.dtype) == "bfloat16":
        return 2**8
    magnitude = ops.abs(ops.cast(weight, "float32"))
    return ops.where(magnitude <= _SMALLEST_NORMAL, 2**8, 2**5)


def _bounds(weight: Tensor) -> tuple[int, int]:
    """Returns the least and the largest difference of bit patterns."""
    _, _, fraction_bits = _FORMATS[keras.backend.standardize_dtype(weight.dtype)]
    # Of the weight, in units in the last place of FP32.
    half_an_ulp = 2 ** (22 - fraction_bits)
    return -half_an_ulp, min(half_an_ulp, 2**15 - 1)
