"""Objects from configs that may be malformed or hostile."""

import re
from typing import Any

import keras

from keras_mp.arguments import short_repr

# What Keras raises, besides TypeError and ValueError, where a config is malformed.
_MALFORMED = (AttributeError, LookupError, OverflowError, RecursionError)


def serialize_optimizer(optimizer: keras.Optimizer) -> dict[str, Any]:
    """Returns the config of an optimizer, with classes that every backend has."""
    config: dict[str, Any] = _public(keras.saving.serialize_keras_object(optimizer))
    return config


def _public(config: Any) -> Any:
    """Replaces the name of a backend's module by `keras.optimizers`.

    On PyTorch, Keras serializes its optimizers as subclasses in such a module.
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
    """Returns the object that a config describes, if it is of an expected class.

    The class is checked before an object is made. Keras's safe mode stays in force: a
    config cannot contain code.

    Args:
        argument: str, the name of the argument, for error messages.
        config: what `keras.saving.serialize_keras_object` returned. Of a class of Keras
            it may also be written by hand, with only `class_name` and `config`.
        kind: class. Registered subclasses of it are allowed.
        module: str, a module of Keras. Its subclasses of `kind` are allowed too, such
            as `"optimizers"`.
        custom_objects: dict of further classes by name, which count as registered.

    Raises:
        TypeError: `config` describes something else.
        ValueError: `config` names an allowed class, and is malformed otherwise.
    """
    found = _class(config, None, custom_objects)
    if found is None and module is not None:
        config = _of_keras(config, module)
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


def _of_keras(config: Any, module: str) -> Any:
    """Returns a config written by hand as Keras writes it for its class of this name.

    Keras too needs only `class_name` to find its own classes, in capital letters or
    not.
    """
    if not isinstance(config, dict) or config.keys() != {"class_name", "config"}:
        return config
    names = {name.lower(): name for name in dir(getattr(keras, module))}
    name = names.get(str(config["class_name"]).lower())
    if name is None:
        return config
    return {**config, "module": f"keras.{module}", "class_name": name}


def _class(config: Any, module: str | None, custom_objects: Any) -> Any:
    """Returns the class that Keras would use, None if the config names no class."""
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
    is_named = name in (getattr(found, "__name__", None), registered_name)
    return found if is_named else None
