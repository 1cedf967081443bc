"""`inspect`: one batch through a model, and what FP16 does to its numbers."""

from typing import Any

import keras
import numpy as np
from keras import ops

from keras_mp.arguments import positive_number
from keras_mp.diagnostics.numerics import Entry, Numerics
from keras_mp.diagnostics.statistics import TensorStatistics
from keras_mp.diagnostics.subject import Backpropagation, Subject
from keras_mp.diagnostics.twin import computes_in_16_bits
from keras_mp.diagnostics.updates import Difference, updates_of


def inspect(
    model: keras.Model,
    x: Any,
    y: Any,
    sample_weight: Any = None,
    loss_scale: float | None = None,
    as_is: bool = False,
) -> Numerics:
    """Runs one batch through a model and tells what FP16 does to its numbers.

    Activations, their gradients, weights, weight gradients and updates are those of the
    model computed in FP32, on a twin with the same values, so that they show what FP16
    *would* lose. Beside them the batch is run in FP16, without a loss scale and with
    one, and the gradients are compared. Nothing of the model, its optimizer, metrics or
    seeds is changed.

    The outputs of all layers of functional, Sequential and nested models are seen, of
    recurrent layers those of all time steps; the gradients of these are those of what
    the layer returns. Inside a layer or model with a `call` of its own, what passes
    through a `keras_mp.layers.Probe` is seen.

    Args:
        model: `keras.Model`, built and compiled, of any dtype policy.
        x: array or tensor, or a structure of several: one batch of inputs.
        y: as `x`: its targets.
        sample_weight: as `x`, or None (default).
        loss_scale: positive float, at which the gradients of FP16 are computed.
            Defaults to that of the model's optimizer, or 1.
        as_is: bool, default False: whether the numbers are to be those of the model
            under its own policy, at `loss_scale` and divided by it, instead of those of
            the twin.

    Returns:
        `Numerics`. Printed, it is a table, the worst layers first.

    Raises:
        TypeError: `model` is not a `keras.Model`.
        ValueError: it is not built, not compiled, or has no trainable weights; a layer
            cannot be made from its config; `loss_scale` is not positive.
        RuntimeError: Keras is on another backend than TensorFlow.

    Example:

    >>> model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    >>> model.compile(optimizer=keras_mp.wrap("sgd"), loss="mse")
    >>> report = keras_mp.inspect(model, np.ones((2, 4)), np.full((2, 1), 1e-9))
    >>> [entry.kind for entry in report.entries][:2]
    ['activation', 'activation_gradient']

    Reference: Mixed Precision Training, section 3.2 and figure 3.
    """
    _check(model)
    scale = _scale_of(model, loss_scale)
    x, y, sample_weight = (_as_tensors(each) for each in (x, y, sample_weight))
    batch = (x, y, sample_weight)
    values = _master_values(model)
    is_16_bit = computes_in_16_bits(model)

    low = Subject(model, None if is_16_bit else "mixed_float16", values)
    low_runs = {s: low.run(*batch, s) for s in {1.0, scale}}
    if as_is:
        shown, divisor = low_runs[scale] if is_16_bit else _run(model, batch), scale
        divisor = scale if is_16_bit else 1.0
    else:
        shown, divisor = Subject(model, "float32", values).run(*batch, 1.0), 1.0
    reference = (
        shown if not as_is else Subject(model, "float32", values).run(*batch, 1.0)
    )

    entries = _entries(model, shown, divisor, reference, low_runs[scale], scale, values)
    draft = Numerics(
        tuple(entries),
        float(shown.loss),
        scale,
        {s: _error(run, s, reference) for s, run in low_runs.items()},
        _notes(low),
    )
    suggested = draft.suggested_scale()
    if suggested not in low_runs:
        run = low.run(*batch, suggested)
        errors = {**draft.gradient_errors, suggested: _error(run, suggested, reference)}
        draft = Numerics(
            draft.entries, draft.loss, draft.loss_scale, errors, draft.notes
        )
    return draft


def _run(model: Any, batch: Any) -> Backpropagation:
    return Subject(model, None, {}).run(*batch, 1.0)


def _entries(
    model: Any,
    shown: Backpropagation,
    divisor: float,
    reference: Backpropagation,
    low: Backpropagation,
    scale: float,
    values: dict[int, Any],
) -> list[Entry]:
    """Returns the entries, in the order of computation."""
    found = TensorStatistics.of
    activation_gradients = dict(shown.activation_gradients)
    entries = []
    for path, activation in shown.activations:
        entries.append(Entry(path, "activation", found(activation)))
        if path in activation_gradients:
            gradient = _unscaled(activation_gradients[path], divisor)
            entries.append(Entry(path, "activation_gradient", found(gradient)))

    weights = {v.path: v for v in model.trainable_variables}
    low_gradients = dict(low.weight_gradients)
    references = dict(reference.weight_gradients)
    paths = [path for path, _ in reference.weight_gradients]
    in_fp32 = [_value(weights[path], values) for path in paths]
    updates = updates_of(
        model.optimizer,
        [weights[path] for path in paths],
        in_fp32,
        [ops.cast(references[path], "float32") for path in paths],
    )
    shown_gradients = dict(shown.weight_gradients)
    for path, value, update in zip(paths, in_fp32, updates, strict=True):
        entries.append(Entry(path, "weight", found(value)))
        gradient = _unscaled(shown_gradients[path], divisor)
        difference = Difference.between(
            _unscaled(low_gradients[path], scale), references[path]
        )
        entries.append(
            Entry(path, "weight_gradient", found(gradient), *_parts(difference))
        )
        entries.append(
            Entry(
                path,
                "update",
                found(update.values),
                *_parts(update.difference),
                update.too_small,
                update.absorbed,
            )
        )
    return entries


def _parts(difference: Difference) -> tuple[float, float | None]:
    return difference.relative_error, difference.cosine


def _error(run: Backpropagation, scale: float, reference: Backpropagation) -> float:
    """Returns the relative error of all weight gradients as one vector."""
    low = dict(run.weight_gradients)
    pairs = [
        (_unscaled(low[path], scale), gradient)
        for path, gradient in reference.weight_gradients
    ]
    joined = (np.concatenate([np.ravel(x) for x in side]) for side in zip(*pairs))
    return Difference.between(*joined).relative_error


def _unscaled(gradient: Any, scale: float) -> Any:
    return ops.cast(gradient, "float32") / scale


def _value(variable: Any, values: dict[int, Any]) -> Any:
    value = values.get(id(variable), variable)
    return ops.cast(ops.convert_to_tensor(value), "float32")


def _master_values(model: Any) -> dict[int, Any]:
    """Returns the FP32 value of each weight that has a master, by the weight's `id`."""
    current_masters = getattr(model.optimizer, "current_masters", None)
    return current_masters() if current_masters and model.optimizer.built else {}


def _scale_of(model: Any, loss_scale: float | None) -> float:
    if loss_scale is not None:
        return positive_number("loss_scale", loss_scale, "Try 2.0**15.")
    scale = getattr(model.optimizer, "loss_scale", None)
    if scale is None:
        scale = getattr(model.optimizer, "dynamic_scale", 1.0)
    return float(scale)


def _as_tensors(data: Any) -> Any:
    """Returns arrays as tensors, of float32 where NumPy made them float64."""

    def convert(x: Any) -> Any:
        tensor = ops.convert_to_tensor(x)
        is_wide = keras.backend.standardize_dtype(tensor.dtype) == "float64"
        return ops.cast(tensor, keras.config.floatx()) if is_wide else tensor

    return None if data is None else keras.tree.map_structure(convert, data)


def _notes(subject: Subject) -> tuple[str, ...]:
    if subject.sees_layers:
        return ()
    return (
        "the model has a `call` of its own: of its activations only those are seen that "
        "pass through a keras_mp.layers.Probe",
    )


def _check(model: Any) -> None:
    if keras.backend.backend() != "tensorflow":
        raise RuntimeError(
            "`inspect` needs Keras on the TensorFlow backend. Received: "
            f"backend={keras.backend.backend()!r}. Set KERAS_BACKEND=tensorflow before "
            "Keras is imported."
        )
    if not isinstance(model, keras.Model):
        raise TypeError(
            "`model` must be a keras.Model. Received: "
            f"an object of the class {type(model).__name__}."
        )
    if not model.built:
        raise ValueError(
            "`model` must be built, so that it has weights. Received: "
            f"{model.name!r}, not built. Give it an Input, or call it once on a batch."
        )
    if not model.compiled or model.optimizer is None:
        raise ValueError(
            "`model` must be compiled with an optimizer and a loss. Received: "
            f"{model.name!r}, not compiled. Call model.compile(optimizer=..., "
            "loss=...)."
        )
    if not model.trainable_variables:
        raise ValueError(
            "`model` must have trainable weights. Received: "
            f"{model.name!r} without any. Set `trainable = True` on its layers."
        )
