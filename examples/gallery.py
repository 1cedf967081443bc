"""Trains the experiments, and writes their results into docs/gallery.md.

    python examples/gallery.py train                       # a short form of all of them
    python examples/gallery.py train language_model        # or of one
    python examples/gallery.py train speech_recognition --data FILE
    python examples/gallery.py tables     # tables and figures, from results/ into docs/

The measured results were made by `compare.py --settings all --record` of each one.
"""

import argparse
import importlib
import json
import re
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

from experiments.compare import Comparison, slug
from experiments.exponents import Figure
from experiments.report import Result, draw_curves, optional, picture

EXAMPLES = Path(__file__).resolve().parent
PAGE = EXAMPLES.parent / "docs" / "gallery.md"
FIGURES = PAGE.parent / "figures" / "gallery"
MISSING_NAMED = 12
# The picture of the README: experiments and their settings, by title.
README = {
    "A translator: mixed precision learns as FP32": (
        "translation",
        ["fp32", "fp32 seed 1", "fp32 seed 2", "mixed"],
    ),
    "An autoencoder: without loss scaling it stops learning": (
        "where_it_breaks/image_to_image",
        ["fp32", "mixed", "mixed, no scaling"],
    ),
}
# Folders with a compare.py, in the order of the paper's section 4.
EXPERIMENTS = [
    "image_classification",
    "object_detection",
    "speech_recognition",
    "translation",
    "language_model",
    "image_generation",
    "where_it_breaks/image_to_image",
    "where_it_breaks/fine_tuning",
]
# What `tables` writes stands between two such comments: a table, or a figure.
BLOCK = re.compile(r"(<!-- results: ([\w/]+)/(\w+) -->\n).*?(<!-- end -->)", re.DOTALL)
FIGURE = re.compile(r"(<!-- figure: ([\w/]+) -->\n).*?(<!-- end -->)", re.DOTALL)


def comparison_of(experiment: str) -> Comparison:
    """Returns what is compared of an experiment."""
    module = experiment.replace("/", ".")
    return importlib.import_module(f"{module}.compare").COMPARISON


def experiments_here() -> list[str]:
    """Returns the names of the experiments that there are, in their order."""
    return [name for name in EXPERIMENTS if (EXAMPLES / name / "compare.py").is_file()]


def train(names: Sequence[str], flags: Sequence[str]) -> None:
    """Trains the short form of some experiments, one after the other.

    Where one fails, such as for data that cannot be downloaded, the others follow.

    Args:
        names: of experiments.
        flags: of their train.py, after those of the short form.

    Raises:
        SystemExit: some have failed.
    """
    start = time.perf_counter()
    failed = []
    for name in names:
        print(f"\n=== {name} ===", flush=True)
        comparison = comparison_of(name)
        try:
            comparison.main(
                [*comparison.short, *flags, "--out", f"build/gallery/{name}"]
            )
        except SystemExit as error:
            print(error, file=sys.stderr)
            failed.append(name)
    print(f"\nAll of it: {(time.perf_counter() - start) / 60:.0f} minutes")
    if failed:
        sys.exit(f"error: there is no result of {', '.join(failed)}; see above.")


def with_tables(page: str) -> str:
    """Returns the page with the tables and captions that its results make."""
    page = BLOCK.sub(lambda m: m[1] + table(m[2], m[3]) + m[4], page)
    return FIGURE.sub(lambda m: m[1] + captioned(paper_figure(m[2])) + m[3], page)


def results_of(comparison: Comparison, preset: str) -> dict[str, Result]:
    """Returns the results that were recorded, by setting."""
    folder = comparison.folder / "results" / preset
    files = {name: folder / f"{slug(name)}.json" for name in comparison.settings}
    return {n: json.loads(f.read_text()) for n, f in files.items() if f.is_file()}


def figure_of(experiment: str, preset: str) -> Path:
    """Returns the file of the curves of an experiment."""
    parts = [*experiment.split("/"), *([] if preset == "demo" else [preset])]
    return FIGURES / f"{'_'.join(parts)}.svg"


def paper_figure(script: str) -> Figure:
    """Returns the figure of the paper that a script of an experiment draws."""
    return importlib.import_module(script.replace("/", ".")).FIGURE


def captioned(figure: Figure) -> str:
    """Returns a figure of the paper, and below it what is seen."""
    path = (FIGURES / f"{figure.name}.svg").relative_to(PAGE.parent)
    return f"![{figure.title}]({path})\n\n{figure.caption(figure.recorded())}\n"


def draw_page(page: str) -> None:
    """Draws all that a page shows of the recorded results."""
    FIGURES.mkdir(parents=True, exist_ok=True)
    for block in BLOCK.finditer(page):
        draw(block[2], block[3])
    for block in FIGURE.finditer(page):
        figure = paper_figure(block[2])
        figure.draw(figure.recorded(), FIGURES / f"{figure.name}.svg")


def draw(experiment: str, preset: str) -> None:
    """Draws the curves of an experiment, where several settings were recorded."""
    comparison = comparison_of(experiment)
    results = results_of(comparison, preset)
    if len(results) > 1:
        comparison.draw(results, figure_of(experiment, preset))


def draw_readme() -> None:
    """Draws what the README shows of the recorded results."""
    path = FIGURES.parent / "readme.svg"
    with picture(path, *README) as axes:
        for each, (experiment, names) in zip(axes, README.values(), strict=True):
            comparison = comparison_of(experiment)
            results = results_of(comparison, "demo")
            shown = {name: results[name] for name in names}
            draw_curves(each, shown, comparison.curve, comparison.log_scale)


def table(experiment: str, preset: str) -> str:
    """Returns the results of an experiment: a setting a row, and what they ran on."""
    comparison = comparison_of(experiment)
    results = results_of(comparison, preset)
    missing = [name for name in comparison.settings if name not in results]
    if not results:
        return "Not measured yet.\n"
    lines = [*_rows(results, comparison.measures), *_machines(results)]
    if len(results) > 1:
        picture = figure_of(experiment, preset).relative_to(PAGE.parent)
        lines.append(f"\n![{comparison.curve} by step]({picture})")
    if missing:
        few = len(missing) <= MISSING_NAMED
        which = "; ".join(missing) if few else f"{len(missing)} other settings"
        lines.append(f"\nNot measured yet: {which}.")
    return "\n".join(lines) + "\n"


def _rows(results: dict[str, Result], measures: Sequence[str]) -> Iterator[str]:
    columns = ["setting", *measures, "steps", "minutes", "loss scale", "skipped"]
    yield _row(columns)
    yield _row(["---"] * len(columns))
    for name, result in results.items():
        yield _row(
            [
                name,
                *(f"{result['measures'][measure]:.4g}" for measure in measures),
                str(result["flags"]["steps"]),
                f"{result['seconds'] / 60:.1f}",
                optional(result["loss_scale"]),
                optional(result["skipped_steps"]),
            ]
        )


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _machines(results: dict[str, Result]) -> Iterator[str]:
    """Yields a sentence for each machine that the results were made on."""
    found: dict[str, list[str]] = {}
    for name, result in results.items():
        found.setdefault(_machine(result["machine"]), []).append(name)
    for machine, names in found.items():
        yield f"\nMade on {machine}: {'; '.join(names)}."


def _machine(machine: dict[str, Any]) -> str:
    parts = [machine["processor"], f"{machine['cores']} cores"]
    parts += [] if machine["gpu"] == "none" else [machine["gpu"]]
    parts += [f"kernels {machine['kernels']}", f"TensorFlow {machine['tensorflow']}"]
    return ", ".join([*parts, f"Keras {machine['keras']}"])


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__.partition("\n")[0], allow_abbrev=False
    )
    commands = parser.add_subparsers(dest="command", required=True)
    training = commands.add_parser("train", help="train the short forms")
    training.add_argument("names", nargs="*", help=f"of {experiments_here()}")
    commands.add_parser("tables", help="write tables and figures of docs/gallery.md")
    args, flags = parser.parse_known_args(argv)
    if args.command == "tables":
        if flags:
            parser.error(f"`tables` has no flags. Received: {flags}.")
        page = PAGE.read_text()
        draw_page(page)
        draw_readme()
        PAGE.write_text(with_tables(page))
        return
    names = args.names or experiments_here()
    unknown = sorted({*names} - {*experiments_here()})
    if unknown:
        parser.error(f"Names must be of {experiments_here()}. Received: {unknown}.")
    if flags and len(names) > 1:
        parser.error(
            f"Flags are those of one experiment. Received: {flags} for {names}. "
            "Name one."
        )
    train(names, flags)


if __name__ == "__main__":
    main()
