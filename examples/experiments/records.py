"""results.jsonl of an experiment: a line of JSON for each run that was recorded."""

import json
from pathlib import Path
from typing import Any

from experiments.files import write_whole
from experiments.report import Result


def recorded(folder: Path, preset: str) -> dict[str, Result]:
    """Returns the recorded results of a preset, by setting.

    Args:
        folder: that of the experiment.
        preset: its name.
    """
    return {
        setting: result
        for (other, setting), result in _read(folder).items()
        if other == preset
    }


def record(folder: Path, preset: str, setting: str, result: Result) -> None:
    """Records a result, in the place of an earlier one of the same setting."""
    rows = _read(folder) | {(preset, setting): result}
    lines = (
        json.dumps({"preset": preset, "setting": setting, **rows[preset, setting]})
        for preset, setting in sorted(rows)
    )
    text = "".join(f"{line}\n" for line in lines)
    write_whole(_path(folder), lambda part: part.write_text(text))


def _read(folder: Path) -> dict[tuple[str, str], Any]:
    path = _path(folder)
    lines = path.read_text().splitlines() if path.is_file() else []
    rows = map(json.loads, lines)
    return {(row.pop("preset"), row.pop("setting")): row for row in rows}


def _path(folder: Path) -> Path:
    return folder / "results.jsonl"
