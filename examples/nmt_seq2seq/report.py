"""What a comparison shows: a table, perplexity curves, translations."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

Result = dict[str, Any]
Results = dict[str, Result]

COLUMNS: dict[str, Callable[[Result], str]] = {
    "held-out perplexity": lambda r: f"{r['held_out_perplexity'][-1]:.2f}",
    "BLEU greedy": lambda r: f"{r['bleu']['greedy']:.1f}",
    "BLEU beam": lambda r: f"{r['bleu']['beam']:.1f}",
    "s/step": lambda r: f"{r['step_seconds']:.3f}",
    "peak MB": lambda r: f"{r['peak_mb']:.0f}",
    "loss scale": lambda r: optional(r["loss_scale"]),
    "skipped steps": lambda r: optional(r["skipped_steps"]),
}


def optional(number: float | None) -> str:
    return "-" if number is None else f"{number:.0f}"


def table(results: Results) -> str:
    """Returns the results as a Markdown table, one setting a row."""
    rows = [["setting", *COLUMNS], ["---"] * (len(COLUMNS) + 1)]
    for name, result in results.items():
        rows.append([name, *(show(result) for show in COLUMNS.values())])
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)


def translations(results: Results, count: int = 10) -> str:
    """Returns the first held-out sentences with every setting's translation."""
    width = max(len(name) for name in ("English", *results))
    first = next(iter(results.values()))
    lines = []
    for i in range(count):
        lines.append(f"{'English':{width}}  {first['english'][i]}")
        lines.append(f"{'French':{width}}  {first['french'][i]}")
        for name, result in results.items():
            lines.append(f"{name:{width}}  {result['translations']['greedy'][i]}")
        lines.append("")
    return "\n".join(lines)


def curves(results: Results, path: Path) -> None:
    """Draws training (lines) and held-out (points) perplexity, as in figure 4."""
    figure, axes = plt.subplots(figsize=(8, 5))
    for name, result in results.items():
        every = result["args"]["eval_every"]
        steps = [every * (i + 1) for i in range(len(result["train_perplexity"]))]
        (line,) = axes.plot(steps, result["train_perplexity"], label=name)
        axes.plot(steps, result["held_out_perplexity"], "o", color=line.get_color())
    axes.set_yscale("log")
    axes.set_xlabel("training step")
    axes.set_ylabel("perplexity (log)")
    axes.set_title(f"training (line, mean of {every} steps) and held-out (points)")
    axes.grid(True, which="both", alpha=0.3)
    axes.legend()
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    plt.close(figure)
