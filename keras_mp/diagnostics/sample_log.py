"""`numerics.jsonl`: the samples of a run, a line of JSON each."""

import json
import operator
import os
from dataclasses import dataclass
from pathlib import Path

from keras_mp.diagnostics.numerics import Entry


@dataclass(frozen=True)
class Sample:
    """What was seen of one step of training.

    Attributes:
        step: int, its number; the first step of a run has the number 1.
        loss_scale: float, of the step.
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
        return cls(operator.index(data["step"]), float(data["loss_scale"]), entries)


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
                f"{error.strerror}. Fix that, or choose another directory",
                str(self.path),
            ) from error

    def cut(self, step: int) -> list[Sample]:
        """Removes what a resumed run writes again, and returns the samples before.

        Those of later steps than `step`, and a last line that was not finished.

        Args:
            step: int, how many steps were made before.

        Raises:
            ValueError: a line of the file is no sample. The file does not change.
        """
        *lines, unfinished = self.path.read_bytes().split(b"\n")
        samples = [self._sample(i + 1, line) for i, line in enumerate(lines)]
        kept = [sample for sample in samples if sample.step <= step]
        if unfinished or len(kept) < len(lines):
            part = self.path.with_suffix(".part")
            _write(part, "wb", kept)
            os.replace(part, self.path)
        return kept

    def _sample(self, number: int, line: bytes) -> Sample:
        try:
            return Sample.from_json(line.decode())
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise ValueError(
                "The log of NumericsCallback must have a sample in each line. "
                f"Received: {self.path}, line {number}: {type(error).__name__}: "
                f"{error}. Remove the line, delete the file, or choose another log_dir."
            ) from error

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
