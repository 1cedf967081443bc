"""`plan_precision`: measures which layers of a model need more than FP16."""

import itertools
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import keras
import numpy as np

from keras_mp import keras_internals
from keras_mp.arguments import positive_number, whole_number
from keras_mp.diagnostics.division_by_zero import advice_on, find_divisor
from keras_mp.diagnostics.find_overflow import in_forward_pass
from keras_mp.precision.batch import as_batch, check_model
from keras_mp.precision.compute_dtype import notes_on_cached_tensors
from keras_mp.precision.convert import converted_in_modes
from keras_mp.precision.decide import (
    Choice,
    at_least,
    decide,
    next_mode,
    widen,
)
from keras_mp.precision.layer_table import LayerRow
from keras_mp.precision.measurement import Measurement
from keras_mp.precision.model_index import ModelIndex
from keras_mp.precision.modes import FLOAT16, FLOAT32
from keras_mp.precision.multiply_adds import float16_share
from keras_mp.precision.precision_plan import LayerPlan, PrecisionPlan
from keras_mp.precision.run import Trace
from keras_mp.precision.scope import modes_of
from keras_mp.precision.sensitivity import (
    groups_of,
    remembered,
    widen_for_gradients,
)


def plan_precision(
    model: keras.Model,
    x: Any,
    y: Any = None,
    sample_weight: Any = None,
    margin: float = 4.0,
    tolerance: float = 0.02,
    batches: int = 4,
    keep_applied: bool = False,
) -> PrecisionPlan:
    """Finds the layers of a model that need more than FP16, from their values.

    First the model is run in FP32, forward and backward. A layer that is given or
    returns values above `65504 / margin` leaves FP16, with the layers that have code of
    their own and receive these values. Its matrix products stay in FP16, with FP32
    results. Then the model is run with the plan. If a value still overflows, its layer
    also leaves FP16; if only gradients overflow, the loss scale is lowered, down to
    2**-14. If the weight gradients differ from those in FP32 by more than `tolerance`,
    each is run in FP16, with all others in FP32, and the layers with the largest errors
    leave FP16. A layer with weights above that limit stores them in FP32, if FP16
    stores them now. Nothing of the model is changed until `PrecisionPlan.apply`.

    A model that FP16 suits gets an empty plan.

    Args:
        model: `keras.Model`, built and compiled, of the policy `mixed_float16`,
            `float16` or `float32`.
        x: array or tensor, or a structure of several: one batch of inputs; or a
            `tf.data.Dataset` or `keras.utils.PyDataset` of batches.
        y: as `x`: its targets. None (default) for a dataset, which has them.
        sample_weight: as `x`, or None (default).
        margin: float, at least 1: by how much other batches, and later steps, may have
            larger values. Defaults to 4.
        tolerance: positive float, the relative error of all weight gradients, taken as
            one vector, that is accepted. Three times the error that FP32 itself has is
            also accepted. Defaults to 0.02.
        batches: int, how many batches of a dataset are run. Defaults to 4.
        keep_applied: bool, default False: whether a layer keeps at least the precision
            that a plan applied to the model before has given it.

    Returns:
        `PrecisionPlan`. Printed, it is a table of the layers that leave FP16.

    Raises:
        TypeError: `model` is not a `keras.Model`.
        ValueError: it is not built, not compiled, or has no trainable weights; it has
            layers in bfloat16; the loss is not finite in FP32, or a weight is not; an
            argument is out of its range.
        RuntimeError: Keras is on another backend than TensorFlow.

    Example:

    >>> keras.config.set_dtype_policy("mixed_float16")
    >>> model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    >>> model.compile(keras_mp.wrap("sgd"), loss="mse")
    >>> keras_mp.plan_precision(model, np.ones((2, 4)), np.ones((2, 1))).precisions
    {}

    Reference: Mixed Precision Training, section 3.3.
    """
    check_model(model)
    margin = at_least_one("margin", margin)
    tolerance = positive_number("tolerance", tolerance, "Try 0.02.")
    batches = whole_number("batches", batches, "Try 4.")
    _check_policies(model)
    data = list(itertools.islice(_batches(x, y, sample_weight), batches))
    if not data:
        raise ValueError(
            "`x` must have at least one batch. Received: a dataset without any. Pass "
            "the dataset itself, not an iterator that is exhausted."
        )
    measured = Measurement(model, data, margin)
    _check_losses(model, measured.references)
    smallest = measured.smallest_loss_scale
    choices = decide(measured.numbers.values(), margin, smallest)
    if keep_applied:
        at_least(choices, modes_of(ModelIndex(model)))
    plan = _keep_finite(measured, choices)
    if not plan.notes and not plan.error <= tolerance:
        plan = _keep_accurate(measured, plan, tolerance)
    notes = plan.notes
    if notes:
        divisors = (find_divisor(each.calls) for each in measured.references)
        notes += [advice_on(each) for each in dict.fromkeys(divisors) if each]
    with converted_in_modes(model, _modes_of(plan.choices)):
        share = float16_share(model, data[0][0])
    return PrecisionPlan(
        tuple(_in_order(plan.choices, measured)),
        share,
        plan.error,
        margin,
        (*notes, *notes_on_cached_tensors(model)),
        measured.loss_scale,
        plan.fp32_noise,
    )


@dataclass(frozen=True)
class _Trial:
    """Choices, and how the model ran with them.

    Attributes:
        choices: dict from path to `Choice`.
        errors: list of the gradient error in each batch; empty where values overflow.
        notes: list of str, what the choices do not mend.
        fp32_noise: float, or None if it was not measured.
    """

    choices: dict[str, Choice]
    errors: list[float]
    notes: list[str] = field(default_factory=list)
    fp32_noise: float | None = None

    @property
    def error(self) -> float:
        """The largest gradient error; inf if values overflow."""
        return max(self.errors, default=math.inf)


def _keep_finite(measured: Measurement, choices: Mapping[str, Choice]) -> _Trial:
    """Widens layers until all that they compute is finite, then lowers the scale."""
    choices = dict(choices)
    while True:
        modes = _modes_of(choices)
        runs = measured.runs(modes)
        overflows = [in_forward_pass(measured.model, each) for each in runs]
        overflow = next((each for each in overflows if each), None)
        if overflow:
            if not _widen(
                measured.numbers, choices, overflow.path, "overflows in FP16"
            ):
                note = f"{overflow.path!r} is not finite: {overflow}"
                return _Trial(choices, [], [note])
        elif uncast := _given_fp32(measured.numbers, choices, runs):
            for path in uncast:
                reason = "is given FP32, and does not cast it"
                _widen(measured.numbers, choices, path, reason)
        else:
            errors = measured.errors(runs)
            if not math.isfinite(max(errors)) and measured.lower_loss_scale(modes):
                errors = measured.errors(measured.runs(modes))
            return _Trial(choices, errors)


def _keep_accurate(measured: Measurement, trial: _Trial, tolerance: float) -> _Trial:
    """Widens the layers that bring the largest errors into the gradients.

    No layer is widened for an error that FP32 itself has.
    """
    worst = int(np.argmax(trial.errors))
    noise = measured.fp32_noise(worst)
    if not math.isfinite(noise):
        note = "the gradients are not finite in FP32, so no precision helps"
        return replace(trial, notes=[note])
    bound = max(tolerance, 3.0 * noise)
    notes = []
    if bound > tolerance:
        notes.append(
            f"FP32 itself has a gradient error of {noise:.2%} if each weight is "
            f"rounded again: {bound:.2%} is tolerated instead of {tolerance:.2%}"
        )
    stored = measured.error_of_stored_weights(worst)
    if stored < bound:
        groups = groups_of(ModelIndex(measured.model), measured.numbers)
        error_alone = remembered(lambda modes: measured.error_alone(modes, worst))
        for divisor in (1, 2, 4):
            if trial.error <= bound:
                break
            share = math.sqrt(bound - stored) * math.sqrt(bound + stored) / divisor
            choices = widen_for_gradients(
                groups, measured.numbers, trial.choices, error_alone, share
            )
            trial = _keep_finite(measured, choices)
    if not trial.error <= bound:
        notes.append(
            f"a gradient error of {trial.error:.2%} remains, above {bound:.2%}; with "
            f"all layers in FP32, and the stored weights unchanged, it is {stored:.2%}"
        )
    return replace(trial, notes=trial.notes + notes, fp32_noise=noise)


def _modes_of(choices: Mapping[str, Choice]) -> dict[str, str]:
    return {path: choice.mode for path, choice in choices.items()}


def _given_fp32(
    numbers: Mapping[str, LayerRow],
    choices: Mapping[str, Choice],
    runs: list[Trace],
) -> list[str]:
    """Returns the layers of products in FP16 that would multiply in FP32.

    Keras does not cast what an embedding is given.
    """
    found: dict[str, None] = {}
    for call in itertools.chain.from_iterable(each.calls for each in runs):
        each = numbers.get(call.path)
        if each is None or each.casts_inputs or not each.has_matmul:
            continue
        is_wide = any(x.dtype.name == "float32" for x in call.inputs)
        if is_wide and each.path not in choices:
            found[each.path] = None
    return [*found]


def _widen(
    numbers: Mapping[str, LayerRow],
    choices: dict[str, Choice],
    path: str,
    reason: str,
) -> bool:
    """Gives the next mode to a layer, or to those inside and around it.

    Returns False if they have no further one.
    """
    while path not in numbers and "/" in path:  # to the innermost layer that was called
        path = path.rpartition("/")[0]
    if path not in numbers:  # an operation, or the loss: of the last layer
        path = [*numbers][-1]
    mode = choices[path].mode if path in choices else FLOAT16
    further = next_mode(numbers[path], mode)
    if further is not None:
        widen(choices, numbers, path, further, reason)
        return True
    near = [
        each
        for each in numbers.values()
        if each.path in numbers[path].callers or each.path.startswith(f"{path}/")
    ]
    left = [each for each in near if each.path not in choices]
    for each in left:
        further = next_mode(each, FLOAT16) or FLOAT32
        widen(choices, numbers, each.path, further, reason)
    return bool(left)


def _in_order(choices: dict[str, Choice], measured: Measurement) -> Iterator[LayerPlan]:
    """Yields the plan in the order of computation, then layers that were not called."""
    numbers = measured.numbers
    for path in dict.fromkeys([*numbers, *choices]):
        if path in choices:
            elements = numbers[path].elements if path in numbers else 0
            yield LayerPlan(
                path,
                choices[path].mode,
                choices[path].reason,
                2 * elements,
                path in measured.fp32_weights,
            )


def _batches(x: Any, y: Any, sample_weight: Any) -> Iterator[tuple[Any, Any, Any]]:
    import tensorflow as tf

    if isinstance(x, tf.data.Dataset):
        for batch in x:
            yield as_batch(*keras.utils.unpack_x_y_sample_weight(batch))
    elif isinstance(x, keras.utils.PyDataset):
        for index in range(x.num_batches or 0):
            yield as_batch(*keras.utils.unpack_x_y_sample_weight(x[index]))
    else:
        yield as_batch(x, y, sample_weight)


def at_least_one(name: str, value: Any) -> float:
    """Returns an argument as a float of at least 1."""
    value = positive_number(name, value, "Try 4.")
    if value < 1.0:
        raise ValueError(
            f"`{name}` must be at least 1: it leaves room for numbers larger than the "
            f"measured ones. Received: {name}={value!r}. Try 4."
        )
    return value


def _check_policies(model: keras.Model) -> None:
    found = {layer.compute_dtype for layer in ModelIndex(model).layers}
    if "bfloat16" in found:
        raise ValueError(
            "A plan is for FP16. Received: a model with layers in bfloat16, which has "
            "the range of FP32 and overflows where FP32 does. Build the model under "
            "mixed_float16."
        )


def _check_losses(model: keras.Model, runs: list[Trace]) -> None:
    losses = [float(each.loss) for each in runs]
    found = next((loss for loss in losses if not math.isfinite(loss)), None)
    if found is None:
        return
    for path, entry in ModelIndex(model).items():
        for variable, _ in keras_internals.own_variables(entry.layer):
            value = keras.ops.convert_to_numpy(keras.ops.cast(variable, "float32"))
            if not np.all(np.isfinite(value)):
                raise ValueError(
                    "The weights must be finite. Received: a loss of "
                    f"{found} in FP32, and a value in '{path}/{variable.name}', "
                    f"stored in {variable.dtype}, that is not. FP16 ends at 65,504, "
                    "and what was larger is lost: load it again, or `adapt` again, "
                    "under the policy mixed_float16, which stores weights in FP32."
                )
    raise ValueError(
        f"The loss must be finite in FP32. Received: {found}. No precision helps: look "
        "at the data, the learning rate and the loss."
    )
