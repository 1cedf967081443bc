"""A model run forward and backward once, in the precision of choice."""

import functools
import inspect
from dataclasses import dataclass
from typing import Any

import keras
from keras import ops

from keras_mp import keras_internals
from keras_mp.precision.compute_dtype import computing_in, functions_run_eagerly
from keras_mp.precision.model_index import ModelIndex, numbered
from keras_mp.precision.observation import CallRecord, Observation, floating_tensors
from keras_mp.precision.random_numbers import cells_drawing_in_fp32, layers_that_drew
from keras_mp.precision.variable_values import (
    VariableValues,
    has_gradient,
    regularizing_in_fp32,
    variable_values,
)


@dataclass
class Trace:
    """What one forward and backward pass computed.

    All gradients belong to the loss times the scale, and are divided by the scale.

    Attributes:
        calls: list of `CallRecord`, of all layers at any depth, in the order of
            computation.
        weight_gradients: list of (path, float32 tensor), in the order of the weights.
        predictions: the outputs of the model.
        loss: scalar float32 tensor, not scaled.
        unseen: list of the paths of layers that are not among the calls.
        random: list of the paths of layers that drew random numbers, which may be
            others in another precision.
    """

    calls: list[CallRecord]
    weight_gradients: list[tuple[str, Any]]
    predictions: Any
    loss: Any
    unseen: list[str]
    random: list[str]

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
    def outputs(self) -> list[tuple[str, CallRecord, int]]:
        """The tensors that layers return: path, call, and which of its outputs.

        What a layer returns as one inside it has returned it, is listed only there.
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


def run_batch(
    model: keras.Model,
    batch: tuple[Any, Any, Any],
    scale: float = 1.0,
    dtype: str | None = None,
    masters: dict[int, Any] | None = None,
) -> Trace:
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
    index = ModelIndex(model)
    values = variable_values(model, dtype, masters or {})
    weights = [values[id(variable)] for variable in model.trainable_variables]
    with (
        Observation(model) as observation,
        keras_internals.computing_once([*index.layers, *index.operations.values()]),
        computing_in(model, dtype),
        cells_drawing_in_fp32(model),
        regularizing_in_fp32(model),
        functions_run_eagerly(),
        VariableValues(values) as scope,
    ):
        with tf.GradientTape() as tape:
            trained = zip(model.trainable_variables, weights, strict=True)
            tape.watch([weight for each, weight in trained if has_gradient(each)])
            # So that layers before the first weight have gradients, too.
            tape.watch(floating_tensors(x))
            predictions = model(x, training=True)
            loss = ops.cast(loss_of(model, x, y, predictions, sample_weight), "float32")
            scaled = loss * scale
        observation.stop()
        calls = observation.calls
        weight_gradients, gradients = tape.gradient(
            scaled, [weights, [call.outputs for call in calls]]
        )
    for call, found in zip(calls, gradients, strict=True):
        call.gradients = [_unscaled(gradient, scale) for gradient in found]
    pairs = zip(weight_paths(model), weight_gradients, strict=True)
    return Trace(
        calls,
        [(path, _unscaled(grad, scale)) for path, grad in pairs if grad is not None],
        predictions,
        loss,
        observation.unseen,
        layers_that_drew(model, scope),
    )


def loss_of(model: keras.Model, x: Any, y: Any, y_pred: Any, sample_weight: Any) -> Any:
    """Returns the loss, from a `compute_loss` of any signature that Keras admits."""
    arguments = {"training": True}
    if "training" not in inspect.signature(model.compute_loss).parameters:
        arguments = {}
    return model.compute_loss(x, y, y_pred, sample_weight, **arguments)


def overrides(model: keras.Model, method: str) -> bool:
    """Tells whether the class of a model has a method of its own."""
    return getattr(type(model), method) is not getattr(keras.Model, method)


def weight_paths(model: keras.Model) -> list[str]:
    """Returns the paths of the trainable weights, each another one, in their order.

    That of a weight is its name behind the path of its layer.
    """
    found = {
        id(variable): f"{path}/{variable.name}"
        for path, entry in ModelIndex(model).items()
        for variable, _ in keras_internals.own_variables(entry.layer)
    }
    return numbered([found[id(variable)] for variable in model.trainable_variables])


def _unscaled(gradient: Any, scale: float) -> Any:
    """Returns a gradient, dense and divided, or None."""
    import tensorflow as tf

    if gradient is None:
        return None
    return ops.cast(tf.convert_to_tensor(gradient), "float32") / scale
