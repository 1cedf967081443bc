"""The inputs of a model that 16 bits would round before its first layer has them."""

from typing import Any

import keras

from keras_mp import keras_internals
from keras_mp.dtypes import is_half
from keras_mp.precision.model_index import ModelIndex


def wider_inputs(model: Any) -> list[tuple[Any, str]]:
    """Returns the InputLayers of 16 bits that need another dtype, each with that.

    A Sequential model that is built when it is called makes one in the dtype that its
    first layer computes in, and casts what it is given, integers too. Ids of embeddings
    need `"int32"`, and features that a Normalization is to make small `"float32"`.
    """
    found = []
    for entry in ModelIndex(model).values():
        if entry.kind == "input" and is_half(entry.layer.dtype):
            dtype = _needed(entry.layer)
            if dtype is not None:
                found.append((entry.layer, dtype))
    return found


def _needed(operation: Any) -> str | None:
    """Returns the dtype that what an operation is given needs, None for any other."""
    if isinstance(operation, keras.layers.Embedding):
        return "int32"
    if isinstance(operation, keras.layers.Normalization):
        return "float32"
    if isinstance(operation, keras.layers.InputLayer):
        receivers = filter(_computes, keras_internals.receivers(operation))
        needed = {_needed(receiver) for receiver in receivers}
        return needed.pop() if len(needed) == 1 else None
    if isinstance(operation, keras.Model):
        children = next(iter(ModelIndex(operation).values())).children
        inputs = [child.layer for child in children if child.kind == "input"]
        return _needed(inputs[0]) if len(inputs) == 1 else None
    return None


def _computes(operation: Any) -> bool:
    """Tells whether it is more than the comparison that makes a mask."""
    if isinstance(operation, keras.Layer):
        return True
    return any(x.dtype != "bool" for x in keras.tree.flatten(operation.output))
