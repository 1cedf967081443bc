"""`LayerRow`: how large the numbers of each layer are when a model runs in FP32."""

from dataclasses import dataclass
from typing import Any

import keras
import numpy as np

from keras_mp import keras_internals
from keras_mp.dtypes import is_half
from keras_mp.precision.batch import fp32_value
from keras_mp.precision.compute_dtype import is_quantized
from keras_mp.precision.counterparts import has_matmul
from keras_mp.precision.model_index import LayerEntry, ModelIndex
from keras_mp.precision.run import Trace
from keras_mp.precision.scope import members


@dataclass
class LayerRow:
    """The largest magnitudes of a layer, and its place in the model.

    Attributes:
        path: str.
        callers: tuple of the paths of the layers that compute in their own code with
            what this one returns.
        has_matmul: bool, whether it can multiply in FP16 with FP32 results, and has
            not FP32 from its author.
        casts_inputs: bool, whether Keras casts what it is given to what it computes in.
        inputs: float, the largest magnitude of what it is given.
        outputs: float, of what it returns, and of what operations of a functional model
            make of that.
        gradients: float, of the gradients of its outputs.
        weights: float, of its own trainable weights, in FP32; of a recurrent layer or a
            wrapper, with those inside.
        has_half_weights: bool, whether one of them is stored in 16 bits, and not in a
            quantized layer, which keeps its policy.
        kernels: float, of those that a product may multiply, and not biases.
        elements: int, how many numbers it returns.
    """

    path: str
    callers: tuple[str, ...] = ()
    has_matmul: bool = False
    casts_inputs: bool = True
    inputs: float = 0.0
    outputs: float = 0.0
    gradients: float = 0.0
    weights: float = 0.0
    has_half_weights: bool = False
    kernels: float = 0.0
    elements: int = 0


def layer_table(
    model: keras.Model, runs: list[Trace], masters: dict[int, Any]
) -> dict[str, LayerRow]:
    """Returns the numbers of each layer by path, in the order of computation.

    Args:
        model: `keras.Model`.
        runs: list of `Trace` of the model in FP32, one for each batch.
        masters: dict from the `id` of a weight to its FP32 value.
    """
    index = ModelIndex(model)
    callers: dict[str, list[str]] = {}
    for path, entry in index.items():
        for child in entry.children if entry.kind != "graph" else ():
            callers.setdefault(child.path, []).append(path)
    found: dict[str, LayerRow] = {}
    for run in runs:
        for call in run.calls:
            if isinstance(call.layer, keras.Layer):
                entry = index.of(call.layer)
                if entry.kind != "graph":
                    outer = tuple(callers.get(entry.path, ()))
                    found.setdefault(entry.path, _of_weights(entry, outer, masters))
        _add(found, run)
    return found


def _of_weights(
    entry: LayerEntry, callers: tuple[str, ...], masters: dict[int, Any]
) -> LayerRow:
    layer = entry.layer
    own = [
        variable
        for member in members(entry)
        for variable, _ in keras_internals.own_variables(member.layer)
        if variable.trainable
    ]
    fp32 = [fp32_value(variable, masters) for variable in own]
    return LayerRow(
        entry.path,
        callers,
        has_matmul(layer) and is_half(layer.compute_dtype),
        layer.autocast,
        weights=largest(fp32),
        has_half_weights=not is_quantized(layer)
        and any(is_half(variable.dtype) for variable in own),
        kernels=largest([each for each in fp32 if len(each.shape) > 1]),
    )


def _add(found: dict[str, LayerRow], run: Trace) -> None:
    """Adds what one batch shows."""
    origins: dict[int, list[LayerRow]] = {}  # a tensor: the layers it is made by
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


def _rounds_inputs(layer: keras.Layer) -> bool:
    """Tells whether a converted layer casts what it is given: ids and features stay."""
    if isinstance(layer, keras.layers.Embedding):
        return has_matmul(layer)
    return not isinstance(layer, keras.layers.Normalization)


def largest(tensors: list[Any]) -> float:
    """Returns the largest magnitude of all numbers of some tensors."""
    arrays = [keras.ops.convert_to_numpy(tensor) for tensor in tensors]
    return max((float(np.max(np.abs(x), initial=0.0)) for x in arrays), default=0.0)
