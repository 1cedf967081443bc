"""`PrecisionPlanCallback`: a plan that is extended when training outgrows it."""

import warnings
from typing import Any

import keras

from keras_mp import keras_internals
from keras_mp.arguments import check_tensorflow, positive_number, whole_number
from keras_mp.diagnostics.collapsed_run import without_optionals
from keras_mp.precision.model_index import ModelIndex
from keras_mp.precision.plan_precision import at_least_one, plan_precision
from keras_mp.precision.precision_plan import LayerPlan, PrecisionPlan
from keras_mp.precision.scope import modes_of
from keras_mp.watched_optimizers import wrapped_optimizer


class PrecisionPlanCallback(keras.callbacks.Callback):
    """Measures a plan in `fit` when steps are skipped for long, and applies it.

    Activations may grow beyond FP16 after thousands of steps. Then every step
    overflows, and no loss scale helps. Once `patience` steps in a row were skipped,
    this callback runs `keras_mp.plan_precision` on the next batch, which is trained on
    afterwards. The layers keep at least what a plan has given them before. The new plan
    is applied, a warning tells what has changed, the loss scale starts again, at most
    at the plan's, and the train function is traced again.

    If that plan changes nothing, the streak has to become twice as long before the
    next one is measured. A streak is looked for once in `patience` steps, which waits
    for the device.

    Args:
        patience: int >= 1, how many steps in a row must have been skipped. A dynamic
            loss scale that begins at 2**15 may need 15 to fall to 1. Defaults to 20.
        margin: float, as for `plan_precision`. Defaults to 4.
        tolerance: float, as for `plan_precision`. Defaults to 0.02.

    Attributes:
        plan: `PrecisionPlan`, the last that was measured, or None.

    Raises:
        TypeError: `patience` is not an int.
        ValueError: an argument is out of its range; in `fit`, the optimizer is not
            wrapped.
        RuntimeError: in `fit`, there are several replicas; Keras is on another backend
            than TensorFlow; the plan cannot be measured on the batch, as where the loss
            is not finite in FP32; in a loop of your own, there is no batch.

    Example:

    >>> keras.config.set_dtype_policy("mixed_float16")
    >>> model = keras.Sequential([
    ...     keras.Input((4,)),
    ...     keras.layers.Dense(2, kernel_initializer="ones", name="fine"),
    ...     keras.layers.Rescaling(1e5, name="too_large")])
    >>> model.compile(keras_mp.wrap(keras.optimizers.SGD(1e-12)), loss="mse")
    >>> callback = keras_mp.PrecisionPlanCallback(patience=2)
    >>> x, y = np.ones((4, 4)), np.ones((4, 2))
    >>> with warnings.catch_warnings(action="ignore"):    # they tell what has changed
    ...     history = model.fit(x, y, epochs=6, callbacks=[callback], verbose=0)
    >>> callback.plan.precisions["too_large"], int(model.optimizer.skipped_steps)
    ('float32', 2)

    Reference: Mixed Precision Training, section 3.3.
    """

    def __init__(
        self, patience: int = 20, margin: float = 4.0, tolerance: float = 0.02
    ) -> None:
        super().__init__()
        self.patience = whole_number("patience", patience, "Try 20.")
        self.margin = at_least_one("margin", margin)
        self.tolerance = positive_number("tolerance", tolerance, "Try 0.02.")
        self.plan: PrecisionPlan | None = None
        self._unread, self._streak, self._needed = 0, 0, self.patience

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Checks what it needs."""
        check_tensorflow("PrecisionPlanCallback", "Leave the callback out")
        replicas = self.model.distribute_strategy.num_replicas_in_sync
        if replicas > 1:
            raise RuntimeError(
                "PrecisionPlanCallback measures on one replica. Received: a model on "
                f"{replicas}. Measure on one, keras_mp.plan_precision(model, x, y), "
                "and apply that plan to this model before `fit`."
            )
        wrapped_optimizer(self.model, "PrecisionPlanCallback")
        self._unread, self._streak, self._needed = 0, 0, self.patience

    def on_train_batch_begin(
        self, batch: int, logs: dict[str, Any] | None = None
    ) -> None:
        """Has the batch measured, after a streak."""
        streak, self._streak = self._streak, 0
        if not streak:
            return
        if self.model.train_function is None:
            raise RuntimeError(
                "PrecisionPlanCallback measures on a batch of `fit` or "
                f"`train_on_batch`. Received: {streak} skipped steps in a loop without "
                "either. Call keras_mp.plan_precision(model, x, y, keep_applied=True)"
                ".apply(model) there, and trace your step again."
            )
        keras_internals.look_at_next_batch(
            self.model, lambda batch: self._extend(batch, streak)
        )

    def on_train_batch_end(
        self, batch: int, logs: dict[str, Any] | None = None
    ) -> None:
        """Looks for a streak once in `patience` steps."""
        self._unread += self.model.steps_per_execution
        if self._unread < self.patience:
            return
        self._unread = 0
        streak = int(self.model.optimizer.consecutive_skips)
        if streak < self.patience:
            self._needed = self.patience
        elif streak >= self._needed:
            self._streak, self._needed = streak, 2 * streak

    def _extend(self, batch: Any, streak: int) -> None:
        """Measures a plan on a batch and applies it, if it is another one."""
        model = self.model
        applied = modes_of(ModelIndex(model))
        try:
            x, y, weight = keras.utils.unpack_x_y_sample_weight(
                without_optionals(batch)
            )
            self.plan = plan_precision(
                model,
                x,
                y,
                weight,
                margin=self.margin,
                tolerance=self.tolerance,
                keep_applied=True,
            )
        except Exception as error:  # of the model, of the batch, of a custom step
            raise RuntimeError(
                "PrecisionPlanCallback measures `model.compute_loss` of `model(x)` on "
                f"a batch of `fit`. Received: {streak} skipped steps in a row, and a "
                f"batch with which that fails with {type(error).__name__}: {error} "
                "Look at the data; a model with its own `train_step` also needs "
                "its own `compute_loss`."
            ) from error
        changed = [
            each
            for each in self.plan.layers
            if each.fp32_weights or applied.get(each.path) != each.precision
        ]
        if changed:
            optimizer = model.optimizer
            optimizer.loss_scale.assign(optimizer.loss_scale_rule.initial_scale)
            self.plan.apply(model)
            model.make_train_function(force=True)
        warnings.warn(_message(streak, changed, self.plan), stacklevel=2)


def _message(streak: int, changed: list[LayerPlan], plan: PrecisionPlan) -> str:
    begin = f"After {streak} skipped steps in a row a precision plan was measured"
    if not changed:
        notes = "".join(f" {note}." for note in plan.notes)
        return (
            f"{begin}, and asks for no more than the model has.{notes} Look for NaN or "
            "inf in the batches before, and try a lower learning rate or gradient "
            "clipping."
        )
    layers = "; ".join(
        f"{each.path} ({each.precision}: {each.reason})" for each in changed
    )
    return (
        f"{begin} and applied; {plan.float16_share:.1%} of the multiply-adds have FP16 "
        f"inputs. What has changed: {layers}."
    )
