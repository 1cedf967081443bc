"""`plan_precision`: measures which layers of a model need more than FP16."""

import itertools
import math
from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_mp.arguments import positive_number, whole_number
from keras_mp.diagnostics.arguments import as_batch, check_model, master_values
from keras_mp.diagnostics.division_by_zero import advice_on, find_divisor
from keras_mp.diagnostics.find_overflow import in_forward_pass
from keras_mp.diagnostics.subject import Backpropagation, run
from keras_mp.layers.conversion.trial import converted_in_modes
from keras_mp.precision.model_index import ModelIndex
from keras_mp.precision.modes import FLOAT16, FLOAT32
from keras_mp.precision.scope import modes_of
from keras_mp.precision_plan.decision import (
    Choice,
    decide,
    keep_at_least,
    next_way,
    raise_way,
)
from keras_mp.precision_plan.layer_numbers import LayerNumbers, numbers_of
from keras_mp.precision_plan.multiply_adds import float16_share
from keras_mp.precision_plan.precision_plan import LayerPlan, PrecisionPlan
from keras_mp.precision_plan.verification import Comparison, loss_scale_for


def plan_precision(
    model: keras.Model,
    x: Any,
    y: Any = None,
    sample_weight: Any = None,
    margin: float = 4.0,
    tolerance: float = 0.02,
    batches: int = 4,
    extend: bool = False,
) -> PrecisionPlan:
    """Finds the layers of a model that need more than FP16, from their values.

    First the model is run in FP32, forward and backward. A layer that is given, returns
    or back-propagates values above `65504 / margin` leaves FP16, with the layers whose
    own code goes on with those values. Its matrix products stay in FP16, with FP32
    results. Then the model is run so: where a value still overflows, or the weight
    gradients differ from those in FP32 by more than `tolerance`, the layers at fault
    leave FP16, too. Nothing of the model is changed until `PrecisionPlan.apply`.

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
            one vector, that is accepted. Defaults to 0.02.
        batches: int, how many batches of a dataset are run. Defaults to 4.
        extend: bool, default False: whether a layer keeps at least the way that a plan
            applied to the model before has given it.

    Returns:
        `PrecisionPlan`. Printed, it is a table of the layers that leave FP16.

    Raises:
        TypeError: `model` is not a `keras.Model`.
        ValueError: it is not built, not compiled, or has no trainable weights; it has
            layers in bfloat16; the loss is not finite in FP32; an argument is out of
            its range.
        RuntimeError: Keras is on another backend than TensorFlow.

    Example:

    >>> keras.config.set_dtype_policy("mixed_float16")
    >>> model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    >>> model.compile(keras_mp.wrap("sgd"), loss="mse")
    >>> keras_mp.plan_precision(model, np.ones((2, 4)), np.ones((2, 1))).ways
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
    masters = master_values(model)
    with converted_in_modes(model, {}):  # whose classes tell which layers have products
        references = [run(model, x, dtype="float32", masters=masters) for x in data]
        numbers = numbers_of(model, references)
    _check_losses(references)
    choices = decide(numbers.values(), margin)
    if extend:
        keep_at_least(choices, modes_of(ModelIndex(model)))
    trial = _Trial(model, data, references, numbers, choices, masters)
    notes = trial.repair(tolerance)
    if notes:
        divisors = (find_divisor(each.calls) for each in references)
        notes += [advice_on(each) for each in dict.fromkeys(divisors) if each]
    with converted_in_modes(model, trial.ways()):
        share = float16_share(model, data[0][0])
    return PrecisionPlan(
        tuple(_in_order(choices, numbers)),
        share,
        trial.gradient_error,
        margin,
        tuple(notes),
    )


class _Trial:
    """A model that is run with a plan, which is extended where that is not enough.

    Args:
        model: `keras.Model`.
        data: list of batches.
        references: list of the `Backpropagation` of each in FP32.
        numbers: `LayerNumbers` of each layer by path.
        choices: dict from path to `Choice`, which is extended.
        masters: dict from the `id` of a variable to its FP32 value.

    Attributes:
        gradient_error: float, of the last run.
    """

    def __init__(
        self,
        model: Any,
        data: list[Any],
        references: list[Backpropagation],
        numbers: dict[str, LayerNumbers],
        choices: dict[str, Choice],
        masters: dict[int, Any],
    ) -> None:
        self._model, self._data, self._references = model, data, references
        self._numbers, self._choices, self._masters = numbers, choices, masters
        self._scale = loss_scale_for(references)
        self.gradient_error = math.inf

    def ways(self) -> dict[str, str]:
        """Returns the way of each layer that leaves FP16 by its path."""
        return {path: choice.way for path, choice in self._choices.items()}

    def repair(self, tolerance: float) -> list[str]:
        """Extends the plan until it holds. Returns notes on what it could not mend."""
        while True:
            runs = self._run()
            before = dict(self._choices)
            overflows = [in_forward_pass(self._model, each) for each in runs]
            found = next((each for each in overflows if each), None)
            if found:
                self._widen(found.path, f"overflows in FP16, round {len(before)}")
                problem = f"{found.path!r} is not finite: {found}"
            elif uncast := self._given_fp32(runs):
                for path in uncast:
                    self._widen(path, "is given FP32, and does not cast it")
                continue
            else:
                pairs = zip(runs, self._references, strict=True)
                errors = [Comparison.of(*pair).gradient_error for pair in pairs]
                self.gradient_error = max(errors)
                if self.gradient_error <= tolerance:
                    return []
                for path, error in self._largest_errors(runs, tolerance):
                    self._widen(path, f"gradient error {error:.2%} in FP16")
                problem = (
                    f"a gradient error of {self.gradient_error:.2%} remains, above "
                    f"{tolerance:.2%}: the layers of those weights have left FP16, and "
                    "what they multiply was rounded before"
                )
            if before == self._choices:
                return [problem]

    def _run(self) -> list[Backpropagation]:
        with converted_in_modes(self._model, self.ways()):
            return [
                run(self._model, each, self._scale, masters=self._masters)
                for each in self._data
            ]

    def _given_fp32(self, runs: list[Backpropagation]) -> list[str]:
        """Returns the layers of products in FP16 that would multiply in FP32.

        Keras does not cast what an embedding is given.
        """
        found: dict[str, None] = {}
        for call in itertools.chain.from_iterable(each.calls for each in runs):
            each = self._numbers.get(call.path)
            if each is None or each.casts_inputs or not each.has_products:
                continue
            is_wide = any(x.dtype.name == "float32" for x in call.inputs)
            if is_wide and each.path not in self._choices:
                found[each.path] = None
        return [*found]

    def _widen(self, path: str, reason: str) -> None:
        """Gives the next way to a layer, or to what is inside or around it."""
        path = self._known(path)
        further = self._next_way(path)
        if further is not None:
            raise_way(self._choices, self._numbers, path, further, reason)
            return
        around = self._around(path)
        for each in self._numbers.values():
            is_near = each.path in around or each.path.startswith(f"{path}/")
            if is_near and each.path not in self._choices:
                further = self._next_way(each.path) or FLOAT32
                raise_way(self._choices, self._numbers, each.path, further, reason)

    def _next_way(self, path: str) -> str | None:
        way = self._choices[path].way if path in self._choices else FLOAT16
        return next_way(self._numbers[path], way)

    def _around(self, path: str) -> tuple[str, ...]:
        return self._numbers[path].around

    def _known(self, path: str) -> str:
        """Returns the innermost layer of a path that was called."""
        while path not in self._numbers and "/" in path:
            path = path.rpartition("/")[0]
        if path not in self._numbers:  # an operation, or the loss: of the last layer
            return next(reversed(self._numbers))
        return path

    def _largest_errors(
        self, runs: list[Backpropagation], tolerance: float
    ) -> list[tuple[str, float]]:
        """Returns the layers without whose errors the others would be tolerable.

        Each with its share of the gradient error, the largest first.
        """
        errors: dict[str, float] = {}
        for found, reference in zip(runs, self._references, strict=True):
            expected = dict(reference.weight_gradients)
            size = math.sqrt(sum(_square(each) for each in expected.values())) or 1.0
            for path, gradient in found.weight_gradients:
                with np.errstate(invalid="ignore"):  # infinite in both
                    difference = _in_float64(gradient) - _in_float64(expected[path])
                error = math.sqrt(_square(difference)) / size
                owner = self._known(path.rpartition("/")[0])
                errors[owner] = math.hypot(errors.get(owner, 0.0), error)
        ranked = sorted(errors.items(), key=lambda item: item[1], reverse=True)
        rest = math.hypot(*errors.values())
        chosen = []
        for path, error in ranked:
            if math.isfinite(rest) and rest <= tolerance / 2:
                break
            if not self._has_left(path):
                chosen.append((path, error))
            rest = math.hypot(
                *(e for _, e in ranked[ranked.index((path, error)) + 1 :])
            )
        return chosen

    def _has_left(self, path: str) -> bool:
        """Tells whether a layer has no further way, and none is left around it."""
        return self._next_way(path) is None and all(
            each in self._choices for each in self._around(path)
        )


def _in_order(
    choices: dict[str, Choice], numbers: dict[str, LayerNumbers]
) -> Iterator[LayerPlan]:
    """Yields the plan in the order of computation, then layers that were not called."""
    for path in dict.fromkeys([*numbers, *choices]):
        if path in choices:
            elements = numbers[path].elements if path in numbers else 0
            yield LayerPlan(path, choices[path].way, choices[path].reason, 2 * elements)


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


def _check_policies(model: Any) -> None:
    found = {layer.compute_dtype for layer in ModelIndex(model).layers}
    if "bfloat16" in found:
        raise ValueError(
            "A plan is for FP16. Received: a model with layers in bfloat16, which has "
            "the range of FP32 and overflows where FP32 does. Build the model under "
            "mixed_float16."
        )


def _check_losses(runs: list[Backpropagation]) -> None:
    for each in runs:
        if not np.isfinite(each.loss):
            raise ValueError(
                "The loss must be finite in FP32. Received: "
                f"{float(each.loss)}. No precision helps: look at the data, the "
                "learning rate and the loss."
            )


def _in_float64(tensor: Any) -> Any:
    return ops.convert_to_numpy(tensor).astype(np.float64)


def _square(tensor: Any) -> float:
    """Returns the sum of the squares; inf where a number is not finite."""
    total = float(np.sum(np.square(_in_float64(tensor))))
    return total if math.isfinite(total) else math.inf
