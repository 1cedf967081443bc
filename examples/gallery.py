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
from experiments.measuring import measure


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
        comparison = page.comparison_of(name)
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


def tables() -> None:
    """Draws the figures, and writes what stands between comments of two pages."""
    page.draw_page(page.gallery())
    page.draw_readme()
    for path in (*page.pages(), page.README):
        path.write_text(page.with_tables(path.read_text(), path.parent))


def main(argv: Sequence[str] | None = None) -> None:
    here = page.experiments_here()
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
