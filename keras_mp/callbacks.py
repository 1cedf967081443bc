"""Callbacks that log, set and monitor the loss scale, and swap averaged weights."""

import os
import warnings
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np

from keras_mp import keras_internals
from keras_mp.arguments import folder, whole_number
from keras_mp.diagnostics.collapsed_run import describe_overflow
from keras_mp.loss_scale import LossScale, as_loss_scale
from keras_mp.optimizer import FP32MasterOptimizer
from keras_mp.optimizer.gradients import check_can_keep_norm
from keras_mp.optimizer.master_weights import keeps_average
from keras_mp.regularizers import check_penalties
from keras_mp.watched_optimizers import (
    Watched,
    one_of_each_scale,
    watched_optimizers,
)

_ON_COLLAPSE = ("raise", "warn", "continue")


class LossScaleCollapseError(RuntimeError):
    """The loss scale is at its minimum, and every step still overflows.

    Example:

    >>> try:
    ...     raise keras_mp.LossScaleCollapseError("all steps overflow")
    ... except RuntimeError as error:
    ...     print(error)
    all steps overflow
    """


class LossScaleCallback(keras.callbacks.Callback):
    """Logs the loss scale, sets its rule if asked to, and stops a collapsed run.

    Puts `loss_scale`, `skipped_steps` and `consecutive_skips` into the logs of the
    epoch: the progress bar and `History` show them, and so do `CSVLogger` and
    `TensorBoard` if they come after this callback in the list. It waits for the device
    once in `patience` batches and at the end of an epoch, with `log_dir` after every
    batch.

    It watches the wrapped optimizer of `compile`, and those that the model holds as
    attributes, as a GAN does. If they do not share one loss scale, the names of
    their numbers begin with the attribute: `d_optimizer_loss_scale`.

    Args:
        loss_scale: as for `keras_mp.wrap`: the rule to train with. One that equals
            the optimizer's rule keeps the state, so that a run can be resumed. Defaults
            to None: the rule that the optimizer has.
        on_collapse: `"raise"`, `"warn"` or `"continue"`: what to do once `patience`
            steps in a row overflowed with the scale at its minimum. The error of
            `"raise"`, the default, names the layer where the next batch overflows.
        patience: int >= 1, in steps. Defaults to 100.
        log_dir: str or path, a folder to which `loss_scale`, `skipped_steps` and
            `gradient_norm`, the norm of all unscaled gradients before any clipping, are
            written for TensorBoard: after every step, or every `steps_per_execution`. A
            resumed run continues at its step; skipped steps count. Needs Keras's
            TensorFlow backend. Defaults to None.

    Raises:
        TypeError: `patience` is not an int, or `log_dir` is no path.
        RuntimeError: there is a `log_dir`, and the backend is not TensorFlow.
        ValueError: the model has no wrapped optimizer, an argument is out of
            range, or a regularizer computes in 16 bits, where Keras's `fit` fails.
        LossScaleCollapseError: in `fit`, as asked by `on_collapse`.

    Example:

    >>> model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    >>> model.compile(optimizer=keras_mp.wrap("sgd"), loss="mse")
    >>> x = np.ones((4, 2), "float32")
    >>> callback = keras_mp.LossScaleCallback(loss_scale=128)
    >>> history = model.fit(x, x[:, :1], callbacks=[callback], verbose=0)
    >>> history.history["loss_scale"], history.history["skipped_steps"]
    ([128.0], [0])

    Reference: Mixed Precision Training, section 3.2.
    """

    def __init__(
        self,
        loss_scale: LossScale | float | str | None = None,
        on_collapse: str = "raise",
        patience: int = 100,
        log_dir: str | os.PathLike[str] | None = None,
    ) -> None:
        super().__init__()
        if on_collapse not in _ON_COLLAPSE:
            raise ValueError(
                '`on_collapse` must be "raise", "warn" or "continue". '
                f"Received: on_collapse={on_collapse!r}."
            )
        self.loss_scale = None if loss_scale is None else as_loss_scale(loss_scale)
        self.on_collapse = on_collapse
        self.patience = whole_number("patience", patience, "Try 100.")
        self.log_dir = None if log_dir is None else folder("log_dir", log_dir)
        if self.log_dir is not None:
            check_can_keep_norm()
        self._step_log: StepLog | None = None
        self._batches = 0
        self._warned = False

    def set_model(self, model: keras.Model) -> None:
        """Sets the optimizer's rule, before any callback restores its state."""
        super().set_model(model)
        watched = self._watched
        check_penalties(model)
        changes = False
        for _, optimizer in one_of_each_scale(watched):
            if self.loss_scale not in (None, optimizer.loss_scale_rule):
                optimizer.loss_scale = self.loss_scale
                changes = True
        if self.log_dir is not None:
            for _, optimizer in watched:
                changes |= optimizer.keep_gradient_norm()
        if changes and model.train_function is not None:
            model.make_train_function(force=True)

    @property
    def _watched(self) -> list[Watched]:
        # On JAX it is reading `model` that gives its variables their values.
        return watched_optimizers(self.model)

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Resets the count of batches, and opens the log."""
        self._batches = 0
        self._warned = False
        if self.log_dir is not None:
            self._step_log = StepLog(self.log_dir, self._watched)

    def on_train_batch_begin(
        self, batch: int, logs: dict[str, Any] | None = None
    ) -> None:
        """Keeps what names the layer in the error of a collapse."""
        # Here, since other callbacks may make the train function anew when they begin.
        if self.on_collapse == "raise" and keras.backend.backend() == "tensorflow":
            keras_internals.keep_iterator(self.model)

    def on_train_batch_end(
        self, batch: int, logs: dict[str, Any] | None = None
    ) -> None:
        """Logs the step, and checks for a collapse once in `patience` batches."""
        if self._step_log is not None:
            self._step_log.write()
        self._batches += 1
        if self._batches % self.patience == 0:
            self._check_collapse()

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Puts the state of the scale into the logs and checks for a collapse."""
        if logs is not None:
            for prefix, optimizer in one_of_each_scale(self._watched):
                logs[f"{prefix}loss_scale"] = float(optimizer.loss_scale)
                logs[f"{prefix}skipped_steps"] = int(optimizer.skipped_steps)
                logs[f"{prefix}consecutive_skips"] = int(optimizer.consecutive_skips)
        self._check_collapse()

    def on_train_end(self, logs: dict[str, Any] | None = None) -> None:
        """Lets go of what was kept, and closes the log."""
        keras_internals.forget_iterator(self.model)
        if self._step_log is not None:
            self._step_log.close()
            self._step_log = None

    def _check_collapse(self) -> None:
        if self.on_collapse == "continue":
            return
        for watched in one_of_each_scale(self._watched):
            stuck = int(watched.optimizer.skips_at_minimum)
            if stuck >= self.patience:
                self._tell_of_collapse(watched, stuck)

    def _tell_of_collapse(self, watched: Watched, stuck: int) -> None:
        optimizer = watched.optimizer
        scale = optimizer.loss_scale
        sharing = [o for _, o in self._watched if o.loss_scale is scale]
        overflows = [o.last_overflow for o in sharing if o.last_overflow is not None]
        of_whom = f" of {watched.prefix.rstrip('_')}" if watched.prefix else ""
        message = (
            f"The last {stuck} steps{of_whom} all overflowed with the loss scale at "
            f"its minimum, {float(scale):g}, and were skipped; "
            f"{int(optimizer.skipped_steps)} steps were skipped in all. The first "
            "gradient that was not finite in the last of them: "
            f"{' or '.join(overflows)}. The model's weights have not changed in "
            "these steps. Look for NaN or inf in the data and in the loss; try a lower "
            "learning rate or gradient clipping (global_clipnorm=1.0 on the inner "
            "optimizer); with a constant loss scale, a smaller one; or train with "
            "keras_mp.PrecisionPlanCallback(), which gives FP32 to layers that FP16 "
            "does not suit."
        )
        if self.on_collapse == "raise":
            iterator = keras_internals.kept_iterator(self.model)
            keras_internals.forget_iterator(self.model)
            raise LossScaleCollapseError(
                f"{message} {describe_overflow(self.model, iterator)}"
            )
        if not self._warned:
            self._warned = True
            warnings.warn(message, stacklevel=2)


class SwapEMAWeights(keras.callbacks.SwapEMAWeights):
    """Keras's `SwapEMAWeights`, also for models with weights in 16 bits.

    Keras's callback swaps the variables that the inner optimizer updates, here the
    masters, with their moving averages. This one keeps a copy of the masters, has
    `finalize_variable_values` overwrite masters and weights with the averages, and puts
    the copy back. So neither is rounded, whatever form the masters are stored in.

    Args:
        swap_on_epoch: bool, also swap between epochs, so that a checkpoint holds the
            averages. Defaults to False.

    Example:

    >>> model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    >>> model.compile(keras_mp.wrap(keras.optimizers.SGD(use_ema=True)), "mse")
    >>> x = np.ones((4, 2), "float32")
    >>> history = model.fit(x, x[:, :1], verbose=0)
    >>> loss = model.evaluate(
    ...     x, x[:, :1], callbacks=[keras_mp.SwapEMAWeights()], verbose=0)
    """

    def __init__(self, swap_on_epoch: bool = False) -> None:
        super().__init__(swap_on_epoch=swap_on_epoch)
        self._masters: list[np.ndarray] | None = None

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Swaps back what an interrupted evaluation has left."""
        if self._is_wrapped:
            self._put_masters_back()

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Swaps back after an epoch, if asked to."""
        if not self._is_wrapped:
            super().on_epoch_begin(epoch, logs)
        elif self.swap_on_epoch:
            self._put_masters_back()

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Swaps between epochs, if asked to."""
        if not self._is_wrapped:
            super().on_epoch_end(epoch, logs)
        elif self.swap_on_epoch:
            self._show_averages()

    def on_train_end(self, logs: dict[str, Any] | None = None) -> None:
        """Forgets the masters: `fit` has made the averages the weights."""
        self._masters = None

    def on_test_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Swaps for an evaluation."""
        if self._is_wrapped:
            self._show_averages()
        else:
            super().on_test_begin(logs)

    def on_test_end(self, logs: dict[str, Any] | None = None) -> None:
        """Swaps back."""
        if self._is_wrapped:
            self._put_masters_back()
        else:
            super().on_test_end(logs)

    def on_predict_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Swaps for a prediction."""
        self.on_test_begin(logs)

    def on_predict_end(self, logs: dict[str, Any] | None = None) -> None:
        """Swaps back, which Keras 3.15 forgets after a prediction."""
        self.on_test_end(logs)

    @property
    def _is_wrapped(self) -> bool:
        return isinstance(self.model.optimizer, FP32MasterOptimizer)

    def _show_averages(self) -> None:
        optimizer = self.model.optimizer
        if not (optimizer.built and keeps_average(optimizer.inner_optimizer)):
            raise ValueError(
                "SwapEMAWeights needs an optimizer that keeps moving averages, and has "
                f"been built. Received: {optimizer}, built={optimizer.built}. Give the "
                "inner optimizer use_ema=True, and train first."
            )
        if self._masters is not None:
            return
        with optimizer.fp32_weights():
            self._masters = [np.array(master) for master in optimizer.master_weights]
        optimizer.finalize_variable_values(self.model.trainable_variables)

    def _put_masters_back(self) -> None:
        masters, self._masters = self._masters, None
        if masters is None:
            return
        optimizer = self.model.optimizer
        with optimizer.fp32_weights():
            for master, value in zip(optimizer.master_weights, masters, strict=True):
                master.assign(value)


class StepLog:
    """Writes the state of loss scales and the norms of the gradients after a step.

    Args:
        log_dir: str, the folder.
        watched: list of `Watched`. Their optimizers keep the norm.
    """

    def __init__(self, log_dir: str, watched: Sequence[Watched]) -> None:
        import tensorflow as tf

        self._writer = tf.summary.create_file_writer(log_dir)
        self._norms = list(watched)
        self._scales = one_of_each_scale(watched)

    def write(self) -> None:
        """Writes what is known after a step; those that were skipped are counted."""
        for each in self._scales:
            self._write(each, "loss_scale", "skipped_steps")
        for each in self._norms:
            self._write(each, "gradient_norm")

    def _write(self, watched: Watched, *names: str) -> None:
        import tensorflow as tf

        prefix, optimizer = watched
        applied = keras_internals.applied_steps(optimizer.inner_optimizer)
        step = int(applied.numpy()) + int(optimizer.skipped_steps)
        with self._writer.as_default(step=step):
            for name in names:
                value = getattr(optimizer, name).numpy()
                tf.summary.scalar(prefix + name, value.astype("float32"))

    def close(self) -> None:
        """Writes what is left, and closes the file."""
        self._writer.close()
