"""How the configs of optimizers say that they share a loss scale.

While Keras loads a model it knows which objects it has already made, by an id in their
configs. Whoever reads a config by itself does not.
"""

import warnings
from typing import Any

import keras

from keras_mp.loss_scale import as_loss_scale
from keras_mp.optimizer.loss_scaler import LossScaler
from keras_mp.serialization import deserialize


def serialize_scaler(scaler: LossScaler) -> dict[str, Any]:
    """Returns the config of the rule, or that of the scaler where it is shared."""
    if not scaler.is_shared:
        config: dict[str, Any] = keras.saving.serialize_keras_object(scaler.rule)
        return config
    # Keras itself would give an id to the second one only, and to a copy of the first.
    config = keras.saving.serialize_keras_object(scaler)
    return {**config, "shared_object_id": id(scaler)}


def deserialize_scale(config: Any, custom_objects: Any) -> Any:
    """Returns what `serialize_scaler` described.

    Args:
        config: what it returned, or what `as_loss_scale` takes.
        custom_objects: dict, classes that the config may name.

    Returns:
        `LossScale`, or a `LossScaler` to be shared with the others of the model.
    """
    if not isinstance(config, dict) or config.get("class_name") != LossScaler.__name__:
        return as_loss_scale(config, custom_objects)

    def scaler() -> Any:
        return deserialize(
            "loss_scale", config, LossScaler, custom_objects=custom_objects
        )

    found = scaler()
    if found is not scaler():
        warnings.warn(
            "The loss scale was shared with another optimizer, and a config by itself "
            "cannot say with which: this one now has a scale of its own. Received: "
            f"{found.rule!r}. Save and load the model that holds both, or name the "
            'other: FP32MasterOptimizer.from_config({**config, "loss_scale": other}).',
            stacklevel=4,
        )
    return found


def warn_that_a_pickle_does_not_share(scaler: LossScaler) -> None:
    """Warns where an optimizer that shares its scale is pickled by itself."""
    if scaler.is_shared:
        warnings.warn(
            "An optimizer that is pickled, or copied, by itself no longer shares its "
            "loss scale. Received: one that shares its loss scale with "
            f"{len(scaler.notes) - 1} others. Pickle the model that holds them all.",
            stacklevel=4,
        )
