"""Paths of the layers of a model, each another one."""

from collections import Counter
from typing import Any

import keras

from keras_mp import keras_internals


def numbered(paths: list[str]) -> list[str]:
    """Returns the paths, with a number where one is listed again.

    A layer is listed again for its second output, and where it is called again.
    """
    seen: Counter[str] = Counter()
    result = []
    for path in paths:
        seen[path] += 1
        result.append(path if seen[path] == 1 else f"{path} ({seen[path]})")
    return result


def layers_by_path(model: Any) -> dict[str, Any]:
    """Returns a model and every layer inside it by path, outer layers first.

    The path of a layer is its name behind those of the layers around it, up to the
    model, whose own name stands for itself alone. A layer that several others hold is
    listed where it is found first.
    """
    found: dict[int, tuple[str, Any]] = {}

    def add(layer: Any, path: str, prefix: str) -> None:
        if id(layer) in found:
            return
        found[id(layer)] = path, layer
        for sublayer in keras_internals.direct_sublayers(layer):
            inner = f"{prefix}{sublayer.name}"
            add(sublayer, inner, f"{inner}/")

    add(model, model.name, "")
    paths = numbered([path for path, _ in found.values()])
    return dict(zip(paths, (layer for _, layer in found.values()), strict=True))


def operations_by_path(model: Any) -> dict[str, Any]:
    """Returns `layers_by_path`, and the operations of functional models beside them.

    The path of an operation is its name behind that of its model.
    """
    layers = layers_by_path(model)
    found = dict(layers)
    for path, layer in layers.items():
        prefix = "" if layer is model else f"{path}/"
        for operation in getattr(layer, "operations", []):
            if not isinstance(operation, keras.Layer):
                found[prefix + operation.name] = operation
    return found
