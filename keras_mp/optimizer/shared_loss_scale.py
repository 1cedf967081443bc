"""Several optimizers that share one loss scale, and their configs.

While Keras loads a model it recognizes, by an id in their configs, objects that it has
made already. Outside of that a config cannot tell which scale it means.
"""

import warnings
from typing import Any

import keras

from keras_mp.loss_scale import as_loss_scale
from keras_mp.optimizer.loss_scaler import LossScaler
from keras_mp.optimizer.properties import OptimizerProperties
from keras_mp.serialization import deserialize


def scaler_of(loss_scale: Any) -> LossScaler:
    """Returns the `LossScaler` for an argument `loss_scale`.

    Args:
        loss_scale: what `as_loss_scale` takes, for a new one; an `FP32MasterOptimizer`
            or its `LossScaler`, which is then shared.
    """
    if isinstance(loss_scale, OptimizerProperties):
        return loss_scale._scaler
    if isinstance(loss_scale, LossScaler):
        return loss_scale
    return LossScaler(as_loss_scale(loss_scale))


def serialize_scaler(scaler: LossScaler) -> dict[str, Any]:
    """Returns the config of the rule, or of the scaler itself if it is shared."""
    if not scaler.is_shared:
        config: dict[str, Any] = keras.saving.serialize_keras_object(scaler.rule)
        return config
    # Keras adds an id when it serializes an object a second time: to that config and,
    # in place, to the first one, which has been copied by then.
    config = keras.saving.serialize_keras_object(scaler)
    return {**config, "shared_object_id": id(scaler)}


def deserialize_scale(config: Any, custom_objects: Any) -> Any:
    """Returns what `serialize_scaler` described.

    Args:
        config: what it returned, or what `as_loss_scale` takes.
        custom_objects: dict, classes that the config may name.

    Returns:
        `LossScale`, or the `LossScaler` that optimizers of the model share.
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
            stacklevel=5,
        )
    return found


def warn_that_a_pickle_does_not_share(scaler: LossScaler) -> None:
    """Warns if the optimizer to be pickled shares its scale, which a pickle loses."""
    if scaler.is_shared:
        warnings.warn(
            "An optimizer that is pickled, or copied, by itself no longer shares its "
            "loss scale. Received: one that shares its loss scale with "
            f"{len(scaler.notes) - 1} others. Pickle the model that holds them all.",
            stacklevel=4,
        )
