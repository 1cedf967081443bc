"""A model run forward and backward once, in the precision of choice."""

import functools
from dataclasses import dataclass
from typing import Any

import keras
from keras import ops

from keras_mp.diagnostics.observation import (
    Call,
    Observation,
    floating_tensors,
    is_floating,
)
from keras_mp.diagnostics.paths import numbered
from keras_mp.diagnostics.precision import Values, computing_in
from keras_mp.dtypes import is_half


@dataclass
class Backpropagation:
    """What one forward and backward pass computed.

    All gradients are those of the loss times the scale, divided by the scale.

    Attributes:
        calls: list of `Call`, of all layers at any depth, in the order of computation.
        weight_gradients: list of (path, float32 tensor), in the order of the weights.
        predictions: the outputs of the model.
        loss: scalar float32 tensor, not scaled.
    """

    calls: list[Call]
    weight_gradients: list[tuple[str, Any]]
    predictions: Any
    loss: Any

    @property
    def activations(self) -> list[tuple[str, Any]]:
        """The tensors that layers return, each with its path, in that order."""
        return [(path, call.shown[i]) for path, call, i in self.outputs]

    @property
    def activation_gradients(self) -> list[tuple[str, Any]]:
        """The gradients that there are of them, float32, each with that path."""
        return [
            (path, call.gradients[i])
            for path, call, i in self.outputs
            if call.gradients[i] is not None
        ]

    @functools.cached_property
    def outputs(self) -> list[tuple[str, Call, int]]:
        """The tensors that layers return: path, call, and which of its outputs.

        What a layer returns as one inside it has returned it, is listed there alone.
        """
        first: dict[int, int] = {}  # by the `id` of a tensor: the call it came from
        outputs = []
        for index, call in enumerate(self.calls):
            for i, tensor in enumerate(call.outputs):
                if first.get(id(tensor), -1) < call.calls_before:
                    outputs.append((call, i))
                first.setdefault(id(tensor), index)
        paths = numbered([call.path for call, _ in outputs])
        return [(path, *each) for path, each in zip(paths, outputs, strict=True)]


def run(
    model: Any,
    batch: tuple[Any, Any, Any],
    scale: float = 1.0,
    dtype: str | None = None,
    masters: dict[int, Any] | None = None,
) -> Backpropagation:
    """Runs one batch forward and backward, as a step of training would.

    Whatever the layers assign to their variables, statistics and seeds among them, is
    forgotten.

    Args:
        model: `keras.Model`, built and compiled.
        batch: tuple of inputs, targets and sample weights: a tensor each, a structure
            of several, or None.
        scale: float, the loss is multiplied by it before it is differentiated.
        dtype: `"float32"`, `"float16"`, or None, for the precision of the model itself.
        masters: dict from the `id` of a variable to the value it is to have instead of
            its own.
    """
    import tensorflow as tf

    x, y, sample_weight = batch
    values = [(v, _value(v, dtype, masters or {})) for v in model.variables]
    by_id = {id(variable): value for variable, value in values}
    weights = [by_id[id(variable)] for variable in model.trainable_variables]
    with tf.GradientTape() as tape:
        tape.watch(weights)
        # So that layers before the first weight have gradients, too.
        tape.watch(floating_tensors(x))
        with (
            computing_in(model, dtype),
            Values(values),
            Observation(model) as observation,
        ):
            predictions = model(x, training=True)
            loss = model.compute_loss(
                x=x,
                y=y,
                y_pred=predictions,
                sample_weight=sample_weight,
                training=True,
            )
            loss = ops.cast(loss, "float32")
            scaled = loss * scale
    calls = list(observation.calls)
    outputs = [call.outputs for call in calls]
    weight_gradients, gradients = tape.gradient(scaled, [weights, outputs])
    for call, found in zip(calls, gradients, strict=True):
        call.gradients = [_unscaled(gradient, scale) for gradient in found]
    pairs = zip(weight_paths(model), weight_gradients, strict=True)
    return Backpropagation(
        calls,
        [(path, _unscaled(grad, scale)) for path, grad in pairs if grad is not None],
        predictions,
        loss,
    )


def overrides(model: Any, method: str) -> bool:
    """Tells whether the class of a model has a method of its own."""
    return getattr(type(model), method) is not getattr(keras.Model, method)


def weight_paths(model: Any) -> list[str]:
    """Returns the paths of the trainable weights, each another one, in their order."""
    return numbered([variable.path for variable in model.trainable_variables])


def _value(variable: Any, dtype: str | None, masters: dict[int, Any]) -> Any:
    """Returns a tensor with the value of a variable, in the precision of the run."""
    value = ops.convert_to_tensor(masters.get(id(variable), variable))
    stored = dtype if dtype and is_half(variable.dtype) else variable.dtype
    # A copy: of the trainable ones the tape is to see one tensor.
    return ops.copy(ops.cast(value, stored)) if is_floating(value) else ops.copy(value)


def _unscaled(gradient: Any, scale: float) -> Any:
    """Returns a gradient, dense and divided, or None."""
    import tensorflow as tf

    if gradient is None:
        return None
    return ops.cast(tf.convert_to_tensor(gradient), "float32") / scale
