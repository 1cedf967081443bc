"""Two precisions compared run by run: the same seed, the same weights and batches."""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats

from experiments.precision import setting_of
from experiments.report import Result, Results, optional

CONFIDENCE = 0.95
# No more pairs than that are asked for.
MANY = 1000
# The flags in which the runs of a pair may differ.
_PRECISION = {"precision", "loss_scale", "round_weights"}


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

    @property
    def bound(self) -> float:
        """The size, as a difference of what `number` returns."""
        return math.log1p(self.size / 100) if self.relative else self.size

    def number(self, measure: float) -> float:
        """Returns what is subtracted of a measure."""
        return math.log(measure) if self.relative else measure

    def shown(self, difference: float) -> str:
        """Returns a difference in the unit of the margin, one digit finer than it.

        What rounds to 0 keeps its sign, by which an interval includes 0 or not.
        """
        if self.relative:
            difference = 100 * math.expm1(difference)
        digits = max(0, 1 - math.floor(math.log10(self.size)))
        return f"{difference:+.{digits}f}"


@dataclass(frozen=True)
class Difference:
    """How far one precision ends from another, and how well that is known.

    Attributes:
        mean: of the differences, as `Margin.number` has them.
        deviation: the standard deviation of these.
        half_width: of the interval of the mean.
        count: of pairs, or 1 for a run beside others.
        margin: that of the measure.
    """

    mean: float
    deviation: float
    half_width: float
    count: int
    margin: Margin

    @property
    def interval(self) -> tuple[float, float]:
        """The 95% interval; of a single pair it has no ends."""
        return self.mean - self.half_width, self.mean + self.half_width

    @property
    def is_clear_of_chance(self) -> bool:
        """Whether the interval excludes 0, or a run did not end with a number."""
        return not math.isfinite(self.mean) or abs(self.mean) > self.half_width

    @property
    def verdict(self) -> str:
        """One of those of docs/gallery.md, "When two precisions count as equal"."""
        if abs(self.mean) + self.half_width <= self.margin.bound:
            return "equal within the margin"
        return "different" if self.is_clear_of_chance else "inconclusive"

    def pairs_within(self, bound: float) -> int | None:
        """Returns how many pairs, at this scatter, have an interval of +-`bound`.

        None of a single pair, which has no scatter, and where `MANY` are too few.
        """
        if self.count < 2:
            return None
        counts = range(2, MANY + 1)
        return next((n for n in counts if _half(self.deviation, n) <= bound), None)


def precision(result: Result) -> str:
    """Returns the precision of a run, named as settings are."""
    flags = result["flags"]
    if flags.get("round_weights"):
        return "rounded weights"
    name = setting_of(flags["precision"])
    if flags["loss_scale"] == "dynamic":
        return name
    if flags["loss_scale"] == "statistical":
        return f"{name}, statistical scale"
    return f"{name}, scale {optional(flags['loss_scale'])}"


def label(setting: str, of: str = "fp32") -> str:
    """Returns the name of a setting of a precision without that and its seed."""
    parts = re.sub(r" seed \d+$", "", setting).split(", ")
    return ", ".join(part for part in parts if part != of)


def pairs(
    results: Results, first: str, second: str
) -> dict[str, list[tuple[Result, Result]]]:
    """Returns the runs of two precisions that differ in nothing else.

    All their flags are the same, that of the seed among them.

    Args:
        results: by setting.
        first, second: as `precision` names them.

    Returns:
        The pairs, in the order of the first, by what else distinguishes these: the
        `label` of their setting.
    """
    seconds = {_others(r): r for r in results.values() if precision(r) == second}
    found: dict[str, list[tuple[Result, Result]]] = {}
    for name, result in results.items():
        if precision(result) == first and _others(result) in seconds:
            pair = result, seconds[_others(result)]
            found.setdefault(label(name, first), []).append(pair)
    return found


def same_but_seed(results: Results, one: Result) -> list[Result]:
    """Returns the runs that differ from one in their seed alone, and it itself."""
    others = {**one["flags"], "seed": None}
    return [r for r in results.values() if {**r["flags"], "seed": None} == others]


def beside_seeds(recorded: Results, fp32: Result, mixed: Result, measure: str) -> str:
    """Returns whether mixed precision ends among the seeds of FP32, in a sentence.

    Args:
        recorded: results by setting, of which those count that differ from `fp32` in
            their seed alone.
        fp32, mixed: one run each.
        measure: what is compared.
    """
    first, second = (result["measures"][measure] for result in (fp32, mixed))
    seen = f"{measure}: FP32 {first:.4g}, mixed precision {second:.4g}"
    others = [
        run["measures"][measure]
        for run in same_but_seed(recorded, fp32)
        if run["flags"]["seed"] != fp32["flags"]["seed"]
    ]
    if not others:
        return f"{seen}. No other seed of FP32 is recorded with these flags."
    low, high = min(first, *others), max(first, *others)
    place = "below" if second < low else "above" if second > high else "within"
    return (
        f"{seen}, {place} the spread of {len(others) + 1} seeds of FP32 "
        f"({low:.4g} to {high:.4g})."
    )


def mean_difference(
    found: Sequence[tuple[Result, Result]], measure: str, margin: Margin
) -> Difference:
    """Returns the second run of each pair minus the first, by Student's t."""
    numbers = [[margin.number(r["measures"][measure]) for r in pair] for pair in found]
    values = [second - first for first, second in numbers]
    mean = float(np.mean(values))
    if len(values) < 2:
        return Difference(mean, math.inf, math.inf, 1, margin)
    deviation = float(np.std(values, ddof=1))
    half = _half(deviation, len(values))
    return Difference(mean, deviation, half, len(values), margin)


def difference_of_one(
    runs: Sequence[Result], one: Result, measure: str, margin: Margin
) -> Difference:
    """Returns a run minus the mean of several that differ by their seeds.

    The interval is that in which 95% of all further runs like these would be: whether
    the one is like them is what is asked.
    """
    values = [margin.number(run["measures"][measure]) for run in runs]
    mean = margin.number(one["measures"][measure]) - float(np.mean(values))
    deviation, count = float(np.std(values, ddof=1)), len(values)
    # The variance of one run and that of the mean of the others add up.
    half = _half(deviation, count) * math.sqrt(count + 1)
    return Difference(mean, deviation, half, 1, margin)


def _half(deviation: float, count: int) -> float:
    quantile = stats.t.ppf((1 + CONFIDENCE) / 2, count - 1)
    return float(quantile * deviation / math.sqrt(count))


def _others(result: Result) -> str:
    """Returns all flags but the precision, in a form that can be a key."""
    flags = sorted(result["flags"].items())
    return repr([item for item in flags if item[0] not in _PRECISION])
