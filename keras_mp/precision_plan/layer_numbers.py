"""`LayerNumbers`: how large the numbers of each layer are when a model runs in FP32."""

from dataclasses import dataclass
from typing import Any

import keras
import numpy as np

from keras_mp import keras_internals
from keras_mp.diagnostics.subject import Backpropagation
from keras_mp.dtypes import is_half
from keras_mp.layers.conversion.products import computes_products
from keras_mp.precision.model_index import LayerEntry, ModelIndex


@dataclass
class LayerNumbers:
    """The largest magnitudes of a layer, and its place in the model.

    Attributes:
        path: str.
        around: tuple of the paths of the layers that compute in their own code with
            what this one returns.
        has_matmul: bool, whether it can multiply in FP16 with FP32 results, and has
            not FP32 from its author.
        casts_inputs: bool, whether Keras casts what it is given to what it computes in.
        inputs: float, the largest magnitude of what it is given.
        outputs: float, of what it returns, and of what operations of a functional model
            make of that.
        gradients: float, of the gradients of its outputs.
        weights: float, of its own trainable weights.
        matrices: float, of those that a product may multiply, and not biases.
        elements: int, how many numbers it returns.
    """

    path: str
    around: tuple[str, ...] = ()
    has_matmul: bool = False
    casts_inputs: bool = True
    inputs: float = 0.0
    outputs: float = 0.0
    gradients: float = 0.0
    weights: float = 0.0
    matrices: float = 0.0
    elements: int = 0


def numbers_of(model: Any, runs: list[Backpropagation]) -> dict[str, LayerNumbers]:
    """Returns the numbers of each layer by path, in the order of computation.

    Args:
        model: `keras.Model`.
        runs: list of `Backpropagation` of the model in FP32, one for each batch.
    """
    index = ModelIndex(model)
    around: dict[str, list[str]] = {}
    for path, entry in index.items():
        for child in entry.children if entry.kind != "graph" else ():
            around.setdefault(child.path, []).append(path)
    found: dict[str, LayerNumbers] = {}
    for run in runs:
        for call in run.calls:
            if isinstance(call.layer, keras.Layer):
                entry = index.of(call.layer)
                if entry.kind != "graph":
                    outer = tuple(around.get(entry.path, ()))
                    found.setdefault(entry.path, _without_numbers(entry, outer))
        _add(found, run)
    return found


def _without_numbers(entry: LayerEntry, around: tuple[str, ...]) -> LayerNumbers:
    layer = entry.layer
    own = [w for w, _ in keras_internals.own_variables(layer) if w.trainable]
    return LayerNumbers(
        entry.path,
        around,
        computes_products(layer) and is_half(layer.compute_dtype),
        layer.autocast,
        weights=largest(own),
        matrices=largest([each for each in own if len(each.shape) > 1]),
    )


def _add(found: dict[str, LayerNumbers], run: Backpropagation) -> None:
    """Adds what one batch shows."""
    origins: dict[int, list[LayerNumbers]] = {}  # a tensor: the layers it is made by
    for call in run.calls:
        gradients = [each for each in call.gradients if each is not None]
        if isinstance(call.layer, keras.Layer):
            numbers = found.get(call.path)
            if numbers is None:
                continue
            if _rounds_inputs(call.layer):
                numbers.inputs = max(numbers.inputs, largest(call.inputs))
            numbers.elements += sum(int(np.prod(x.shape)) for x in call.outputs)
            makers = [numbers]
        else:
            makers = [each for x in call.inputs for each in origins.get(id(x), ())]
        for numbers in makers:
            numbers.outputs = max(numbers.outputs, largest(call.outputs))
            numbers.gradients = max(numbers.gradients, largest(gradients))
        for tensor in call.outputs:
            origins.setdefault(id(tensor), makers)


def _rounds_inputs(layer: Any) -> bool:
    """Tells whether a converted layer casts what it is given: ids and features stay."""
    if isinstance(layer, keras.layers.Embedding):
        return computes_products(layer)
    return not isinstance(layer, keras.layers.Normalization)


def largest(tensors: list[Any]) -> float:
    """Returns the largest magnitude of all numbers of some tensors."""
    arrays = [keras.ops.convert_to_numpy(tensor) for tensor in tensors]
    return max((float(np.max(np.abs(x), initial=0.0)) for x in arrays), default=0.0)
