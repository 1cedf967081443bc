"""`ModelIndex`: every layer of a model once, by a path that another copy also has."""

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import keras

from keras_mp import keras_internals

Kind = Literal["graph", "unit", "code", "leaf", "input"]


@dataclass(eq=False)
class LayerEntry:
    """A layer, and its place in its model.

    Attributes:
        path: str.
        layer: `keras.Layer`.
        kind: str.

            - `"graph"`, a functional or Sequential model that runs as such: no code of
              its own computes with what its layers return.
            - `"unit"`, a recurrent layer or a wrapper: it calls what is inside in a
              loop, or without the casts of a call.
            - `"code"`, any other layer with sublayers: it computes with their results.
            - `"leaf"`, a layer without sublayers.
            - `"input"`, an `InputLayer`, which computes nothing.

        children: list of the entries of the layers directly inside.
        recurrent: the entry of the recurrent layer that has this as its cell, or in it;
            None for other layers.
    """

    path: str
    layer: Any
    kind: Kind
    children: list["LayerEntry"] = field(default_factory=list)
    recurrent: "LayerEntry | None" = None

    def __str__(self) -> str:
        return f"{self.path} ({type(self.layer).__name__})"


class ModelIndex(Mapping[str, LayerEntry]):
    """Every layer of a model once, outer layers first, by path.

    The path of a layer is its name after the names of the layers around it, up to the
    model. The model's own name is the path of the model only. A layer that several
    others hold has the place where it is found first. A name that Keras has made of the
    class, such as `dense_17`, counts over the whole process: another copy of the model
    has another one. It is counted among its neighbors instead.

    Args:
        model: `keras.Model`, or a layer.

    Example:

    >>> layers = [keras.Input((3,)), keras.layers.Dense(2), keras.layers.Dense(2)]
    >>> list(ModelIndex(keras.Sequential(layers)))
    ['sequential', 'input_layer', 'dense', 'dense_1']
    """

    def __init__(self, model: keras.Model) -> None:
        self._by_id: dict[int, LayerEntry] = {}
        self._model = model
        (name,) = _stable_names([model])
        self._add(model, name, "", None)
        paths = numbered([entry.path for entry in self._by_id.values()])
        for entry, path in zip(self._by_id.values(), paths, strict=True):
            entry.path = path
        self._by_path = {entry.path: entry for entry in self._by_id.values()}

    def __getitem__(self, path: str) -> LayerEntry:
        return self._by_path[path]

    def __iter__(self) -> Iterator[str]:
        return iter(self._by_path)

    def __len__(self) -> int:
        return len(self._by_path)

    def of(self, layer: keras.Layer) -> LayerEntry:
        """Returns the entry of a layer of the model."""
        return self._by_id[id(layer)]

    @property
    def layers(self) -> list[Any]:
        """The model and all layers inside it, outer layers first."""
        return [entry.layer for entry in self._by_id.values()]

    @property
    def operations(self) -> dict[str, Any]:
        """The operations of functional models that are no layers, by path."""
        found = {}
        for entry in self.values():
            operations = getattr(entry.layer, "operations", [])
            prefix = "" if entry.layer is self._model else f"{entry.path}/"
            names = _stable_names(operations)
            for name, operation in zip(names, operations, strict=True):
                if not isinstance(operation, keras.Layer):
                    found[prefix + name] = operation
        return found

    def _add(
        self, layer: keras.Layer, path: str, prefix: str, recurrent: LayerEntry | None
    ) -> LayerEntry:
        if id(layer) in self._by_id:
            return self._by_id[id(layer)]
        sublayers = keras_internals.direct_sublayers(layer)
        entry = LayerEntry(path, layer, _kind(layer, sublayers), recurrent=recurrent)
        self._by_id[id(layer)] = entry
        cell = getattr(layer, "cell", None) if isinstance(layer, _RNN) else None
        for sublayer, name in zip(sublayers, _stable_names(sublayers), strict=True):
            around = entry if recurrent is None and sublayer is cell else recurrent
            inner = f"{prefix}{name}"
            entry.children.append(self._add(sublayer, inner, f"{inner}/", around))
        return entry


def numbered(paths: list[str]) -> list[str]:
    """Returns the paths, with a number where one is listed again.

    A layer is listed again for its second output, and when it is called again.
    """
    seen: Counter[str] = Counter()
    result = []
    for path in paths:
        seen[path] += 1
        result.append(path if seen[path] == 1 else f"{path} ({seen[path]})")
    return result


_RNN = keras.layers.RNN


def _kind(layer: keras.Layer, sublayers: list[Any]) -> Kind:
    if isinstance(layer, keras.layers.InputLayer):
        return "input"
    if _runs_as_graph(type(layer)):
        return "graph"
    if isinstance(layer, _RNN | keras.layers.Wrapper | keras.layers.Bidirectional):
        return "unit"
    return "code" if sublayers else "leaf"


def _runs_as_graph(cls: Any) -> bool:
    """Tells whether a class of models calls its layers as Keras's own class does."""
    # Keras gives its class of functional models no public name.
    of_keras = (
        base
        for base in cls.__mro__
        if base is keras.Sequential or base.__name__ == "Functional"
    )
    base = next(of_keras, None)
    return base is not None and cls.call is base.call


def _stable_names(siblings: list[Any]) -> list[str]:
    """Returns the names of layers side by side, without the counter of the process."""
    used: Counter[str] = Counter()
    names = []
    for layer in siblings:
        name = _name_of_class(layer)
        if name is None:
            names.append(layer.name)
        else:
            names.append(f"{name}_{used[name]}" if used[name] else name)
            used[name] += 1
    return names


def _name_of_class(layer: keras.Layer) -> str | None:
    """Returns the name of a layer without its number if Keras made it of the class."""
    base = re.sub(r"_\d+$", "", layer.name)
    # A Bidirectional puts one of these before the name of its layer.
    made = re.sub("^(forward|backward)_", "", base).replace("_", "")
    # What was converted has the name of the class that it had before.
    classes = {cls.__name__.lower().replace("_", "") for cls in type(layer).__mro__}
    return base if made in classes else None
