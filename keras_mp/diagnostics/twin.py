"""Twins of layers: the same layer under another dtype policy."""

import contextlib
import inspect
import random
from collections.abc import Iterator
from typing import Any

from keras_mp.layers.conversion.conversion_report import every_layer

HALF_POLICIES = ("float16", "mixed_float16", "bfloat16", "mixed_bfloat16")


@contextlib.contextmanager
def same_random_state() -> Iterator[None]:
    """Restores the state of Python's `random`, from which Keras draws default seeds."""
    state = random.getstate()
    try:
        yield
    finally:
        random.setstate(state)


def computes_in_16_bits(layer: Any) -> bool:
    """Tells whether a layer, or one inside of it, has a 16-bit dtype policy."""
    return not _policies(layer).isdisjoint(HALF_POLICIES)


def _policies(layer: Any) -> set[str]:
    return {each.dtype_policy.name for each in every_layer(layer)}


def twin_of(layer: Any, policy: str) -> Any:
    """Returns a layer of the same class and config under another dtype policy.

    Its weights are its own, and not yet created. Layers that neither have 16-bit
    policies, nor are to get one, have no twin.

    Args:
        layer: `keras.Layer`.
        policy: str, `"float32"` in the place of 16-bit policies, or `"mixed_float16"`
            in the place of `"float32"`.

    Returns:
        `keras.Layer`, or `layer` itself where there is nothing to replace.

    Raises:
        ValueError: the layer cannot be made from its config.
    """
    replaced = HALF_POLICIES if policy == "float32" else ("float32",)
    if _policies(layer).isdisjoint(replaced):
        return layer
    try:
        config = _with_policy(layer.get_config(), replaced, policy)
        twin = type(layer).from_config(_accepted(type(layer), config))
    except (NotImplementedError, TypeError, ValueError) as error:
        raise ValueError(
            f"A model is inspected on a twin under the policy {policy!r}, so each of "
            "its layers must be made again from its config. Received: the layer "
            f"{layer.path!r} of the class {type(layer).__name__}, with: {error}. Give "
            "it `get_config`, and register the classes that it holds with "
            "`keras.saving.register_keras_serializable`; or pass `as_is=True`."
        ) from error
    # Layers that a constructor makes have the global policy.
    for each in every_layer(twin):
        if each.dtype_policy.name in replaced:
            each.dtype_policy = policy
    return twin


def _accepted(cls: Any, config: dict[str, Any]) -> dict[str, Any]:
    """Returns a config without what Keras adds to it and the constructor refuses."""
    parameters = inspect.signature(cls.__init__).parameters.values()
    if any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters):
        return config
    refused = {"name", "trainable", "dtype"} - {p.name for p in parameters}
    return {name: value for name, value in config.items() if name not in refused}


def _with_policy(config: Any, replaced: tuple[str, ...], policy: str) -> Any:
    """Returns a config with the policy in the place of others, at any depth."""
    if isinstance(config, list | tuple):
        return type(config)(_with_policy(each, replaced, policy) for each in config)
    if not isinstance(config, dict):
        return config
    if config.get("class_name") == "DTypePolicy":
        name = config["config"]["name"]
        name = policy if name in replaced else name
        return {**config, "config": {"name": name}}
    result = {k: _with_policy(v, replaced, policy) for k, v in config.items()}
    if result.get("dtype") in replaced:
        result["dtype"] = policy
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
            f"with {[v.path for v in others]}. Let `get_config` return all arguments; "
            "or pass `as_is=True`."
        )
    return list(zip(mine, others, strict=True))
