"""`find_overflow`: the layer where the values of a batch first overflow."""

from dataclasses import dataclass, replace
from typing import Any

import keras
import numpy as np

from keras_mp.diagnostics.division_by_zero import (
    advice_on,
    find_divisor,
    returns_nan_for_zeros,
)
from keras_mp.precision.batch import (
    as_batch,
    check_model,
    master_values,
    scale_of,
)
from keras_mp.precision.observation import CallRecord
from keras_mp.precision.run import Trace, run_batch, weight_paths

_ADVICE = {
    "weight": (
        "The damage was done before: go back to a checkpoint from before it, and train "
        "on with keras_mp.wrap(optimizer), which skips a step that overflows."
    ),
    "forward": (
        "No loss scale helps. keras_mp.plan_precision(model, x, y).apply(model) gives "
        "FP32 to the layers that need it; or keep the inputs of this layer small: "
        "normalize them, clip them, or lower the learning rate."
    ),
    "loss": (
        "No loss scale helps. Give the last layer dtype='float32', and let the loss "
        "cast what it sums to FP32."
    ),
    "backward": (
        "Train with a smaller loss scale: DynamicLossScale finds one automatically. If "
        "it falls without an end, apply keras_mp.plan_precision(model, x, y), or clip "
        "gradients."
    ),
}


@dataclass(frozen=True)
class Overflow:
    """Where the values of a batch stop being finite.

    Attributes:
        path: str, of the layer, or of the weight that has this gradient; of the model,
            if it is the loss.
        where: `"weight"`, `"forward"`, `"loss"` or `"backward"`.
        largest: float or None, the largest finite magnitude of what was computed
            before.
        divisor: str or None, the path of a layer that divides by zero, which is the
            cause: not an overflow, and FP32 also has it.

    Example:

    >>> print(keras_mp.Overflow("dense", "backward", 1024.0))
    The gradient of 'dense' is not finite; the largest magnitude before it: 1024. ...
    """

    path: str
    where: str
    largest: float | None
    divisor: str | None = None

    @property
    def advice(self) -> str:
        """What to do about it."""
        if self.divisor is not None:
            return advice_on(self.divisor)
        return _ADVICE[self.where]

    def __str__(self) -> str:
        what = {
            "weight": f"The weight {self.path!r} is not finite",
            "forward": f"The output of {self.path!r} is not finite",
            "loss": "The loss is not finite, and all outputs are",
            "backward": f"The gradient of {self.path!r} is not finite",
        }[self.where]
        before = f"{self.largest:.4g}" if self.largest is not None else "none"
        return f"{what}; the largest magnitude before it: {before}. {self.advice}"


def find_overflow(
    model: keras.Model,
    x: Any,
    y: Any,
    sample_weight: Any = None,
    loss_scale: float | None = None,
) -> Overflow | None:
    """Finds the layer where the values of a batch first overflow.

    The batch is run under the model's own dtype policy. First come the weights
    themselves, then what the layers compute, at any depth and in the order of
    computation, then the loss, then the gradients of the scaled loss, in the order of
    backpropagation: of the outputs of a layer, then of its weights, then of the layer
    that comes before it. The innermost layer is named: one with sublayers, if its own
    arithmetic overflows. If the loss is finite, -inf in an output is taken for a mask.
    Nothing of the model, its optimizer, metrics or seeds is changed.

    Args:
        model: `keras.Model`, built and compiled.
        x: array or tensor, or a structure of several: one batch of inputs.
        y: as `x`: its targets.
        sample_weight: as `x`, or None (default).
        loss_scale: positive float. Defaults to the loss scale of the model's optimizer,
            or 1.

    Returns:
        `Overflow`, or None if all values are finite.

    Raises:
        TypeError, ValueError, RuntimeError: as for `inspect`.

    Example:

    >>> model = keras.Sequential([
    ...     keras.Input((4,)),
    ...     keras.layers.Dense(2, name="fine", dtype="float16"),
    ...     keras.layers.Rescaling(1e5, name="too_large", dtype="float16")])
    >>> model.compile(optimizer="sgd", loss="mse")
    >>> found = keras_mp.find_overflow(model, np.ones((8, 4)), np.ones((8, 2)))
    >>> found.path, found.where
    ('too_large', 'forward')

    Reference: Mixed Precision Training, section 3.2.
    """
    check_model(model)
    scale = scale_of(model, loss_scale)
    for weight in model.variables:
        if "float" in weight.dtype and not _is_finite(weight):
            return Overflow(weight.path, "weight", _largest([weight]))
    batch = as_batch(x, y, sample_weight)
    masters = master_values(model)
    found = run_batch(model, batch, scale, masters=masters)
    overflow = in_forward_pass(model, found) or in_backward_pass(model, found, scale)
    if overflow is not None and overflow.where == "backward":
        in_fp32 = run_batch(model, batch, dtype="float32", masters=masters)
        overflow = replace(overflow, divisor=find_divisor(in_fp32.calls))
    return overflow


def in_forward_pass(model: keras.Model, found: Trace) -> Overflow | None:
    """Returns the first overflow in the order of computation."""
    before: list[Any] = []
    for path, tensor in _in_order_of_computation(model, found.calls):
        if not _is_finite(tensor) and not _is_masked(tensor, found.loss):
            calls = (c for c in found.calls if any(x is tensor for x in c.outputs))
            divisors = (c.path for c in calls if returns_nan_for_zeros(c, tensor))
            largest = _largest([*before, tensor])
            return Overflow(path, "forward", largest, next(divisors, None))
        before.append(tensor)
    if not _is_finite(found.loss):
        return Overflow(model.name, "loss", _largest(before))
    return None


def _in_order_of_computation(
    model: keras.Model, calls: list[CallRecord]
) -> list[tuple[str, Any]]:
    """Returns what layers are given and what they return, once, each with its origin.

    What a layer is given, and no layer has returned, is what the layer around it has
    computed itself.
    """
    events = []
    for index, call in enumerate(calls):
        origin = call.outer.path if call.outer else model.name
        # Of two calls that begin after the same one has ended, the outer comes first.
        began = (call.calls_before, 0, -index)
        events += [(began, origin, tensor) for tensor in call.inputs]
        events += [((index, 1, 0), call.path, tensor) for tensor in call.outputs]
    events.sort(key=lambda event: event[0])
    first: dict[int, tuple[str, Any]] = {}
    for _, path, tensor in events:
        first.setdefault(id(tensor), (path, tensor))
    return list(first.values())


def _is_masked(tensor: Any, loss: Any) -> bool:
    """Tells whether all that is not finite is -inf, and the loss is finite with it."""
    numbers = _in_float64(tensor)
    return _is_finite(loss) and _is_finite(numbers[numbers != -np.inf])


def in_backward_pass(model: keras.Model, found: Trace, scale: float) -> Overflow | None:
    """Returns the first overflow in the order of backpropagation."""
    order = {id(call): index for index, call in enumerate(found.calls)}
    used_by: dict[int, int] = {}  # a variable: the first call that uses it
    for call in found.calls:
        for variable in getattr(call.layer, "variables", ()):
            used_by.setdefault(id(variable), order[id(call)])
    steps = [
        (order[id(call)], 1, call.path, call.gradients[i])
        for _, call, i in found.outputs
        if call.gradients[i] is not None
    ]
    variables = dict(zip(weight_paths(model), model.trainable_variables, strict=True))
    # The last weight of a layer first: within it, they are in the order of their use.
    for path, gradient in reversed(found.weight_gradients):
        steps.append((used_by.get(id(variables[path]), -1), 0, path, gradient))
    before: list[Any] = []
    for _, _, path, gradient in sorted(steps, key=lambda s: s[:2], reverse=True):
        if not _is_finite(gradient):
            largest = _largest([*before, gradient])
            return Overflow(path, "backward", largest and largest * scale)
        before.append(gradient)
    return None


def _in_float64(tensor: Any) -> Any:
    if isinstance(tensor, np.ndarray):
        return tensor.astype(np.float64)
    # Keras cannot convert a bfloat16 scalar.
    fp32 = keras.ops.cast(tensor, "float32")
    return keras.ops.convert_to_numpy(fp32).astype(np.float64)


def _is_finite(tensor: Any) -> bool:
    return bool(np.all(np.isfinite(_in_float64(tensor))))


def _largest(tensors: list[Any]) -> float | None:
    """Returns the largest finite magnitude of all tensors."""
    arrays = [np.abs(_in_float64(tensor)) for tensor in tensors]
    finite = [float(a[np.isfinite(a)].max()) for a in arrays if np.isfinite(a).any()]
    return max(finite, default=None)
