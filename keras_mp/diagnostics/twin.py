"""Twins of layers: the same layer under another dtype policy."""

import contextlib
import inspect
import random
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import keras

from keras_mp.layers.conversion.conversion_report import every_layer

HALF_POLICIES = ("float16", "mixed_float16", "bfloat16", "mixed_bfloat16")
# What becomes of the policies of a model's layers in its twins.
IN_FP32 = dict.fromkeys(HALF_POLICIES, "float32")
FP32_IN_FP16 = {"float32": "mixed_float16"}
BFLOAT16_IN_FP16 = {"bfloat16": "float16", "mixed_bfloat16": "mixed_float16"}
# Their state is no variable, and they compute no floating-point numbers.
_LOOKUPS = (
    keras.layers.Discretization,
    keras.layers.Hashing,
    keras.layers.IntegerLookup,
    keras.layers.StringLookup,
    keras.layers.TextVectorization,
)
# TensorFlow draws other masks for FP16 than for FP32, from the same seed.
_RANDOM = (
    keras.layers.AlphaDropout,
    keras.layers.Dropout,
    keras.layers.GaussianDropout,
    keras.layers.GaussianNoise,
)


class NoTwinError(ValueError):
    """A layer cannot be made again from its config."""


def to_fp32(layer: Any) -> Any:
    """Returns what computes in the place of a layer when a model runs in FP32."""
    return twin_of(layer, IN_FP32)


def to_fp16(model: Any) -> Callable[[Any], Any]:
    """Returns what computes in the place of each layer when a model runs in FP16.

    Layers with an FP16 policy run themselves. Dropout draws in FP32, so that its mask
    is that of the FP32 run; its output is rounded by the layer after it.
    """
    policies = policies_of(model)
    changes = {} if policies & {"float16", "mixed_float16"} else FP32_IN_FP16
    if policies & set(BFLOAT16_IN_FP16):
        changes = BFLOAT16_IN_FP16

    def layer_of(layer: Any) -> Any:
        return twin_of(layer, IN_FP32 if isinstance(layer, _RANDOM) else changes)

    return layer_of


@contextlib.contextmanager
def same_random_state() -> Iterator[None]:
    """Restores the state of Python's `random`, from which Keras draws default seeds."""
    state = random.getstate()
    try:
        yield
    finally:
        random.setstate(state)


def policies_of(layer: Any) -> set[str]:
    """Returns the names of the dtype policies of a layer and of all inside of it."""
    return {each.dtype_policy.name for each in every_layer(layer)}


def twin_of(layer: Any, changes: Mapping[str, str]) -> Any:
    """Returns a layer of the same class and config under another dtype policy.

    Its weights are its own, and not yet created.

    Args:
        layer: `keras.Layer`.
        changes: dict from the name of a policy to that in its place.

    Returns:
        `keras.Layer`, or `layer` itself where there is nothing to replace.

    Raises:
        NoTwinError: the layer cannot be made from its config.
    """
    if policies_of(layer).isdisjoint(changes) or isinstance(layer, _LOOKUPS):
        return layer
    try:
        twin = _made_again(layer, changes)
    except (NotImplementedError, TypeError, ValueError) as error:
        raise NoTwinError(
            "A model is compared with a twin under another dtype policy, so each of "
            "its layers must be made again from its config. Received: the layer "
            f"{layer.path!r} of the class {type(layer).__name__}, with: {error}. Give "
            "it `get_config`, and register the classes that it holds with "
            "`keras.saving.register_keras_serializable`; or look at its own numbers "
            "alone: keras_mp.inspect(..., as_is=True)."
        ) from error
    for old, new in zip(every_layer(layer), every_layer(twin), strict=False):
        new.trainable = old.trainable
    # Layers that a constructor makes have the global policy.
    for each in every_layer(twin):
        name = each.dtype_policy.name
        if name in changes:
            each.dtype_policy = changes[name]
    return twin


def _made_again(layer: Any, changes: Mapping[str, str]) -> Any:
    if type(layer) is keras.layers.Lambda:
        # Its config is of use in a process that trusts the file alone.
        return keras.layers.Lambda(
            layer.function,
            mask=layer.mask,
            arguments=layer.arguments,
            name=layer.name,
            dtype=changes[layer.dtype_policy.name],
        )
    config = _with_policy(layer.get_config(), changes)
    return type(layer).from_config(_accepted(type(layer), config))


def _accepted(cls: Any, config: dict[str, Any]) -> dict[str, Any]:
    """Returns a config without what Keras adds to it and the constructor refuses."""
    parameters = inspect.signature(cls.__init__).parameters.values()
    if any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters):
        return config
    refused = {"name", "trainable", "dtype"} - {p.name for p in parameters}
    return {name: value for name, value in config.items() if name not in refused}


def _with_policy(config: Any, changes: Mapping[str, str]) -> Any:
    """Returns a config with other policies, at any depth."""
    if isinstance(config, list | tuple):
        return type(config)(_with_policy(each, changes) for each in config)
    if not isinstance(config, dict) or config.get("class_name") == "InputLayer":
        return config
    if config.get("class_name") == "DTypePolicy":
        name = config["config"]["name"]
        return {**config, "config": {"name": changes.get(name, name)}}
    result = {name: _with_policy(value, changes) for name, value in config.items()}
    if isinstance(result.get("dtype"), str):
        result["dtype"] = changes.get(result["dtype"], result["dtype"])
    return result


def copy_state(layer: Any, twin: Any) -> None:
    """Gives a twin all that Keras would save of a layer, as loading a file does."""
    for old, new in zip(every_layer(layer), every_layer(twin), strict=True):
        store: dict[str, Any] = {}
        old.save_own_variables(store)
        if store:
            new.load_own_variables(store)


def paired_variables(layer: Any, twin: Any) -> list[tuple[Any, Any]]:
    """Returns the variables of a layer, each with that of its twin."""
    mine, others = layer.variables, twin.variables
    if [v.shape for v in mine] != [v.shape for v in others]:
        raise ValueError(
            "A layer that is made from its config must have the same variables. "
            f"Received: {layer.path!r} with {[v.path for v in mine]}, and its twin "
            f"with {[v.path for v in others]}. Let `get_config` return all arguments."
        )
    return list(zip(mine, others, strict=True))
