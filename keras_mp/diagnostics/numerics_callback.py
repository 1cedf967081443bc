"""`NumericsCallback`: what FP16 does to a model, sampled while it trains."""

import importlib.util
import os
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Optional

import keras

from keras_mp import keras_internals
from keras_mp.arguments import check_tensorflow, whole_number
from keras_mp.diagnostics.gradient_sampler import GradientSampler
from keras_mp.diagnostics.numerics import Entry
from keras_mp.diagnostics.plot import plot_exponents, plot_lost
from keras_mp.diagnostics.sample_log import Sample, SampleLog
from keras_mp.diagnostics.statistics import TensorStatistics, total
from keras_mp.diagnostics.tensorboard import write_summaries
from keras_mp.diagnostics.updates import Update
from keras_mp.layers.probe import Probe
from keras_mp.optimizer import FP32MasterOptimizer
from keras_mp.precision.batch import fp32_value, master_values
from keras_mp.watched_optimizers import wrapped_optimizer

# What is drawn, with the titles of both pictures.
_PANELS = {
    "activation_gradient": "Activation gradients",
    "weight_gradient": "Weight gradients",
    "update": "Updates",
}
_MAPS = {
    "activation_gradient": "Activation gradients that FP16 makes zero, share",
    "weight_gradient": "Weight gradients that FP16 makes zero, share",
    "update": "Weights that FP16 without masters leaves unchanged, share",
}


class NumericsCallback(keras.callbacks.Callback):
    """Samples what FP16 does to the values of a model while `fit` trains it.

    At every n-th step the unscaled weight gradients, the weights (their masters), the
    updates, and what passes through a `keras_mp.layers.Probe` with its gradient are
    counted by exponent, as by `inspect`: exact zeros, what FP16 would lose, make
    subnormal or let overflow, and the updates that do not change an FP16 weight without
    a master. Gradients are counted in the step, the rest next to it; training is
    bit-identical. The step is traced once more, at the beginning; a `fit` that an
    exception or Ctrl-C ended leaves nothing in the steps that follow.

    With `log_dir` a sample is a line of JSON in `numerics.jsonl`, flushed to the disk;
    TensorBoard shows it under `numerics/<layer or weight>`; and at the end of training
    `exponents.png` and `lost.png` are drawn: the exponents of all samples, and the
    share lost of each layer at each step. A run that is resumed from a checkpoint
    continues in the same files, and steps that are trained again are not listed twice;
    a run that starts again also starts the file again.

    With several replicas, the gradients of all replicas are counted together, before
    they are summed. With `steps_per_execution` above 1 there are no updates, which
    could not be told apart, and of several samples in one execution there is the last.

    Args:
        every: int >= 1, in steps. The first step has the number 1, so that with the
            gradients of `every` steps accumulated it is those with an update that are
            sampled. Defaults to 200.
        log_dir: str or path, used by one run only. Defaults to None: nothing is
            written.

    Attributes:
        samples: list of samples, with `step`, `loss_scale` and `entries`. Each entry
            has `path`, `kind` and `statistics`, as in `Numerics`. In a resumed run with
            `log_dir`, the earlier samples are there as well.

    Raises:
        OSError: in `fit`, `log_dir` cannot be written to.
        RuntimeError: in `fit`, Keras is on another backend than TensorFlow.
        TypeError: `every` is not an int.
        ValueError: `every` is below 1; in `fit`, the optimizer is not wrapped, there is
            another `NumericsCallback`, or `numerics.jsonl` is damaged.

    Example:

    >>> model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    >>> model.compile(keras_mp.wrap("sgd"), loss=lambda y, p: 2.0**-30 * p[:, 0])
    >>> callback = keras_mp.NumericsCallback(every=2)
    >>> x = np.ones((4, 4), "float32")
    >>> history = model.fit(
    ...     x, x[:, :1], batch_size=1, callbacks=[callback], verbose=0)
    >>> [sample.step for sample in callback.samples]
    [2, 4]
    >>> [(e.kind, e.lost_share) for e in callback.samples[0].entries][:2]
    [('weight', 0.0), ('weight_gradient', 1.0)]

    Reference: Mixed Precision Training, sections 3.1 and 3.2, figures 2b and 3.
    """

    def __init__(
        self, every: int = 200, log_dir: str | os.PathLike[str] | None = None
    ) -> None:
        super().__init__()
        self.every = whole_number("every", every, "Try 200.")
        self.log_dir = None if log_dir is None else Path(log_dir)
        self.samples: list[Sample] = []
        self._log: SampleLog | None = None
        self._writer: Any = None
        self._sampler: GradientSampler
        self._function: SampledTrainFunction
        self._step: int | None = None
        self._before: list[Any] | None = None

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Checks what it needs, and has the step traced with the counting in it."""
        optimizer = self._optimizer()
        probes = [
            layer
            for layer in keras_internals.flatten_layers(self.model)
            if isinstance(layer, Probe)
        ]
        self._warn()
        if self.log_dir is not None:
            self._log = SampleLog(self.log_dir)
        self._sampler = GradientSampler(optimizer, probes, self.every)
        self._function = SampledTrainFunction(self.model, self._sampler)
        # Another callback may restore the state of training after this one has begun.
        self._step, self._before = None, None

    def on_train_batch_begin(
        self, batch: int, logs: dict[str, Any] | None = None
    ) -> None:
        """Copies the weights before a step that is sampled."""
        self._announce()
        if self._step is None:
            self._step = self._begin()
        is_sampled = (self._step + 1) % self.every == 0
        if is_sampled and self.model.steps_per_execution == 1:
            self._before = self._weights()

    def on_train_batch_end(
        self, batch: int, logs: dict[str, Any] | None = None
    ) -> None:
        """Collects a sample, after a step or an execution that has one."""
        before = self._step or 0
        self._step = before + self.model.steps_per_execution
        if before // self.every < self._step // self.every:
            self._collect()

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Counts the steps again: the last execution may have had less."""
        if self._step is not None and self.model.steps_per_execution > 1:
            self._step = self._sampler.step

    def on_train_end(self, logs: dict[str, Any] | None = None) -> None:
        """Takes the counting out of the step, and draws the pictures."""
        self.model.make_train_function(force=True)
        self._close_writer()
        if self.log_dir is not None and self.samples and _has_matplotlib():
            self.plot(self.log_dir)

    def plot(self, directory: str | os.PathLike[str], format: str = "png") -> None:
        """Draws the samples so far, as `exponents` and `lost` in a folder.

        Args:
            directory: str or path of a folder, which is created if it does not exist.
            format: str, the suffix of both files: one of matplotlib's formats.
                Defaults to `"png"`.

        Raises:
            ValueError: there is no sample yet.
            ImportError: matplotlib is not installed.
        """
        if not self.samples:
            raise ValueError(
                "The pictures of NumericsCallback need a sample. Received: none after "
                f"fewer steps than every={self.every}. Call `fit` first, or sample "
                "more often."
            )
        entries = [entry for sample in self.samples for entry in sample.entries]
        panels = {
            title: total(e.statistics for e in entries if e.kind == kind)
            for kind, title in _PANELS.items()
        }
        scale = self.samples[-1].loss_scale
        folder = Path(directory)
        folder.mkdir(parents=True, exist_ok=True)
        plot_exponents(folder / f"exponents.{format}", panels, scale)
        steps = [sample.step for sample in self.samples]
        shares = {title: self._shares(kind) for kind, title in _MAPS.items()}
        plot_lost(folder / f"lost.{format}", steps, shares)

    def _optimizer(self) -> FP32MasterOptimizer:
        check_tensorflow("NumericsCallback", "Leave the callback out")
        optimizer = wrapped_optimizer(self.model, "NumericsCallback")
        if not optimizer.built:
            with self.model.distribute_strategy.scope():
                optimizer.build(self.model.trainable_variables)
        return optimizer

    def _warn(self) -> None:
        """Says before the first step what this run will not show."""
        if self.model.steps_per_execution > 1:
            warnings.warn(
                "NumericsCallback tells updates apart where an execution is one step. "
                f"Received: steps_per_execution={self.model.steps_per_execution}. "
                "Gradients and weights are sampled, updates are not; for them compile "
                "with steps_per_execution=1.",
                stacklevel=2,
            )
        if self.log_dir is not None and not _has_matplotlib():
            warnings.warn(
                "The pictures of NumericsCallback need matplotlib, which is not "
                "installed; the other files are written. Run pip install "
                "'keras_mp[plots]'.",
                stacklevel=2,
            )

    def _announce(self) -> None:
        """Has the next call of the train function sampled."""
        function = SampledTrainFunction.of(self.model)
        if function is None:  # another callback has made the train function anew
            self._function = SampledTrainFunction(self.model, self._sampler)
        elif function is not self._function:
            raise ValueError(
                "A `fit` has one NumericsCallback: only the last one would "
                f"count. Received: another one, and one with every={self.every}, "
                f"log_dir={self.log_dir}. Give one of them to `fit`."
            )
        self._function.announce()

    def _begin(self) -> int:
        """Returns how many steps were made before this run, and opens the files."""
        optimizer = self._optimizer()
        applied = keras_internals.applied_steps(optimizer.inner_optimizer)
        counters = (applied, optimizer.skipped_steps)
        step = sum(int(keras.ops.convert_to_numpy(each)) for each in counters)
        self._sampler.begin(step)
        self.samples = [sample for sample in self.samples if sample.step <= step]
        if self._log is not None:
            import tensorflow as tf

            self.samples = self._log.cut(step)
            self._close_writer()  # that of a run that was interrupted
            self._writer = tf.summary.create_file_writer(str(self.log_dir))
        return step

    def _close_writer(self) -> None:
        if self._writer is not None:
            self._writer.close()
            self._writer = None

    def _weights(self) -> list[Any]:
        """Returns the float32 values of the trainable weights, as arrays."""
        masters = master_values(self.model)
        weights = keras_internals.trainable_variables(self.model.optimizer)
        return [keras.ops.convert_to_numpy(fp32_value(w, masters)) for w in weights]

    def _collect(self) -> None:
        """Makes a sample of what a step has counted since the last one."""
        step, before = self._sampler.sampled_step, self._before
        # Where a `train_step` applies twice or not at all, the two counts differ.
        is_of_this_step = step == self._step
        self._step, self._before = self._sampler.step, None
        if step <= (self.samples[-1].step if self.samples else 0):
            return
        entries = (
            *self._activation_entries(),
            *self._weight_entries(before if is_of_this_step else None),
        )
        sample = Sample(step, self._sampler.loss_scale, entries)
        self.samples.append(sample)
        if self._log is not None:
            self._log.append(sample)
            write_summaries(self._writer, sample)

    def _activation_entries(self) -> Iterator[Entry]:
        for path, activation, gradient in self._sampler.activations():
            if activation is not None:
                yield Entry(path, "activation", activation)
            if gradient is not None:
                yield Entry(path, "activation_gradient", gradient)

    def _weight_entries(self, before: list[Any] | None) -> Iterator[Entry]:
        """Yields the entries of each weight, its update if it is known from before."""
        after = self._weights()
        paths = self._sampler.weight_paths()
        gradients = self._sampler.weight_gradients()
        for path, gradient, old, new in zip(
            paths, gradients, before or after, after, strict=True
        ):
            yield Entry(path, "weight", TensorStatistics.of(old))
            if gradient is not None:
                yield Entry(path, "weight_gradient", gradient)
            if before is not None:
                yield _update_entry(path, Update.of(old, new - old))

    def _shares(self, kind: str) -> dict[str, list[float | None]]:
        """Returns the share lost of each layer or weight in each sample."""
        found = [
            {e.path: _share(e) for e in sample.entries if e.kind == kind}
            for sample in self.samples
        ]
        paths = dict.fromkeys(path for shares in found for path in shares)
        return {path: [shares.get(path) for shares in found] for path in paths}


def _update_entry(path: str, update: Update) -> Entry:
    return Entry(
        path,
        "update",
        TensorStatistics.of(update.values),
        update.difference.relative_error,
        update.difference.cosine,
        update.too_small,
        update.absorbed,
        update.rounding_noise,
    )


def _share(entry: Entry) -> float | None:
    """Returns the share lost, None if all are zeros, as in a skipped step."""
    return None if entry.statistics.largest is None else entry.lost_share


def _has_matplotlib() -> bool:
    return importlib.util.find_spec("matplotlib") is not None


class SampledTrainFunction:
    """Calls a new train function of a model, and has a sampler count inside of it.

    `fit` tells no callback that an exception ended it. So the sampler is attached while
    the function is called, and no longer; and each call is announced by the callback.
    One that is not is of another `fit`: it makes the train function again, without
    counting, and calls that.

    Args:
        model: `keras.Model`, compiled. Its `train_function` becomes this object.
        sampler: `GradientSampler`.
    """

    def __init__(self, model: keras.Model, sampler: GradientSampler) -> None:
        model.make_train_function(force=True)
        self._model = model
        self._sampler = sampler
        self._is_announced = False
        self.train_function = model.train_function
        model.train_function = self

    @staticmethod
    def of(model: keras.Model) -> Optional["SampledTrainFunction"]:
        """Returns the one of a model, which another object may call, or None."""
        function = model.train_function
        while function is not None and not isinstance(function, SampledTrainFunction):
            function = getattr(function, "train_function", None)
        return function

    def announce(self) -> None:
        """Says that the next call is to be sampled."""
        self._is_announced = True

    def __call__(self, iterator: Any) -> Any:
        if not self._is_announced:
            self._model.make_train_function(force=True)
            return self._model.train_function(iterator)
        self._is_announced = False
        with self._sampler.attached():
            return self.train_function(iterator)
