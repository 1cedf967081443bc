"""What docs/gallery.md says of pairs of runs: sentences, and a table."""

import itertools
import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace

from experiments.compare import Comparison
from experiments.paired import (
    MANY,
    Difference,
    Margin,
    label,
    mean_difference,
    pairs,
    precision,
)
from experiments.precision import ALL_FORMS, setting_of
from experiments.report import Results, markdown

ALL = "all networks"


def differences(
    comparison: Comparison,
    results: Results,
    measure: str,
    other: str = "mixed",
    baseline: str = "fp32",
) -> dict[str, Difference]:
    """Returns how far a precision ends from FP32, by what else distinguishes the runs.

    Where there are several networks, all pairs together come first, as `ALL`.

    Args:
        comparison: whose margins count.
        results: by setting.
        measure: what is compared.
        other, baseline: the precisions, as `paired.precision` names them.
    """
    found = pairs(results, baseline, other)
    if comparison.pooled and found:
        found = {ALL: [pair for each in found.values() for pair in each], **found}
    margin = comparison.margins[measure]
    return {name: mean_difference(p, measure, margin) for name, p in found.items()}


def verdicts(comparison: Comparison, results: Results) -> str:
    """Returns what the pairs show: a sentence for each margin, then a table.

    The sentences are of mixed precision with a dynamic scale; where there are several
    networks, of all together.

    Args:
        comparison: what is planned, and its margins.
        results: by setting.
    """
    planned = planned_pairs(comparison)
    of_mixed = {m: differences(comparison, results, m) for m in comparison.margins}
    sentences = [
        _sentence(measure, next(iter(found.values())), planned)
        for measure, found in of_mixed.items()
        if found
    ]
    if not sentences:
        return "No pair of runs is measured yet.\n"
    others = dict.fromkeys(precision(result) for result in results.values())
    table = _table(comparison, results, [n for n in others if n != "fp32"], "fp32")
    return "\n\n".join(filter(None, [*sentences, table])) + "\n"


def of_forms(comparison: Comparison, results: Results) -> str:
    """Returns how far each form of masters and state ends from the default: a table."""
    forms = map(setting_of, ALL_FORMS)
    # Of several networks only one is trained with them.
    table = _table(replace(comparison, pooled=False), results, forms, "mixed")
    return (table or "Not measured yet.") + "\n"


def _table(
    comparison: Comparison, results: Results, others: Iterable[str], baseline: str
) -> str:
    """Returns a row for each difference of several pairs; "" where there is none."""
    rows = []
    for other, measure in itertools.product(others, comparison.margins):
        found = differences(comparison, results, measure, other, baseline)
        for name, difference in found.items():
            if difference.count < 2:
                continue
            what = ", ".join(filter(None, (name, other)))
            numbers = f"{difference.count}", shown(difference), interval(difference)
            verdict = difference.verdict
            if verdict == "inconclusive":
                verdict = f"inconclusive: takes {_pairs(difference)}"
            rows.append([what, measure, *numbers, verdict])
    minus = f"minus {baseline.replace('fp32', 'FP32')}"
    columns = [minus, "measure", "pairs", "difference", "95% interval", "verdict"]
    return "\n".join(markdown(columns, rows)) if rows else ""


def first_difference(comparison: Comparison, results: Results) -> Difference:
    """Returns how far mixed precision ends from FP32, by the first measure."""
    found = differences(comparison, results, next(iter(comparison.margins)))
    return next(iter(found.values()))


def headline(comparison: Comparison, results: Results) -> str:
    """Returns the sentence of the README, of the first measure."""
    measure = next(iter(comparison.margins))
    difference = first_difference(comparison, results)
    planned = planned_pairs(comparison)
    verdict = f"**{difference.verdict}**"
    if difference.count < planned:
        so_far = f"{difference.count} of {planned} pairs"
        verdict = f"so far {verdict}, with {so_far} measured"
    return (
        f"Mixed precision minus FP32 is {shown(difference)} of {measure} (95% interval "
        f"{interval(difference)}). Two precisions count as equal if the whole interval "
        f"lies within {_size(difference.margin)}: {verdict}.\n"
    )


def planned_pairs(comparison: Comparison) -> int:
    """Returns how many pairs of mixed precision and FP32 the sentences are of."""
    settings = comparison.settings
    planned = [[*flags] for flags in settings.values()]
    found = Counter(
        label(name)
        for name, flags in settings.items()
        if "fp32" in flags
        and ["mixed" if flag == "fp32" else flag for flag in flags] in planned
    )
    return found.total() if comparison.pooled else found[""]


def _sentence(measure: str, difference: Difference, planned: int) -> str:
    margin, count, verdict = difference.margin, difference.count, difference.verdict
    is_whole = count >= planned
    title = verdict if is_whole else f"preliminary, {count} of {planned} pairs"
    pairs_of = f", over {count} pairs" if is_whole else ""
    known = f", 95% interval {interval(difference)}" if count > 1 else ""
    end = "." if is_whole or count < 2 else f"; so far: {verdict}."
    if verdict == "inconclusive" and count > 1:
        end += f" At this scatter {_pairs(difference)} would show a difference of 0."
    return (
        f"**{measure}: {title}.** Mixed precision minus FP32{pairs_of}: "
        f"{shown(difference)}{known}; the margin is {_size(margin)}{end}"
    )


def shown(difference: Difference) -> str:
    """Returns the mean of the difference, with its unit."""
    margin = difference.margin
    return f"{margin.shown(difference.mean)}{_unit(margin)}"


def interval(difference: Difference) -> str:
    """Returns the ends of the interval, or a dash where there are none."""
    low, high = difference.interval
    if not math.isfinite(low):
        return "-"
    return f"{difference.margin.shown(low)} to {difference.margin.shown(high)}"


def _pairs(difference: Difference) -> str:
    needed = difference.pairs_within(difference.margin.bound)
    return f"{needed or f'over {MANY}'} pairs"


def _size(margin: Margin) -> str:
    size = f"{margin.size:g}{_unit(margin)}"
    return size.removesuffix("s") if margin.size == 1 else size


def _unit(margin: Margin) -> str:
    return "%" if margin.unit == "%" else f" {margin.unit}".rstrip()
