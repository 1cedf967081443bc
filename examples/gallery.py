"""Trains the experiments, and writes their results into docs/gallery.md.

    python examples/gallery.py train                       # a short form of all of them
    python examples/gallery.py train language_model        # or of one
    python examples/gallery.py tables                      # from results/ into the page

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
from experiments.report import Result, optional

EXAMPLES = Path(__file__).resolve().parent
PAGE = EXAMPLES.parent / "docs" / "gallery.md"
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
# What `tables` writes stands between two such comments.
BLOCK = re.compile(r"(<!-- results: ([\w/]+)/(\w+) -->\n).*?(<!-- end -->)", re.DOTALL)


def comparison_of(experiment: str) -> Comparison:
    """Returns what is compared of an experiment."""
    module = experiment.replace("/", ".")
    return importlib.import_module(f"{module}.compare").COMPARISON


def experiments_here() -> list[str]:
    """Returns the names of the experiments that there are, in their order."""
    return [name for name in EXPERIMENTS if (EXAMPLES / name / "compare.py").is_file()]


def train(names: Sequence[str]) -> None:
    """Trains the short form of some experiments, one after the other."""
    start = time.perf_counter()
    for name in names:
        print(f"\n=== {name} ===", flush=True)
        comparison = comparison_of(name)
        comparison.main([*comparison.short, "--out", f"build/gallery/{name}"])
    print(f"\nAll of it: {(time.perf_counter() - start) / 60:.0f} minutes")


def with_tables(page: str) -> str:
    """Returns the page with the tables that its results make."""
    return BLOCK.sub(lambda m: m[1] + table(m[2], m[3]) + m[4], page)


def table(experiment: str, preset: str) -> str:
    """Returns the results of an experiment: a setting a row, and what they ran on."""
    comparison = comparison_of(experiment)
    folder = comparison.folder / "results" / preset
    files = {name: folder / f"{slug(name)}.json" for name in comparison.settings}
    results = {n: json.loads(f.read_text()) for n, f in files.items() if f.is_file()}
    missing = [name for name in files if name not in results]
    if not results:
        return "Not measured yet.\n"
    lines = [*_rows(results, comparison.measures), *_machines(results)]
    if missing:
        lines.append(f"\nNot measured yet: {'; '.join(missing)}.")
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
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    commands = parser.add_subparsers(dest="command", required=True)
    training = commands.add_parser("train", help="train the short forms")
    training.add_argument("names", nargs="*", help=f"of {experiments_here()}")
    commands.add_parser("tables", help="write the tables of docs/gallery.md")
    args = parser.parse_args(argv)
    if args.command == "tables":
        PAGE.write_text(with_tables(PAGE.read_text()))
        return
    names = args.names or experiments_here()
    unknown = sorted({*names} - {*experiments_here()})
    if unknown:
        parser.error(f"Names must be of {experiments_here()}. Received: {unknown}.")
    train(names)


if __name__ == "__main__":
    main()
