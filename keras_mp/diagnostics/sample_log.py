"""`numerics.jsonl`: the samples of a run, a line of JSON each."""

import json
import os
from dataclasses import dataclass
from pathlib import Path

from keras_mp.diagnostics.numerics import Entry


@dataclass(frozen=True)
class Sample:
    """What was seen of one step of training.

    Attributes:
        step: int, its number; the first step of a run has the number 1.
        loss_scale: float, that of the step.
        entries: tuple of `Entry`.
    """

    step: int
    loss_scale: float
    entries: tuple[Entry, ...]

    def to_json(self) -> str:
        """Returns it as a line of JSON, without its end."""
        entries = [entry.to_dict() for entry in self.entries]
        return json.dumps({**vars(self), "entries": entries})

    @classmethod
    def from_json(cls, line: str) -> "Sample":
        """Returns the sample that `to_json` described."""
        data = json.loads(line)
        entries = tuple(Entry.from_dict(entry) for entry in data["entries"])
        return cls(data["step"], data["loss_scale"], entries)


class SampleLog:
    """A file of samples that is whole after a kill, but perhaps for its last line.

    Args:
        directory: path, created if need be.

    Raises:
        OSError: the file cannot be written.
    """

    def __init__(self, directory: Path) -> None:
        self.path = directory / "numerics.jsonl"
        try:
            directory.mkdir(parents=True, exist_ok=True)
            self.path.open("ab").close()
        except OSError as error:
            raise OSError(
                error.errno,
                "NumericsCallback must be able to write to its log_dir. Received: "
                f"{error.strerror}. Mend that, or choose another directory",
                str(self.path),
            ) from error

    def cut(self, step: int) -> list[Sample]:
        """Removes what a resumed run writes again, and returns the samples before.

        Those of later steps than `step`, and a last line that was not finished.

        Args:
            step: int, how many steps were made before.
        """
        lines = self.path.read_text(encoding="utf-8").splitlines(keepends=True)
        samples = [Sample.from_json(line) for line in lines if line.endswith("\n")]
        kept = [sample for sample in samples if sample.step <= step]
        if len(kept) < len(lines):
            part = self.path.with_suffix(".part")
            _write(part, "wb", kept)
            os.replace(part, self.path)
        return kept

    def append(self, sample: Sample) -> None:
        """Writes a line, and flushes it to the disk."""
        _write(self.path, "ab", [sample])


def _write(path: Path, mode: str, samples: list[Sample]) -> None:
    """Writes lines at once, so that a kill leaves at most one that is not finished."""
    text = "".join(f"{sample.to_json()}\n" for sample in samples)
    with path.open(mode) as file:
        file.write(text.encode())
        file.flush()
        os.fsync(file.fileno())
