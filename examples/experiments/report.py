"""What a comparison shows of its results: a table, and texts side by side."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

Result = Mapping[str, Any]
Results = Mapping[str, Result]


def markdown(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    """Yields the lines of a Markdown table."""
    for row in (columns, ["---"] * len(columns), *rows):
        yield f"| {' | '.join(row)} |"


def table(results: Results, measures: Sequence[str]) -> str:
    """Returns a Markdown table: a setting a row, its measures, its cost, its scale."""
    columns = ["setting", *measures, "s/step", "minutes", "peak MB"]
    columns += ["loss scale", "skipped steps"]
    rows = (
        [
            name,
            *(f"{result['measures'][measure]:.4g}" for measure in measures),
            f"{result['step_seconds']:.3f}",
            f"{result['seconds'] / 60:.1f}",
            f"{result['peak_mb']:.0f}",
            optional(result["loss_scale"]),
            optional(result["skipped_steps"]),
        ]
        for name, result in results.items()
    )
    return "\n".join(markdown(columns, rows))


def side_by_side(texts: Mapping[str, Sequence[str]]) -> str:
    """Returns the first text of each name, a line each, then the second, and so on."""
    width = max(map(len, texts))
    lines = []
    for each in zip(*texts.values(), strict=True):
        lines += [f"{name:{width}}  {t}" for name, t in zip(texts, each, strict=True)]
        lines.append("")
    return "\n".join(lines)


def optional(number: float | None) -> str:
    """Returns a number, powers of 2 below 1 as such, or a dash where there is none."""
    if number is None:
        return "-"
    below_one = 0 < number < 1 and math.frexp(number)[0] == 0.5
    return f"2^{int(math.log2(number))}" if below_one else f"{number:.15g}"
