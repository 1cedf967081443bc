"""Weights of layers that are stored in 16 bits, and in FP32 from now on."""

import functools
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from typing import Any

import keras

from keras_mp import keras_internals
from keras_mp.dtypes import HALVES
from keras_mp.optimizer.properties import can_exchange_weights, exchange_weights


def half_weights(layer: keras.Layer) -> list[Any]:
    """Returns the 16-bit weights of a layer, without its sublayers' weights."""
    sublayers = keras_internals.direct_sublayers(layer)
    inside = {id(w) for part in sublayers for w in part.variables}
    own = (variable for variable, _ in keras_internals.own_variables(layer))
    return [v for v in own if v.dtype in HALVES and id(v) not in inside]


def check_can_store(layers: list[Any], halves: list[Any]) -> None:
    """Raises where weights cannot be stored in FP32.

    Args:
        layers: list of all layers of the model.
        halves: list of the weights.

    Raises:
        ValueError: an optimizer has state for them, and is not a wrapped one, or is on
            several replicas; or no attribute of a layer shows such a weight.
    """
    _optimizers_of(layers, halves)
    replaced = {id(half) for half in halves}
    for layer in layers:
        own = (variable for variable, _ in keras_internals.own_variables(layer))
        for half in (each for each in own if id(each) in replaced):
            if _places(layer, half):
                continue
            raise ValueError(
                "An FP32 weight takes the place of one that is stored in 16 bits, "
                "where an attribute of its layer shows it, or a list or a dict that is "
                f"an attribute. Received: {half.path!r} in {layer.name!r}, which is "
                "none of these. Keep it as an attribute, or give the layer the policy "
                "mixed_float16."
            )


def store_in_fp32(layers: list[Any], halves: list[Any]) -> None:
    """Has FP32 variables take the place of 16-bit weights, in layers and optimizers.

    Each has the value of its weight's master, and is its own master from then on.

    Args:
        layers: list of all layers of the model.
        halves: list of the weights, which `check_can_store` has passed.
    """
    optimizers = _optimizers_of(layers, halves)
    new = {id(half): _fp32_copy(half) for half in halves}
    for layer in layers:
        _replace(layer, new)
    for optimizer in optimizers:
        exchange_weights(optimizer, new)


def _optimizers_of(layers: list[Any], halves: list[Any]) -> list[Any]:
    """Returns the built optimizers of models, if one may have state for weights."""
    if not any(half.trainable for half in halves):
        return []
    found = {}
    for layer in layers:
        for name, value in _attribute_values(layer):
            if not isinstance(value, keras.optimizers.Optimizer) or not value.built:
                continue
            if not can_exchange_weights(value):
                raise ValueError(
                    "FP32 weights replace weights that are stored in 16 bits: the "
                    "weights of normalizations, and weights too large for FP16. A "
                    "wrapped optimizer that is built gives them its state, on one "
                    f"replica. Received: {layer.name!r}; its {name!r} is a built "
                    f"{type(value).__name__}. Do this before the first step; or "
                    "`compile` with a new optimizer first."
                )
            found[id(value)] = value
    return list(found.values())


def _attribute_values(layer: keras.Layer) -> Iterator[tuple[str, Any]]:
    """Yields the attributes of a layer, then the elements of its lists and dicts."""
    yield from vars(layer).items()
    for name, value in vars(layer).items():
        if isinstance(value, dict):
            value = list(value.values())
        if isinstance(value, list | tuple):
            for one in value:
                yield name, one


def _replace(layer: keras.Layer, new: Mapping[int, Any]) -> None:
    """Replaces variables of a layer at the same positions, by their `id`."""
    own = keras_internals.own_variables(layer)
    if not any(id(variable) in new for variable, _ in own):
        return
    places = {id(v): _places(layer, v) for v, _ in own if id(v) in new}
    with keras_internals.unlocked(layer):
        for old, _ in own:
            keras_internals.remove_variable(layer, old)
        # In the same order, which is that of saved files. A frozen weight is added as
        # a trainable one, so that it stays in that list.
        for old, is_trained in own:
            variable, was_trainable = new.get(id(old), old), old.trainable
            variable.trainable = is_trained
            keras_internals.add_variable(layer, variable)
            for place in places.get(id(old), ()):
                place(variable)
            variable.trainable = was_trainable


def _places(layer: keras.Layer, variable: Any) -> list[Callable[[Any], None]]:
    """Returns functions that set each place where a layer keeps a variable."""
    places: list[Callable[[Any], None]] = []
    for name, value in vars(layer).items():
        if value is variable:
            places.append(functools.partial(setattr, layer, name))
        elif name.startswith("_self_") or type(value) is list:
            continue  # what TensorFlow and Keras keep of all variables
        elif isinstance(value, dict):
            keys = [key for key, each in value.items() if each is variable]
            places += [functools.partial(value.__setitem__, key) for key in keys]
        elif isinstance(value, list):
            indices = [i for i, each in enumerate(value) if each is variable]
            places += [functools.partial(value.__setitem__, i) for i in indices]
    return places


def _fp32_copy(old: Any) -> Any:
    *scopes, name = old.path.split("/")
    with ExitStack() as stack:
        stack.enter_context(keras_internals.replicas_scope(old))
        for scope in scopes:
            stack.enter_context(keras.name_scope(scope))
        new = keras.Variable(
            keras.ops.cast(old.value, "float32"),
            dtype="float32",
            autocast=keras_internals.autocasts(old),
            aggregation=old.aggregation,
            name=name,
            **keras_internals.synchronization_argument(old),
        )
    for attribute in ("regularizer", "constraint", "overwrite_with_gradient"):
        setattr(new, attribute, getattr(old, attribute))
    return new
