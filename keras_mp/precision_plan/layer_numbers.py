"""`LayerNumbers`: how large the numbers of each layer are when a model runs in FP32."""

from dataclasses import dataclass
from typing import Any

import keras
import numpy as np

from keras_mp import keras_internals
from keras_mp.diagnostics.paths import layers_by_path
from keras_mp.diagnostics.subject import Backpropagation
from keras_mp.layers.conversion.ways import computes_products, is_graph


@dataclass
class LayerNumbers:
    """The largest magnitudes of a layer, and where it stands in the model.

    Attributes:
        path: str.
        around: tuple of the paths of the layers whose own code computes with what this
            one returns.
        has_products: bool, whether it can multiply in FP16 with FP32 results.
        is_block: bool, whether it has sublayers.
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
    has_products: bool = False
    is_block: bool = False
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
    layers = layers_by_path(model)
    around: dict[int, list[str]] = {}
    for path, layer in layers.items():
        if not is_graph(layer):
            for sublayer in keras_internals.direct_sublayers(layer):
                around.setdefault(id(sublayer), []).append(path)
    paths = {id(layer): path for path, layer in layers.items()}
    found: dict[str, LayerNumbers] = {}
    for run in runs:
        for call in run.calls:
            if isinstance(call.layer, keras.Layer) and not is_graph(call.layer):
                path = paths[id(call.layer)]
                found.setdefault(path, _without_numbers(path, call.layer, around))
        _add(found, paths, run)
    return found


def _without_numbers(
    path: str, layer: Any, around: dict[int, list[str]]
) -> LayerNumbers:
    own = [w for w, _ in keras_internals.own_variables(layer) if w.trainable]
    return LayerNumbers(
        path,
        tuple(around.get(id(layer), ())),
        computes_products(layer),
        bool(keras_internals.direct_sublayers(layer)),
        layer.autocast,
        weights=largest(own),
        matrices=largest([each for each in own if len(each.shape) > 1]),
    )


def _add(
    found: dict[str, LayerNumbers], paths: dict[int, str], run: Backpropagation
) -> None:
    """Adds what one batch shows."""
    origins: dict[int, list[LayerNumbers]] = {}  # a tensor: the layers it is made by
    for call in run.calls:
        gradients = [each for each in call.gradients if each is not None]
        if isinstance(call.layer, keras.Layer):
            numbers = found.get(paths[id(call.layer)])
            if numbers is None:
                continue
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


def largest(tensors: list[Any]) -> float:
    """Returns the largest magnitude of all numbers of some tensors."""
    arrays = [keras.ops.convert_to_numpy(tensor) for tensor in tensors]
    return max((float(np.max(np.abs(x), initial=0.0)) for x in arrays), default=0.0)
