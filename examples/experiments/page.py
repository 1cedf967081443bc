"""What docs/gallery.md, its pages and the README show of the recorded results."""

import importlib
import os
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from experiments import curves
from experiments.compare import Comparison
from experiments.exponents import Figure
from experiments.flags import EXAMPLES
from experiments.records import recorded
from experiments.report import Result, markdown, optional
from experiments.techniques import techniques
from experiments.verdicts import first_difference, headline, of_forms, verdicts

PAGE = EXAMPLES.parent / "docs" / "gallery.md"
README = EXAMPLES.parent / "README.md"
FIGURES = PAGE.parent / "figures" / "gallery"
MISSING_NAMED = 12
# The picture of the README: experiments and their settings, by title, in which the
# verdict on mixed precision stands.
IN_README = {
    "A translator in FP32 and in mixed precision:\n{verdict}": (
        "translation",
        ["fp32", "fp32 seed 1", "fp32 seed 2", "mixed"],
    ),
    "An autoencoder: without loss scaling\nit stops learning": (
        "where_it_breaks/image_to_image",
        ["fp32", "mixed", "mixed, no scaling"],
    ),
}
# Folders with a compare.py, in the order of the paper's section 4.
EXPERIMENTS = [
    "image_classification",
    "image_classification/converged",
    "object_detection",
    "speech_recognition",
    "translation",
    "language_model",
    "image_generation",
    "where_it_breaks/image_to_image",
    "where_it_breaks/super_resolution",
    "where_it_breaks/fine_tuning",
]
# What is written stands between two such comments: what, and of which experiment.
BLOCK = re.compile(r"(<!-- (\w+)(?:: ([\w/]+))? -->\n).*?(<!-- end -->)", re.DOTALL)


def comparison_of(experiment: str) -> Comparison:
    """Returns what is compared of an experiment."""
    module = experiment.replace("/", ".")
    return importlib.import_module(f"{module}.compare").COMPARISON


def pages() -> list[Path]:
    """Returns the files of the gallery: the index, and a page an experiment."""
    return [PAGE, *sorted(PAGE.with_suffix("").glob("*.md"))]


def gallery() -> str:
    """Returns the text of all pages of the gallery."""
    return "\n".join(path.read_text() for path in pages())


def blocks(kind: str) -> list[str]:
    """Returns what the gallery's blocks of a kind are of: places, or scripts."""
    return [block[3] for block in BLOCK.finditer(gallery()) if block[2] == kind]


def with_tables(page: str, folder: Path) -> str:
    """Returns a page with the sentences, tables and captions of its results.

    Args:
        page: its text.
        folder: in which it is; pictures are linked from there.
    """
    write: dict[str, Callable[[Any], str]] = {
        "results": lambda place: table(place, folder),
        "paired": lambda place: verdicts(*measured(place)),
        "forms": lambda place: of_forms(*measured(place)),
        "headline": lambda place: headline(*measured(place)),
        "figure": lambda script: captioned(paper_figure(script), folder),
        "techniques": lambda _: techniques(measured),
        "machines": lambda _: machines(blocks("results")),
    }
    return BLOCK.sub(lambda m: m[1] + write[m[2]](m[3]) + m[4], page)


def measured(place: str) -> tuple[Comparison, dict[str, Result]]:
    """Returns what is planned at a place, experiment/preset, and what is recorded."""
    experiment, _, preset = place.rpartition("/")
    comparison = comparison_of(experiment).of(preset)
    found = recorded(comparison.folder, preset)
    names = [name for name in comparison.settings if name in found]
    return comparison, {name: found[name] for name in names}


def table(place: str, folder: Path) -> str:
    """Returns the results of an experiment, a setting a row, and their curves."""
    comparison, results = measured(place)
    missing = [name for name in comparison.settings if name not in results]
    if not results:
        return "Not measured yet.\n"
    columns = ["setting", *comparison.measures, "steps", "loss scale", "skipped"]
    rows = (
        [
            name,
            *(f"{result['measures'][measure]:.4g}" for measure in comparison.measures),
            str(result["flags"]["steps"]),
            optional(result["loss_scale"]),
            optional(result["skipped_steps"]),
        ]
        for name, result in results.items()
    )
    lines = [*markdown(columns, rows)]
    if len(results) > 1:
        picture = os.path.relpath(figure_of(place), folder)
        lines.append(f"\n![{comparison.curve} by step]({picture})")
    if missing:
        few = len(missing) <= MISSING_NAMED
        which = "; ".join(missing) if few else f"{len(missing)} other settings"
        lines.append(f"\nNot measured yet: {which}.")
    return "\n".join(lines) + "\n"


def machines(places: Sequence[str]) -> str:
    """Returns what the results were made on, how many, and for how long: a table."""
    seconds: dict[str, list[float]] = {}
    for place in places:
        for result in measured(place)[1].values():
            runs = seconds.setdefault(_machine(result["machine"]), [])
            runs.append(result["seconds"])
    rows = [
        [machine, str(len(runs)), f"{sum(runs) / 3600:.1f}"]
        for machine, runs in sorted(seconds.items(), key=lambda item: -len(item[1]))
    ]
    return "\n".join(markdown(["machine", "runs", "hours"], rows)) + "\n"


def _machine(machine: dict[str, Any]) -> str:
    parts = [machine["processor"], f"{machine['cores']} cores"]
    parts += [] if machine["gpu"] == "none" else [machine["gpu"]]
    parts += [f"kernels {machine['kernels']}", f"TensorFlow {machine['tensorflow']}"]
    return ", ".join([*parts, f"Keras {machine['keras']}"])


def figure_of(place: str) -> Path:
    """Returns the file of the curves of a place."""
    parts = place.removesuffix("/demo").split("/")
    return FIGURES / f"{'_'.join(parts)}.svg"


def paper_figure(script: str) -> Figure:
    """Returns the figure of the paper that a script of an experiment draws."""
    return importlib.import_module(script.replace("/", ".")).FIGURE


def captioned(figure: Figure, folder: Path) -> str:
    """Returns a figure of the paper, and below it what is seen."""
    path = os.path.relpath(FIGURES / f"{figure.name}.svg", folder)
    return f"![{figure.title}]({path})\n\n{figure.caption(figure.recorded())}\n"


def draw_gallery() -> None:
    """Draws all that the gallery shows of the recorded results."""
    FIGURES.mkdir(parents=True, exist_ok=True)
    for place in blocks("results"):
        comparison, results = measured(place)
        if len(results) > 1:
            comparison.draw(results, figure_of(place))
    for script in blocks("figure"):
        figure = paper_figure(script)
        figure.draw(figure.recorded(), FIGURES / f"{figure.name}.svg")


def draw_readme() -> None:
    """Draws what the README shows of the recorded results."""
    panels = []
    for title, (experiment, names) in IN_README.items():
        comparison, results = measured(f"{experiment}/demo")
        shown = curves.by_setting({name: results[name] for name in names})
        title = title.format(verdict=first_difference(comparison, results).verdict)
        panel = curves.Panel(title, shown, comparison.curve, comparison.log_scale)
        panels.append(panel)
    curves.draw(FIGURES.parent / "readme.svg", panels)
