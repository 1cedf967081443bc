"""Trains the experiments, and writes their results into the gallery of docs/.

python examples/gallery.py train                       # a short form of all of them
python examples/gallery.py train language_model        # or of one
python examples/gallery.py train speech_recognition --data FILE
python examples/gallery.py measure    # what docs/gallery.md has no result of, hours
python examples/gallery.py tables     # tables and figures in docs/, from results.jsonl
"""

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from experiments import page
from experiments.compare import Comparison


def train(names: Sequence[str], flags: Sequence[str]) -> None:
    """Trains the short form of some experiments, one after the other.

    Args:
        names: of experiments.
        flags: of their train.py, after those of the short form.

    Raises:
        SystemExit: some have failed.
    """
    start, failed = time.perf_counter(), []
    for name in names:
        comparison = page.comparison_of(name)
        run = [*comparison.short, *flags, "--out", f"build/gallery/{name}"]
        if not succeeds(name, comparison, run):
            failed.append(name)
    print(f"\nAll of it: {(time.perf_counter() - start) / 60:.0f} minutes")
    if failed:
        sys.exit(f"error: there is no result of {', '.join(failed)}; see above.")


def measure(names: Sequence[str], flags: Sequence[str]) -> None:
    """Trains what the gallery has no result of, and records each result at once.

    Ctrl-C stops it, and so may a crash: the same command goes on where it was, in the
    middle of a run.

    Args:
        names: of experiments.
        flags: where their data are.

    Raises:
        SystemExit: it was stopped, or some have failed.
    """
    places = [p for p in page.blocks("results") if p.rpartition("/")[0] in names]
    todo = {}
    for place in places:
        comparison, results = page.measured(place)
        run = ["--preset", place.rpartition("/")[2], "--keep", "--record", *flags]
        for setting in comparison.settings:
            if setting not in results:
                todo[f"{place}, {setting}"] = comparison, [*run, "--settings", setting]
    print(f"{len(todo)} settings have no result: {'; '.join(todo) or '-'}")
    start, failed = time.perf_counter(), []
    for done, (name, (comparison, run)) in enumerate(todo.items()):
        try:
            if not succeeds(f"{done + 1} of {len(todo)}: {name}", comparison, run):
                failed.append(name)
        except KeyboardInterrupt:
            print(f"\n{done} of {len(todo)} are done. The same command goes on.")
            sys.exit(130)
    print(f"\nAll of it: {(time.perf_counter() - start) / 60:.0f} minutes")
    runs = [run for place in places for run in page.measured(place)[1].values()]
    hours = sum(run["seconds"] for run in runs) / 3600
    print(f"What is recorded now trained for {hours:.1f} hours.")
    if failed:
        sys.exit(f"error: there is no result of {'; '.join(failed)}; see above.")


def succeeds(name: str, comparison: Comparison, flags: Sequence[str]) -> bool:
    """Runs a comparison and returns whether it has a result.

    Where one fails, such as for data that cannot be downloaded, others are to follow.
    """
    print(f"\n=== {name} ===", flush=True)
    try:
        comparison.main(flags)
    except SystemExit as error:
        print(error, file=sys.stderr)
        return False
    return True


def tables() -> None:
    """Draws the figures, and writes what stands between comments of two pages."""
    page.draw_gallery()
    page.draw_readme()
    for path in (*page.pages(), page.README):
        path.write_text(page.with_tables(path.read_text(), path.parent))


def main(argv: Sequence[str] | None = None) -> None:
    here = page.EXPERIMENTS
    parser = argparse.ArgumentParser(
        description=__doc__.partition("\n")[0], allow_abbrev=False
    )
    commands = parser.add_subparsers(dest="command", required=True)
    training = commands.add_parser("train", help="train the short forms")
    measuring = commands.add_parser(
        "measure", help="train what has no recorded result, and record it"
    )
    measuring.add_argument("--data", help="a file, of one experiment")
    for command in (training, measuring):
        command.add_argument("names", nargs="*", help=f"of {here}")
    commands.add_parser("tables", help="write tables and figures of docs/gallery.md")
    args, flags = parser.parse_known_args(argv)
    if flags and args.command != "train":
        parser.error(f"`{args.command}` hands no flags on. Received: {flags}.")
    if args.command == "tables":
        tables()
        return
    if args.command == "measure" and args.data:
        flags = ["--data", args.data]
    names = args.names or here
    unknown = sorted({*names} - {*here})
    if unknown:
        parser.error(f"Names must be of {here}. Received: {unknown}.")
    if flags and len(names) > 1:
        parser.error(
            f"Flags are those of one experiment. Received: {flags} for {names}. "
            "Name one."
        )
    {"train": train, "measure": measure}[args.command](names, flags)


if __name__ == "__main__":
    main()
