"""Two precisions compared run by run: the same seed, the same weights and batches."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Margin:
    """How far apart two precisions may be, and still count as equal.

    Attributes:
        size: in the unit of the measure, or in percent of it.
        unit: what stands behind a number, as in "1 point".
        relative: whether it is a percentage. Then logarithms are subtracted, so that
            twice as much and half as much are as far from equal.
    """

    size: float
    unit: str = ""
    relative: bool = False
