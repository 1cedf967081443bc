"""`inspect`: one batch through a model, and what FP16 does to its numbers."""

import dataclasses
from collections.abc import Iterator
from typing import Any

import keras
import numpy as np

from keras_mp.diagnostics.arguments import (
    as_batch,
    check_model,
    fp32_value,
    master_values,
    scale_of,
)
from keras_mp.diagnostics.numerics import Entry, Numerics
from keras_mp.diagnostics.statistics import TensorStatistics
from keras_mp.diagnostics.subject import Backpropagation, Subject
from keras_mp.diagnostics.twin import computes_in_16_bits
from keras_mp.diagnostics.updates import Difference, updates_of

OWN_CALL = (
    "the model has a `call` of its own: of its activations only those are seen that "
    "pass through a keras_mp.layers.Probe"
)


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
    check_model(model)
    scale = scale_of(model, loss_scale)
    batch = as_batch(x, y, sample_weight)
    masters = master_values(model)
    is_16_bit = computes_in_16_bits(model)
    in_fp32 = Subject(model, "float32", masters).run(*batch, 1.0)
    fp16 = Subject(model, None if is_16_bit else "mixed_float16", masters)
    in_fp16 = {each: fp16.run(*batch, each) for each in {1.0, scale}}
    shown = in_fp32
    if as_is:
        own = Subject(model, None, masters)
        shown = in_fp16[scale] if is_16_bit else own.run(*batch, 1.0)
    report = Numerics(
        entries=(
            *_activations(shown),
            *_weights(model, shown, in_fp32, in_fp16[scale], masters),
        ),
        loss=float(shown.loss),
        loss_scale=scale,
        gradient_errors={},
        notes=() if fp16.sees_layers else (OWN_CALL,),
    )
    suggested = report.suggested_scale()
    if suggested not in in_fp16:
        in_fp16[suggested] = fp16.run(*batch, suggested)
    errors = {each: _error(run, in_fp32) for each, run in in_fp16.items()}
    return dataclasses.replace(report, gradient_errors=errors)


def _activations(run: Backpropagation) -> Iterator[Entry]:
    gradients = dict(run.activation_gradients)
    for path, activation in run.activations:
        yield Entry(path, "activation", TensorStatistics.of(activation))
        if path in gradients:
            statistics = TensorStatistics.of(gradients[path])
            yield Entry(path, "activation_gradient", statistics)


def _weights(
    model: Any,
    shown: Backpropagation,
    in_fp32: Backpropagation,
    in_fp16: Backpropagation,
    masters: dict[int, Any],
) -> Iterator[Entry]:
    """Yields the entries of each weight that has a gradient."""
    references = dict(in_fp32.weight_gradients)
    weights = [v for v in model.trainable_variables if v.path in references]
    values = [fp32_value(weight, masters) for weight in weights]
    gradients = [references[weight.path] for weight in weights]
    updates = updates_of(model.optimizer, weights, values, gradients)
    shown_gradients, halves = (
        dict(shown.weight_gradients),
        dict(in_fp16.weight_gradients),
    )
    for weight, value, update in zip(weights, values, updates, strict=True):
        path = weight.path
        yield Entry(path, "weight", TensorStatistics.of(value))
        yield Entry(
            path,
            "weight_gradient",
            TensorStatistics.of(shown_gradients[path]),
            *_parts(Difference.between(halves[path], references[path])),
        )
        yield Entry(
            path,
            "update",
            TensorStatistics.of(update.values),
            *_parts(update.difference),
            update.too_small,
            update.absorbed,
        )


def _parts(difference: Difference) -> tuple[float, float | None]:
    return difference.relative_error, difference.cosine


def _error(run: Backpropagation, reference: Backpropagation) -> float:
    """Returns the relative error of all weight gradients as one vector."""
    found, expected = (
        np.concatenate([np.ravel(gradient) for _, gradient in each.weight_gradients])
        for each in (run, reference)
    )
    return Difference.between(found, expected).relative_error
