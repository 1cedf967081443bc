"""What a comparison shows of its results: a table and curves."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

Result = Mapping[str, Any]
Results = Mapping[str, Result]


def table(results: Results, measures: Sequence[str]) -> str:
    """Returns a Markdown table: a setting a row, its measures, its cost, its scale."""
    columns = [*measures, "s/step", "peak MB", "loss scale", "skipped steps"]
    rows = [["setting", *columns], ["---"] * (len(columns) + 1)]
    for name, result in results.items():
        rows.append(
            [
                name,
                *(f"{result['measures'][measure]:.4g}" for measure in measures),
                f"{result['step_seconds']:.3f}",
                f"{result['peak_mb']:.0f}",
                optional(result["loss_scale"]),
                optional(result["skipped_steps"]),
            ]
        )
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)


def curves(results: Results, path: Path, column: str, log_scale: bool = False) -> None:
    """Draws a column of the logs against the steps, in training and on held-out data.

    Args:
        results: by setting.
        path: of the picture.
        column: of the log; the held-out numbers are those of `val_` and it.
        log_scale: whether the numbers are drawn on a logarithmic scale.
    """
    figure, axes = plt.subplots(figsize=(8, 5))
    for name, result in results.items():
        every, log = result["flags"]["eval_every"], result["log"]
        steps = [every * (i + 1) for i in range(len(log))]
        (line,) = axes.plot(steps, [row[column] for row in log], label=name)
        held_out = [row.get(f"val_{column}") for row in log]
        if None not in held_out:
            axes.plot(steps, held_out, "o", color=line.get_color())
    if log_scale:
        axes.set_yscale("log")
    axes.set_xlabel("training step")
    axes.set_ylabel(column)
    axes.set_title(f"training (line, mean of {every} steps) and held-out (points)")
    axes.grid(True, which="both", alpha=0.3)
    axes.legend()
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    plt.close(figure)


def optional(number: float | None) -> str:
    """Returns a whole number, or a dash where there is none."""
    return "-" if number is None else f"{number:.0f}"
