"""FP32 masters as a 16-bit weight and a 16-bit remainder.

The weight is its master, rounded to nearest even. The remainder is what the rounding
dropped: the difference of their bit patterns as FP32, at most half a unit in the last
place of the weight. So the two are the master, in four bytes instead of six.

The FP16 numbers up to 2**-14 have a fixed unit, 2**-24, and no bound on that
difference. There the remainder counts units of 2**-40.

What is lost: a master lies exactly half-way above an even bfloat16 weight in one of
2**17 cases, and there moves by one unit in the last place of FP32, as 65,537 masters
round to such a weight. Up to 2**-14 an FP16 weight's master is kept to 2**-40, exactly
if it is at least 2**-17 and not half-way above an even weight. An FP16 master beyond
65,520 becomes that number.
"""

from typing import Any

import keras
from keras import ops

from keras_mp.optimizer.rounding import bits_of

_SMALLEST_NORMAL = 2.0**-14
_UNIT_BELOW = 2.0**-40
# Of a weight, in units in the last place of FP32.
_HALF_AN_ULP = {"float16": 2**12, "bfloat16": 2**15}


def join(weight: Any, remainder: Any) -> Any:
    """Returns the masters of weights.

    Args:
        weight: float16 or bfloat16 tensor.
        remainder: int16 tensor of the same shape.

    Returns:
        float32 tensor of the same shape: the weight where that is not finite.
    """
    rounded = ops.cast(weight, "float32")
    remainder = ops.cast(remainder, "int32")
    # Beyond the bounds it is that of a subnormal weight, which other code overwrote.
    bounded = ops.clip(remainder, *_bounds(weight))
    master = bits_of(bits_of(rounded, "int32") + bounded, "float32")
    if keras.backend.standardize_dtype(weight.dtype) == "float16":
        more = ops.cast(remainder, "float32") * _UNIT_BELOW
        # Without the first case -0 would become 0.
        below = ops.where(ops.equal(remainder, 0), rounded, rounded + more)
        master = ops.where(ops.abs(rounded) <= _SMALLEST_NORMAL, below, master)
    return ops.where(ops.isfinite(rounded), master, rounded)


def split(master: Any, weight: Any) -> Any:
    """Returns the remainders of masters.

    Args:
        master: float32 tensor.
        weight: float16 or bfloat16 tensor, `round_nearest(master)`.

    Returns:
        int16 tensor of the same shape, 0 where a weight is not finite.
    """
    rounded = ops.cast(weight, "float32")
    remainder = bits_of(master, "int32") - bits_of(rounded, "int32")
    remainder = ops.clip(remainder, *_bounds(weight))
    if keras.backend.standardize_dtype(weight.dtype) == "float16":
        units = ops.round((master - rounded) / _UNIT_BELOW)
        below = ops.cast(ops.clip(units, -(2**15), 2**15 - 1), "int32")
        is_small = ops.abs(rounded) <= _SMALLEST_NORMAL
        remainder = ops.where(is_small, below, remainder)
    return ops.cast(ops.where(ops.isfinite(rounded), remainder, 0), "int16")


def _bounds(weight: Any) -> tuple[int, int]:
    """Returns the least and the largest difference of bit patterns."""
    half_an_ulp = _HALF_AN_ULP[keras.backend.standardize_dtype(weight.dtype)]
    return -half_an_ulp, min(half_an_ulp, 2**15 - 1)
