"""Trains, one after the other, what has no recorded result yet."""

import sys
import time
from collections.abc import Sequence

from experiments import page


def missing(names: Sequence[str]) -> list[tuple[str, str]]:
    """Returns the place and the setting of what the page shows no result of.

    Args:
        names: of experiments.
    """
    places = page.blocks(page.gallery(), "results")
    return [
        (place, setting)
        for place in places
        if place.rpartition("/")[0] in names
        for setting in page.at(place)[0].settings
        if setting not in page.results_at(place)
    ]


def measure(names: Sequence[str], flags: Sequence[str]) -> None:
    """Trains all that is missing, and records each result as soon as it is there.

    Ctrl-C stops it, and so may a crash: the same command goes on where it was, in the
    middle of a run. Where one fails, the others follow.

    Args:
        names: of experiments.
        flags: where their data are.

    Raises:
        SystemExit: it was stopped, or some have failed.
    """
    todo, start, failed = missing(names), time.perf_counter(), []
    print(f"{len(todo)} settings have no result: {_shown(todo)}")
    for done, (place, setting) in enumerate(todo):
        print(f"\n=== {done + 1} of {len(todo)}: {place}, {setting} ===", flush=True)
        comparison, preset = page.at(place)
        run = ["--preset", preset, "--settings", setting, "--keep", "--record"]
        try:
            comparison.main([*run, *flags])
        except KeyboardInterrupt:
            print(f"\n{done} of {len(todo)} are done. The same command goes on.")
            sys.exit(130)
        except SystemExit as error:
            print(error, file=sys.stderr)
            failed.append((place, setting))
    print(f"\nAll of it: {(time.perf_counter() - start) / 60:.0f} minutes")
    print(f"What is recorded now trained for {_hours(names):.1f} hours.")
    if failed:
        sys.exit(f"error: there is no result of {_shown(failed)}; see above.")


def _shown(settings: Sequence[tuple[str, str]]) -> str:
    return "; ".join(f"{place}, {setting}" for place, setting in settings) or "-"


def _hours(names: Sequence[str]) -> float:
    places = page.blocks(page.gallery(), "results")
    found = [p for p in places if p.rpartition("/")[0] in names]
    runs = [run for place in found for run in page.results_at(place).values()]
    return sum(run["seconds"] for run in runs) / 3600
