"""What a comparison shows of its results: a table and curves."""

import contextlib
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import cycle
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

Result = Mapping[str, Any]
Results = Mapping[str, Result]


def table(results: Results, measures: Sequence[str]) -> str:
    """Returns a Markdown table: a setting a row, its measures, its cost, its scale."""
    columns = [*measures, "s/step", "minutes", "peak MB"]
    columns += ["loss scale", "skipped steps"]
    rows = [["setting", *columns], ["---"] * (len(columns) + 1)]
    for name, result in results.items():
        rows.append(
            [
                name,
                *(f"{result['measures'][measure]:.4g}" for measure in measures),
                f"{result['step_seconds']:.3f}",
                f"{result['seconds'] / 60:.1f}",
                f"{result['peak_mb']:.0f}",
                optional(result["loss_scale"]),
                optional(result["skipped_steps"]),
            ]
        )
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)


def curves(
    results: Results,
    path: Path,
    column: str,
    log_scale: bool = False,
    groups: Sequence[str] = (),
) -> None:
    """Draws a column of the logs against the steps, in training and on held-out data.

    Args:
        results: by setting.
        path: of the picture; its suffix chooses the format.
        column: of the log; the held-out numbers are those of `val_` and it.
        log_scale: whether the numbers are drawn on a logarithmic scale.
        groups: how names of settings begin that are drawn apart from others; those of
            which there is none are left out.
    """
    what = "training (lines) and held-out data (points)"
    panels = {
        group: {name: results[name] for name in results if name.startswith(group)}
        for group in groups
    } or {what: results}
    drawn = {title: found for title, found in panels.items() if found}
    with picture(path, *drawn) as axes:
        for each, found in zip(axes, drawn.values(), strict=True):
            draw_curves(each, found, column, log_scale)


@contextlib.contextmanager
def picture(path: Path, *titles: str) -> Iterator[list[Any]]:
    """Gives axes to draw on, one for each title, and saves them.

    The same drawing makes the same SVG: it has no date, and no random names.
    """
    with plt.rc_context({"svg.hashsalt": "keras_mp"}):
        columns = min(len(titles), 3)
        rows = -(-len(titles) // columns)
        figure = plt.figure(figsize=(3 + 5 * columns, 5 * rows))
        yield [
            figure.add_subplot(rows, columns, place, title=title)
            for place, title in enumerate(titles, start=1)
        ]
        figure.tight_layout()
        metadata = {"Date": None} if path.suffix == ".svg" else None
        figure.savefig(path, dpi=120, metadata=metadata)
        plt.close(figure)


def draw_curves(
    axes: Any, results: Results, column: str, log_scale: bool = False
) -> None:
    """Draws on axes; the arguments are those of `curves`.

    Seeds of FP32 are grey, so that others stand out where they leave these.
    """
    for name, color in colors(results).items():
        _draw(axes, name, results[name], column, color)
    if log_scale:
        axes.set_yscale("log")
    axes.set_xlabel("training step")
    axes.set_ylabel(column)
    axes.grid(True, which="both", alpha=0.3)
    axes.legend()


def colors(names: Iterable[str]) -> dict[str, str]:
    """Returns a color for each setting: greys for seeds of FP32, and no grey else."""
    greys, others = cycle(["0.2", "0.45", "0.65"]), cycle(f"C{i}" for i in range(7))
    return {name: next(greys if "fp32" in name else others) for name in names}


def _draw(axes: Any, name: str, result: Result, column: str, color: str) -> None:
    every, log = result["flags"]["eval_every"], result["log"]
    steps = [every * (i + 1) for i in range(len(log))]
    axes.plot(steps, [row[column] for row in log], label=name, color=color)
    held_out = [row.get(f"val_{column}") for row in log]
    if None not in held_out:
        axes.plot(steps, held_out, "o", color=color)


def optional(number: float | None) -> str:
    """Returns a number, powers of 2 below 1 as such, or a dash where there is none."""
    if number is None:
        return "-"
    below_one = 0 < number < 1 and math.frexp(number)[0] == 0.5
    return f"2^{int(math.log2(number))}" if below_one else f"{number:.15g}"
