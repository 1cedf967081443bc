"""A training run: its flags and folder, the training, what it leaves behind."""

import importlib.metadata
import json
import os
import resource
import shutil
import statistics
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf

import keras_mp
from experiments.files import write_json
from experiments.flags import parse
from experiments.log import Clock, Row, cut_log, read_log
from experiments.precision import RoundMasters, precision_of

# Flags that change where and how long a run trains, and no number of it.
_FREE = {"out", "resume", "verbose"}


class Run:
    """What the training scripts of all experiments share.

    `args.out` gets `flags.json`, `log.csv`, `checkpoints/` and, at the end,
    `result.json`. A run that was interrupted goes on with `--resume`, and ends as if it
    had never stopped. A folder that holds a run with other flags is refused.

    Args:
        folder: that of the experiment.
        argv, choices: as for `flags.parse`.
        may_change: the flags, besides `steps`, that may change when it is resumed.

    Attributes:
        args: the flags.
        dtype_policy: `"float32"` or `"float16"`.
        wrap_options: arguments of `keras_mp.wrap`, or None: the optimizer is not
            wrapped.
        out: where this process writes.
    """

    def __init__(
        self,
        folder: Path,
        argv: Sequence[str] | None = None,
        choices: Mapping[str, Sequence[Any]] | None = None,
        may_change: Collection[str] = (),
    ) -> None:
        self.args = parse(folder, argv, choices)
        self.experiment = folder.name
        self.out: Path = self.args.out
        self.precision = precision_of(self.args.precision, self.args.loss_scale)
        self.dtype_policy = self.precision.dtype_policy
        self.wrap_options = self.precision.wrap_options
        self._done: int | None = None
        if self.precision.computes_in_fp32:
            os.environ["KERAS_MP_OPS"] = "reference"
        self._open_folder(may_change)
        keras.utils.set_random_seed(self.args.seed)

    def restore(self, model: keras.Model) -> list[Row]:
        """Loads the last checkpoint if asked to; returns the rows of the log so far."""
        done = 0
        if self.args.resume:
            done = keras_mp.Checkpoints(self.args.out / "checkpoints").restore(model)
        else:
            shutil.rmtree(self.out / "checkpoints", ignore_errors=True)
        self._done = done
        rows = read_log(self.args.out / "log.csv", done)
        cut_log(self.out / "log.csv", done)
        return rows

    def fit(
        self,
        model: keras.Model,
        batches: tf.data.Dataset,
        validation_data: Any = None,
        callbacks: Sequence[keras.callbacks.Callback] = (),
        fit: Callable[..., Any] | None = None,
        on_collapse: str = "raise",
    ) -> list[Row]:
        """Trains for `args.steps` steps and evaluates every `args.eval_every`.

        Args:
            model: compiled. It may have been restored.
            batches: endless and shuffled by itself, the same in every run.
            validation_data: as for `Model.fit`.
            callbacks: list of what also runs.
            fit: in the place of `Model.fit`, called with the same arguments.
            on_collapse: that of `keras_mp.LossScaleCallback`.

        Returns:
            The rows of the log, one for each evaluation.
        """
        if self._done is None:
            self.restore(model)
        done, every = self._done or 0, self.args.eval_every
        if isinstance(model.optimizer, keras_mp.FP32MasterOptimizer):
            watch = keras_mp.LossScaleCallback(on_collapse=on_collapse)
            callbacks = [watch, *callbacks]
        if not self.precision.keeps_masters:
            callbacks = [RoundMasters(), *callbacks]
        log = keras.callbacks.CSVLogger(self.out / "log.csv", append=self.args.resume)
        # Checkpoints last: a row of the log is written before its checkpoint.
        saving = keras_mp.Checkpoints(self.out / "checkpoints")
        train = fit or partial(model.fit, shuffle=False)
        train(
            batches.skip(done * every),
            validation_data=validation_data,
            epochs=self.args.steps // every,
            initial_epoch=done,
            steps_per_epoch=every,
            callbacks=[Clock(), *callbacks, log, saving],
            verbose=self.args.verbose,
        )
        # The most memory that the process has held so far, in MB.
        self._peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        self._weights = model.count_params()
        return read_log(self.out / "log.csv")

    def finish(self, measures: Mapping[str, float], **more: Any) -> dict[str, Any]:
        """Writes result.json and returns what it holds.

        Args:
            measures: the numbers that the experiment is judged by.
            **more: what else is to be kept of it, as JSON can hold it.
        """
        log = read_log(self.out / "log.csv")
        result = {
            "experiment": self.experiment,
            "flags": self._flags(),
            "machine": _machine(),
            "weights": self._weights,
            "measures": {name: float(value) for name, value in measures.items()},
            "step_seconds": statistics.median(row["step_seconds"] for row in log),
            "seconds": sum(row["seconds"] for row in log),
            "peak_mb": self._peak_mb,
            "loss_scale": log[-1].get("loss_scale"),
            "skipped_steps": log[-1].get("skipped_steps"),
            "log": log,
            **more,
        }
        write_json(self.out / "result.json", result)
        shown = ", ".join(f"{name} {x:.4g}" for name, x in measures.items())
        print(f"{self.experiment}, {self.args.precision}: {shown}")
        return result

    def _flags(self) -> dict[str, Any]:
        """Returns the flags that decide the result; of a file of data its name."""
        flags = {k: v for k, v in vars(self.args).items() if k not in _FREE}
        return flags | {"data": Path(str(flags["data"])).name}

    def _open_folder(self, may_change: Collection[str]) -> None:
        """Makes the folder, unless it is that of a run with other flags."""
        path = self.out / "flags.json"
        flags = self._flags()
        found = json.loads(path.read_text()) if path.is_file() else flags
        free = {"steps", *(may_change if self.args.resume else ())}
        names = sorted({*found, *flags} - free)
        others = [name for name in names if found.get(name) != flags.get(name)]
        if others:
            pairs = (f"{n}: {found.get(n)!r} there, {flags.get(n)!r}" for n in others)
            raise ValueError(
                "A folder holds one run. Received: --out "
                f"{self.out}, where a run with other flags is ({'; '.join(pairs)} "
                "here). Choose another --out, or remove that folder."
            )
        self.out.mkdir(parents=True, exist_ok=True)
        write_json(path, flags)


def _machine() -> dict[str, str | int]:
    """Returns processor, cores, GPU, instruction set of the kernels, and versions."""
    info = keras_mp.ops.build_info()
    return {
        "processor": info["processor"],
        "cores": os.cpu_count() or 1,
        "gpu": info["gpu"].partition(": ")[0],
        "kernels": info.get("cpu", info["route"]),
        "tensorflow": tf.__version__,
        "keras": keras.__version__,
        "keras_mp": importlib.metadata.version("keras_mp"),
    }
