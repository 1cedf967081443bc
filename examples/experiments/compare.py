"""Trains one experiment in several settings, each in a process of its own."""

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from experiments import curves, report
from experiments.flags import build_folder
from experiments.paired import Margin, beside_seeds
from experiments.precision import ALL_FORMS, FORMS, setting_of
from experiments.records import record, recorded


def seeds(setting: str, flags: Sequence[str], count: int) -> dict[str, list[str]]:
    """Returns a setting with the seeds from 0 on, of which 0 is not named."""
    others = range(1, count)
    named = {f"{setting} seed {n}": [*flags, "--seed", str(n)] for n in others}
    return {setting: [*flags], **named}


FP32 = ["--precision", "fp32"]
MIXED = ["--precision", "mixed"]
NO_SCALING = ["--precision", "mixed-no-scaling"]
NO_MASTERS = ["--precision", "mixed-no-masters"]
# What most experiments are measured with; a constant scale comes with each of them.
SETTINGS = {
    **seeds("fp32", FP32, 3),
    **seeds("mixed", MIXED, 3),
    "mixed, no scaling": NO_SCALING,
    "mixed, no masters": NO_MASTERS,
    "plain fp16": ["--precision", "plain-fp16"],
}


def forms(count: int, names: Iterable[str] = FORMS) -> dict[str, list[str]]:
    """Returns the settings of forms of masters and state, with so many seeds each."""
    found: dict[str, list[str]] = {}
    for name in names:
        found |= seeds(setting_of(name), ["--precision", name], count)
    return found


def constant(scale: int) -> dict[str, list[str]]:
    """Returns the setting of mixed precision with a constant loss scale."""
    return {f"mixed, scale {scale}": [*MIXED, "--loss-scale", str(scale)]}


@dataclass(frozen=True)
class Comparison:
    """What is compared of an experiment.

    Attributes:
        folder: that of the experiment, with train.py.
        settings: the flags of train.py, by the name of the setting.
        demo: the names of those that are trained by default.
        measures: names of measures in result.json, the columns of the table.
        margins: by measure, how far from FP32 a precision may end and still count as
            equal to it. They were chosen before any difference was computed.
        curve: the column of the log that is drawn.
        log_scale: whether it is drawn on a logarithmic scale.
        groups: parts of the names of settings that are drawn apart from others; one
            with none of them is of the first.
        pooled: whether the groups are networks, whose pairs count together.
        short: flags that make it short, for `make gallery`.
        planned: by preset, the names of the settings that it is measured with; a preset
            that is not named has all of them.
        prepare: called before the first run, with the preset and the flags of all of
            them; makes what they begin with.
        show: called with the results by setting and the folder of the comparison; what
            it returns is printed before the table.
    """

    folder: Path
    settings: Mapping[str, Sequence[str]]
    demo: Sequence[str]
    measures: Sequence[str]
    margins: Mapping[str, Margin] = field(default_factory=dict)
    curve: str = "loss"
    log_scale: bool = False
    groups: Sequence[str] = ()
    pooled: bool = False
    short: Sequence[str] = ()
    planned: Mapping[str, Sequence[str]] = field(default_factory=dict)
    prepare: Callable[[list[str]], None] | None = None
    show: Callable[[report.Results, Path], str] | None = None

    def of(self, preset: str) -> "Comparison":
        """Returns what is compared of a preset: the settings planned for it."""
        names = self.planned.get(preset, self.settings)
        return replace(self, settings={name: self.settings[name] for name in names})

    def main(self, argv: Sequence[str] | None = None) -> None:
        """Trains the settings that the flags name, and prints and draws the results.

        Every setting runs in its own process, so that peak memory is its own. Flags
        that are not of this script are handed on to train.py.
        """
        args, flags = self._parse(argv)
        start = time.perf_counter()
        files = {n: args.out / slug(n) / "result.json" for n in args.settings}
        todo = [n for n in files if not (args.keep and files[n].is_file())]
        if todo and self.prepare is not None:
            self.prepare(["--preset", args.preset, *flags])
        for name in todo:
            self._train(name, args, flags)
        results = {name: json.loads(file.read_text()) for name, file in files.items()}
        if args.record:
            for name, result in results.items():
                record(self.folder, args.preset, name, result)
        picture = args.out / f"{self.curve}.png"
        self.draw(results, picture)
        if self.show is not None:
            print("\n" + self.show(results, args.out))
        print(report.table(results, self.measures))
        print(f"\nCurves: {picture.resolve()}")
        print(f"{time.perf_counter() - start:.0f} s")
        if {"fp32", "mixed"} <= results.keys():
            seeds_of_fp32 = recorded(self.folder, args.preset)
            pair = results["fp32"], results["mixed"]
            print("\n" + beside_seeds(seeds_of_fp32, *pair, self.measures[0]))

    def draw(self, results: report.Results, path: Path) -> None:
        """Draws the curves of results, by setting, into a file."""
        # The curves of forms of state would hide that of mixed precision.
        others = {
            name: result
            for name, result in results.items()
            if result["flags"].get("precision") not in ALL_FORMS
        }
        drawn = others or results
        panels = curves.panels(drawn, self.curve, self.log_scale, self.groups)
        curves.draw(path, panels)

    def _parse(
        self, argv: Sequence[str] | None
    ) -> tuple[argparse.Namespace, list[str]]:
        parser = argparse.ArgumentParser(
            description=f"Compares precisions of {self.folder.name}.",
            epilog="Other flags are those of train.py, and are handed on to it.",
            allow_abbrev=False,
        )
        parser.add_argument("--preset", default="demo")
        parser.add_argument(
            "--settings",
            nargs="+",
            default=["demo"],
            metavar="NAME",
            help=f"'demo' ({'; '.join(self.demo)}), 'all', or names: "
            + "; ".join(self.settings),
        )
        parser.add_argument("--out", type=Path, help="a folder")
        parser.add_argument(
            "--keep", action="store_true", help="train only settings without a result"
        )
        parser.add_argument(
            "--record", action="store_true", help="add the results to results.jsonl"
        )
        args, flags = parser.parse_known_args(argv)
        args.out = args.out or build_folder(self.folder) / args.preset
        known = {"demo": [*self.demo], "all": [*self.of(args.preset).settings]}
        chosen = [n for name in args.settings for n in known.get(name, [name])]
        unknown = [name for name in chosen if name not in self.settings]
        if unknown:
            parser.error(
                f"--settings must be 'demo', 'all' or of {list(self.settings)}. "
                f"Received: {unknown}."
            )
        args.settings = chosen
        return args, flags

    def _train(self, name: str, args: argparse.Namespace, flags: list[str]) -> None:
        out = args.out / slug(name)
        flags = ["--preset", args.preset, *self.settings[name], *flags]
        flags += ["--out", str(out)]
        # A run that was interrupted goes on; one that is there begins anew.
        if (out / "checkpoints").is_dir() and args.keep:
            flags.append("--resume")
        run_script(self.folder / "train.py", *flags)


def run_script(script: Path, *flags: str) -> None:
    """Runs a script of Python, and ends this one if that fails.

    Raises:
        SystemExit: the script failed; it has said why.
    """
    line = " ".join([str(script), *flags])
    print(f"\n$ python {line}", flush=True)
    status = subprocess.run([sys.executable, script, *flags]).returncode
    if status:
        raise SystemExit(
            f"error: python {line} ended with status {status}; its reason is above. "
            "With --keep, what has a result is not trained again."
        )


def slug(setting: str) -> str:
    """Returns the name of a setting as that of a file."""
    return setting.replace(", ", "-").replace(" ", "-").replace("^", "")
