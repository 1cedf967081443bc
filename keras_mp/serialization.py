"""Objects from configs that someone else may have written."""

import re
from typing import Any

import keras

from keras_mp.arguments import short_repr

# What Keras raises, besides TypeError and ValueError, where a config is malformed.
_MALFORMED = (AttributeError, LookupError, OverflowError, RecursionError)


def serialize_optimizer(optimizer: Any) -> dict[str, Any]:
    """Returns the config of an optimizer, with classes that every backend has."""
    config: dict[str, Any] = _public(keras.saving.serialize_keras_object(optimizer))
    return config


def _public(config: Any) -> Any:
    """Names keras.optimizers where Keras named the module of a backend.

    On PyTorch it does, for the classes that it makes of the public ones.
    """
    if isinstance(config, list | tuple):
        return type(config)(_public(each) for each in config)
    if not isinstance(config, dict):
        return config
    config = {key: _public(each) for key, each in config.items()}
    module = config.get("module")
    if isinstance(module, str) and re.fullmatch(r"keras\..*\.backend\..*", module):
        config["module"] = "keras.optimizers"
    return config


def deserialize(
    argument: str,
    config: Any,
    kind: type,
    module: str | None = None,
    custom_objects: Any = None,
) -> Any:
    """Returns the object that a config describes, if its class is one to expect.

    The class is looked at before anything is made of it. Keras's safe mode is as it
    was: a config cannot bring code.

    Args:
        argument: str, what the object is for.
        config: what `keras.saving.serialize_keras_object` returned.
        kind: the class whose subclasses are allowed, if they are registered.
        module: str, the module of Keras whose subclasses are allowed too, such as
            `"optimizers"`.
        custom_objects: dict, more classes by name, which count as registered.

    Raises:
        TypeError: `config` describes something else.
        ValueError: `config` is malformed further inside.
    """
    found = _class(config, module, custom_objects)
    if not (isinstance(found, type) and issubclass(found, kind)):
        raise TypeError(
            f"`{argument}` must be a serialized {kind.__name__}. Received: "
            f"{argument}={short_repr(config)}. Make it with "
            "keras.saving.serialize_keras_object, and register a class of yours with "
            "keras.saving.register_keras_serializable."
        )
    try:
        return keras.saving.deserialize_keras_object(config, custom_objects)
    except _MALFORMED as error:
        raise ValueError(
            f"`{argument}` must be as keras.saving.serialize_keras_object made it. "
            f"Received: {argument}={short_repr(config)}, which fails with "
            f"{type(error).__name__}: {error}."
        ) from error


def _class(config: Any, module: str | None, custom_objects: Any) -> Any:
    """Returns the class that Keras would take, or None for anything but a class."""
    if not isinstance(config, dict):
        return None
    name, home = config.get("class_name"), config.get("module")
    registered_name = config.get("registered_name", name)
    if not isinstance(name, str) or not isinstance(home, str | None):
        return None
    if not isinstance(registered_name, str | None):
        return None
    found = keras.saving.get_registered_object(registered_name, custom_objects)
    if found is None and module is not None and home == f"keras.{module}":
        found = getattr(getattr(keras, module), name, None)
    # Keras knows names that are no classes, such as "__lambda__".
    return found if getattr(found, "__name__", None) == name else None
