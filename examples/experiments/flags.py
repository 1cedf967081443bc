"""The flags of a training script: those of every experiment, and its preset's."""

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from experiments.precision import PRECISIONS

EXAMPLES = Path(__file__).resolve().parents[1]


def build_folder(folder: Path) -> Path:
    """Returns where the runs of an experiment are: its path in examples/, in build/."""
    is_example = EXAMPLES in folder.parents
    return Path("build") / (folder.relative_to(EXAMPLES) if is_example else folder.name)


def parse(
    folder: Path,
    argv: Sequence[str] | None = None,
    choices: Mapping[str, Sequence[Any]] | None = None,
) -> argparse.Namespace:
    """Reads the flags; what they leave open comes from the preset.

    Args:
        folder: that of the experiment, with presets/*.json. Every value of a preset is
            also a flag: --learning-rate 0.1, --no-lowercase, --sizes '[1, 2]'.
        argv: the flags, or None for those of the command line.
        choices: the values that a flag of the preset may have.
    """
    presets = sorted(path.stem for path in (folder / "presets").glob("*.json"))
    first = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    first.add_argument("--preset", choices=presets, default="demo")
    preset, _ = first.parse_known_args(argv)
    parser = argparse.ArgumentParser(parents=[first], allow_abbrev=False)
    parser.add_argument("--precision", choices=PRECISIONS, default="mixed")
    parser.add_argument(
        "--loss-scale",
        type=_loss_scale,
        default="dynamic",
        help="'dynamic', 'statistical' or a number, for mixed",
    )
    parser.add_argument("--seed", type=int, default=0)
    default = build_folder(folder) / preset.preset
    parser.add_argument("--out", type=Path, default=default, help="a folder")
    parser.add_argument("--resume", action="store_true")
    bar = 1 if sys.stdout.isatty() else 2
    parser.add_argument("--verbose", type=int, default=bar, help="as in Model.fit")
    values = json.loads((folder / f"presets/{preset.preset}.json").read_text())
    for name, value in values.items():
        flag = "--" + name.replace("_", "-")
        if isinstance(value, bool):
            action = argparse.BooleanOptionalAction
            parser.add_argument(flag, action=action, default=value)
        else:
            kind = json.loads if isinstance(value, list) else type(value)
            allowed = (choices or {}).get(name)
            parser.add_argument(flag, type=kind, choices=allowed, default=value)
    args = parser.parse_args(argv)
    if args.loss_scale != "dynamic" and args.precision != "mixed":
        parser.error(
            "--loss-scale is for --precision mixed. Received: --precision "
            f"{args.precision} --loss-scale {args.loss_scale}."
        )
    return args


def _loss_scale(text: str) -> str | float:
    return text if text in ("dynamic", "statistical") else float(text)
