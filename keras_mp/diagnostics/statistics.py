"""`TensorStatistics`: what FP16 can and cannot hold of the values of a tensor."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import reduce
from typing import Any

import numpy as np

from keras_mp.diagnostics.counting import (
    ALL,
    ELEMENTS,
    LARGEST,
    POWERS,
    SMALLEST,
    SUBNORMALS,
    TOPS,
    compiled_counts_of,
)

# Rounding to nearest even: 2^-25, half of the smallest subnormal number, becomes 0, and
# 65,520, halfway between the largest number and 2^16, becomes infinity.
_LAST_ZERO_EXPONENT = -25
_LAST_FINITE_EXPONENT = 15


@dataclass(frozen=True)
class TensorStatistics:
    """Counts of the values of a tensor, by exponent.

    They tell exactly, and without the tensor, how many of its values FP16
    would lose after a multiplication by any power of two.

    Attributes:
        elements: int, how many values there are.
        zeros: int, those that are exactly zero.
        infinities: int.
        nans: int.
        exponents: dict from e to the number of magnitudes in `[2**e, 2**(e + 1))`.
        powers: the same of those that are exactly `2**e`.
        tops: the same of those that FP16 rounds up to `2**(e + 1)` if e is 15.
        subnormals: int, those that FP16 rounds to a subnormal number.
        smallest: float, the smallest magnitude that is not zero, or None.
        largest: float, the largest finite magnitude, or None.
    """

    elements: int
    zeros: int
    infinities: int
    nans: int
    exponents: Mapping[int, int]
    powers: Mapping[int, int]
    tops: Mapping[int, int]
    subnormals: int
    smallest: float | None
    largest: float | None

    @classmethod
    def of(cls, tensor: Any) -> "TensorStatistics":
        """Returns the statistics of a float16, bfloat16 or float32 tensor."""
        return cls.from_counts(compiled_counts_of(tensor).numpy())

    @classmethod
    def from_counts(cls, counts: Any) -> "TensorStatistics":
        """Returns the statistics of what `counts_of` returned, as an array."""
        from keras_mp.ops.exponent_histogram import (
            FIRST_BIN,
            INF_BIN,
            MIN_EXPONENT,
            NAN_BIN,
            ZERO_BIN,
        )

        def by_exponent(part: slice) -> dict[int, int]:
            found = counts[part][FIRST_BIN:INF_BIN]
            return {int(i) + MIN_EXPONENT: int(found[i]) for i in found.nonzero()[0]}

        smallest, largest = (
            float(np.int32(counts[i]).view(np.float32)) for i in (SMALLEST, LARGEST)
        )
        return cls(
            elements=int(counts[ELEMENTS]),
            zeros=int(counts[ALL][ZERO_BIN]),
            infinities=int(counts[ALL][INF_BIN]),
            nans=int(counts[ALL][NAN_BIN]),
            exponents=by_exponent(ALL),
            powers=by_exponent(POWERS),
            tops=by_exponent(TOPS),
            subnormals=int(counts[SUBNORMALS]),
            smallest=smallest if largest else None,
            largest=largest or None,
        )

    @property
    def lost(self) -> int:
        """How many are not zero, and zero in FP16."""
        return self.lost_at(0)

    @property
    def overflows(self) -> int:
        """How many are finite, and infinite in FP16."""
        return self.overflows_at(0)

    def lost_at(self, exponent: int) -> int:
        """Returns how many FP16 rounds to zero after a multiplication by 2**exponent.

        Those with `|x| * 2**exponent <= 2**-25`, zeros not counted.
        """
        last = _LAST_ZERO_EXPONENT - exponent
        below = sum(n for e, n in self.exponents.items() if e < last)
        return below + self.powers.get(last, 0)

    def overflows_at(self, exponent: int) -> int:
        """Returns how many overflow FP16 after a multiplication by 2**exponent.

        Those that are finite, with `|x| * 2**exponent >= 65_520`.
        """
        last = _LAST_FINITE_EXPONENT - exponent
        above = sum(n for e, n in self.exponents.items() if e > last)
        return above + self.tops.get(last, 0)

    def __add__(self, other: "TensorStatistics") -> "TensorStatistics":
        """Returns the statistics of both tensors together."""

        def joined(name: str) -> dict[int, int]:
            mine, others = getattr(self, name), getattr(other, name)
            both = sorted({*mine, *others})
            return {e: mine.get(e, 0) + others.get(e, 0) for e in both}

        smallest = [x.smallest for x in (self, other) if x.smallest is not None]
        largest = [x.largest for x in (self, other) if x.largest is not None]
        return TensorStatistics(
            elements=self.elements + other.elements,
            zeros=self.zeros + other.zeros,
            infinities=self.infinities + other.infinities,
            nans=self.nans + other.nans,
            exponents=joined("exponents"),
            powers=joined("powers"),
            tops=joined("tops"),
            subnormals=self.subnormals + other.subnormals,
            smallest=min(smallest, default=None),
            largest=max(largest, default=None),
        )

    def to_dict(self) -> dict[str, Any]:
        """Returns all attributes as what JSON can hold."""
        return {
            name: {str(e): n for e, n in value.items()}
            if isinstance(value, Mapping)
            else value
            for name, value in vars(self).items()
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> "TensorStatistics":
        """Returns the statistics that `to_dict` described."""
        arguments: dict[str, Any] = {
            name: {int(e): int(n) for e, n in value.items()}
            if isinstance(value, Mapping)
            else value
            for name, value in data.items()
        }
        return cls(**arguments)


def total(statistics: Any) -> TensorStatistics | None:
    """Returns the sum of several statistics, or None if there are none."""
    statistics = list(statistics)
    return reduce(TensorStatistics.__add__, statistics) if statistics else None
