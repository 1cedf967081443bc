"""log.csv: a row of numbers for every evaluation of a run."""

import csv
import statistics
import time
from itertools import islice
from pathlib import Path
from typing import Any

import keras

from experiments.files import write_whole

Row = dict[str, float]


def read_log(path: Path, rows: int | None = None) -> list[Row]:
    """Returns the first rows of a log; none where there is no log."""
    if not path.is_file():
        return []
    with path.open() as file:
        found = islice(csv.DictReader(file), rows)
        # CSVLogger writes "NA" for held-out numbers where there is no held-out data.
        return [{k: float(v) for k, v in row.items() if v != "NA"} for row in found]


def cut_log(path: Path, rows: int) -> None:
    """Removes the rows after so many: those of epochs that are trained again."""
    if path.is_file():
        lines = path.read_text().splitlines(keepends=True)[: 1 + rows]
        write_whole(path, lambda part: part.write_text("".join(lines)))


class Clock(keras.callbacks.Callback):
    """Puts the seconds of an epoch, and of its median step, into the row."""

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self.steps: list[float] = []
        self.began = time.perf_counter()

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        self.start = time.perf_counter()

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.steps.append(time.perf_counter() - self.start)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        logs["step_seconds"] = statistics.median(self.steps)
        logs["seconds"] = time.perf_counter() - self.began
