"""`inspect`: one batch through a model, and what FP16 does to its values."""

import dataclasses
from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_mp.diagnostics.numerics import Entry, Numerics
from keras_mp.diagnostics.statistics import TensorStatistics
from keras_mp.diagnostics.updates import Difference, updates_of
from keras_mp.precision.batch import (
    as_batch,
    check_model,
    fp32_value,
    master_values,
    scale_of,
)
from keras_mp.precision.compute_dtype import notes_on_cached_tensors
from keras_mp.precision.observation import floating_tensors
from keras_mp.precision.run import Trace, overrides, run_batch, weight_paths


def inspect(
    model: keras.Model,
    x: Any,
    y: Any,
    sample_weight: Any = None,
    loss_scale: float | None = None,
    as_is: bool = False,
) -> Numerics:
    """Runs one batch through a model and reports what FP16 does to its values.

    Activations, their gradients, weights, weight gradients and updates come from the
    model in FP32, so they show what FP16 *would* lose. In addition the batch is run in
    FP16, without a loss scale and with one, and the loss, the outputs and the gradients
    are compared. Nothing of the model, its optimizer, metrics or seeds is changed. Its
    layers have other dtype policies for the time of the call, so that no other thread
    may run the model meanwhile.

    The outputs of all layers are seen, at any depth and in any model; of recurrent
    layers at all time steps, with the gradients of what the layer returns. To see a
    tensor in the middle of a layer, pass it through a `keras_mp.layers.Probe`.

    Args:
        model: `keras.Model`, built and compiled, of any dtype policy.
        x: array or tensor, or a structure of several: one batch of inputs.
        y: as `x`: its targets.
        sample_weight: as `x`, or None (default).
        loss_scale: positive float, at which the gradients of FP16 are computed.
            Defaults to the loss scale of the model's optimizer, or 1.
        as_is: bool, default False: whether to compute the values under the model's own
            policy, at `loss_scale` and divided by it, instead of in FP32.

    Returns:
        `Numerics`. Printed, it is a table, the worst layers first.

    Raises:
        TypeError: `model` is not a `keras.Model`.
        ValueError: it is not built, not compiled, has no trainable weights, or cannot
            run in FP16; `loss_scale` is not positive; the batch or its loss is not
            finite.
        RuntimeError: Keras is on another backend than TensorFlow, or another thread
            looks at the model.

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
    in_fp32 = run_batch(model, batch, dtype="float32", masters=masters)
    shown = run_batch(model, batch, scale, masters=masters) if as_is else in_fp32
    _check_run(shown)
    in_fp16 = {each: _run_in_fp16(model, batch, each, masters) for each in {1.0, scale}}
    report = Numerics(
        entries=(
            *_activations(shown),
            *_weights(model, shown, in_fp32, in_fp16[scale], masters),
        ),
        loss=float(shown.loss),
        loss_scale=scale,
        gradient_errors={},
        **_forward_errors(in_fp16[1.0], in_fp32),
    )
    suggested = report.suggested_scale()
    if suggested not in in_fp16:
        in_fp16[suggested] = _run_in_fp16(model, batch, suggested, masters)
    return dataclasses.replace(
        report,
        gradient_errors={
            each: _gradient_error(fp16, in_fp32) for each, fp16 in in_fp16.items()
        },
        notes=tuple(_notes(model, in_fp32, report)),
    )


def _run_in_fp16(
    model: keras.Model,
    batch: tuple[Any, Any, Any],
    scale: float,
    masters: dict[int, Any],
) -> Trace:
    """Runs the batch in FP16, and keeps none of the many activations.

    Raises:
        ValueError: the code of the model computes in several dtypes at once.
    """
    import tensorflow as tf

    try:
        found = run_batch(model, batch, scale, "float16", masters)
    except tf.errors.InvalidArgumentError as error:
        raise ValueError(
            "The model must be able to run in FP16, where TensorFlow has no operation "
            f"on two dtypes. Received: {model.name!r}, which fails with the error "
            "below. Where the code of a layer or a loss computes with tensors of "
            "several dtypes, cast them: keras.ops.cast(y, x.dtype).\n"
            f"{error.message}"
        ) from error
    return dataclasses.replace(found, calls=[])


def _notes(model: keras.Model, in_fp32: Trace, report: Numerics) -> Iterator[str]:
    """Yields what the report does not see, or sees otherwise than training does."""
    if overrides(model, "train_step"):
        yield "the model's own `train_step` is not run, only `compute_loss`"
    yield from notes_on_cached_tensors(model)
    for path in in_fp32.unseen:
        yield f"{path!r} is not shown: its class has `__slots__`"
    if in_fp32.random and report.needs_fp32():
        yield (
            f"{', '.join(map(repr, in_fp32.random))} drew random numbers, which may be "
            "others in FP16 than in FP32: all that is off may come from there"
        )


def _forward_errors(in_fp16: Trace, in_fp32: Trace) -> dict[str, Any]:
    """Returns the loss in FP16, its error and the error of the outputs."""
    return {
        "fp16_loss": float(in_fp16.loss),
        "loss_error": _relative_error([in_fp16.loss], [in_fp32.loss]),
        "output_error": _relative_error(
            *(floating_tensors(each.predictions) for each in (in_fp16, in_fp32))
        ),
    }


def _check_run(run: Trace) -> None:
    if not np.isfinite(run.loss):
        raise ValueError(
            "The loss of the batch must be finite. Received: "
            f"{float(run.loss)}. keras_mp.find_overflow(model, x, y) tells where the "
            "first infinity or NaN comes from."
        )
    if not run.weight_gradients:
        raise ValueError(
            "The loss must depend on the trainable weights. Received: no gradient for "
            "any of them. Is the loss computed from the outputs of the model?"
        )


def _activations(run: Trace) -> Iterator[Entry]:
    gradients = dict(run.activation_gradients)
    for path, activation in run.activations:
        yield Entry(path, "activation", TensorStatistics.of(activation))
        if path in gradients:
            statistics = TensorStatistics.of(gradients[path])
            yield Entry(path, "activation_gradient", statistics)


def _weights(
    model: keras.Model,
    shown: Trace,
    in_fp32: Trace,
    in_fp16: Trace,
    masters: dict[int, Any],
) -> Iterator[Entry]:
    """Yields the entries of each weight that has a gradient."""
    paths, weights = weight_paths(model), model.trainable_variables
    references = dict(in_fp32.weight_gradients)
    shown_gradients = dict(shown.weight_gradients)
    halves = dict(in_fp16.weight_gradients)
    values = [fp32_value(weight, masters) for weight in weights]
    updates = updates_of(
        model.optimizer, weights, values, [references.get(path) for path in paths]
    )
    for path, value, update in zip(paths, values, updates, strict=True):
        if path not in references:
            continue
        yield Entry(path, "weight", TensorStatistics.of(value))
        gradient = TensorStatistics.of(shown_gradients[path])
        difference = Difference.between(halves[path], references[path])
        yield Entry(path, "weight_gradient", gradient, *_parts(difference))
        yield Entry(
            path,
            "update",
            TensorStatistics.of(update.values),
            *_parts(update.difference),
            update.too_small,
            update.absorbed,
            update.rounding_noise,
        )


def _parts(difference: Difference) -> tuple[float, float | None]:
    return difference.relative_error, difference.cosine


def _gradient_error(run: Trace, reference: Trace) -> float:
    return _relative_error(
        *([grad for _, grad in each.weight_gradients] for each in (run, reference))
    )


def _relative_error(found: list[Any], expected: list[Any]) -> float:
    """Returns the relative error of several tensors, taken as one vector."""
    vectors = (
        np.concatenate([np.ravel(ops.cast(x, "float32")) for x in [*tensors, ()]])
        for tensors in (found, expected)
    )
    return Difference.between(*vectors).relative_error
