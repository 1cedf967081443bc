"""The constructor's arguments of `FP32MasterOptimizer`, as a config and back."""

from typing import Any

import keras

from keras_mp.optimizer.arguments import Int8State
from keras_mp.optimizer.properties import OptimizerProperties
from keras_mp.optimizer.shared_loss_scale import deserialize_scale, serialize_scaler
from keras_mp.serialization import deserialize, serialize_optimizer


def serialize_arguments(optimizer: OptimizerProperties) -> dict[str, Any]:
    """Returns the arguments that an `FP32MasterOptimizer` was made with.

    Args:
        optimizer: `FP32MasterOptimizer`.
    """
    return {
        "inner_optimizer": serialize_optimizer(optimizer.inner_optimizer),
        "loss_scale": serialize_scaler(optimizer._scaler),
        "rounding": optimizer.rounding,
        "seed": optimizer._master_weights.seed.get_config()["seed"],
        "all_reduce_dtype": optimizer.all_reduce_dtype,
        "name": optimizer.name,
        **_forms(optimizer),
    }


def _forms(optimizer: Any) -> dict[str, Any]:
    """Returns the forms of masters and state that are not the defaults."""
    given = {"masters": optimizer.masters, "state": optimizer.state}
    forms = {
        name: keras.saving.serialize_keras_object(form)
        for name, form in given.items()
        if form != "float32"
    }
    return forms | ({"shard_state": True} if optimizer.shard_state else {})


def deserialize_arguments(
    config: dict[str, Any], custom_objects: Any
) -> dict[str, Any]:
    """Returns the arguments that `serialize_arguments` described.

    Args:
        config: dict. Its `loss_scale` may also be an `FP32MasterOptimizer`, to share
            the scale with it.
        custom_objects: dict, classes that the config may name.

    Raises:
        TypeError: the inner optimizer or the scale is of the wrong type.
        ValueError: a config inside is malformed.
    """
    arguments = dict(config)
    arguments["inner_optimizer"] = deserialize(
        "inner_optimizer",
        config.get("inner_optimizer"),
        keras.optimizers.Optimizer,
        "optimizers",
        custom_objects,
    )
    if isinstance(config.get("state"), dict):
        arguments["state"] = deserialize(
            "state", config["state"], Int8State, "state", custom_objects
        )
    scale = config.get("loss_scale", "dynamic")
    if not isinstance(scale, OptimizerProperties):
        arguments["loss_scale"] = deserialize_scale(scale, custom_objects)
    return arguments
