"""The model, the batch and the loss scale that a user passes to be diagnosed."""

from typing import Any

import keras
import numpy as np
from keras import ops

from keras_mp.arguments import check_tensorflow, positive_number
from keras_mp.precision.model_index import ModelIndex


def check_model(model: keras.Model) -> None:
    """Raises where a model cannot be run forward and backward.

    Raises:
        RuntimeError: Keras is on another backend than TensorFlow, or it is called in
            the scope of a strategy of several replicas.
        TypeError: it is not a `keras.Model`.
        ValueError: it is not built, not compiled, has no trainable weights, or has
            recurrent layers that are stateful.
    """
    check_tensorflow("This diagnosis of keras_mp", "Leave it out")
    import tensorflow as tf

    replicas = tf.distribute.get_strategy().num_replicas_in_sync
    if replicas > 1:
        raise RuntimeError(
            "The diagnostics of keras_mp run one replica, outside of the scope of a "
            f"strategy. Received: a call in the scope of one of {replicas} replicas. "
            "Call them behind the `with strategy.scope():` block."
        )
    if not isinstance(model, keras.Model):
        raise TypeError(
            "`model` must be a keras.Model. Received: "
            f"an object of the class {type(model).__name__}."
        )
    if not model.built:
        raise ValueError(
            "`model` must be built, so that it has weights. Received: "
            f"{model.name!r}, not built. Give it an Input, or call it once on a batch."
        )
    if not model.compiled or model.optimizer is None:
        raise ValueError(
            "`model` must be compiled with an optimizer and a loss. Received: "
            f"{model.name!r}, not compiled. Call model.compile(optimizer=..., "
            "loss=...)."
        )
    if not model.trainable_variables:
        raise ValueError(
            "`model` must have trainable weights. Received: "
            f"{model.name!r} without any. Set `trainable = True` on its layers."
        )
    carrying = [
        x.path for x in ModelIndex(model).layers if getattr(x, "stateful", False)
    ]
    if carrying:
        raise ValueError(
            "Recurrent layers must not carry their state to the next batch: a look at "
            f"one would change it. Received: stateful=True in {carrying}. Diagnose the "
            "same model made with stateful=False, which may be given its weights."
        )


def as_batch(x: Any, y: Any, sample_weight: Any) -> tuple[Any, Any, Any]:
    """Returns a batch as tensors, of float32 where NumPy made them float64.

    Raises:
        ValueError: a number of it is not finite.
    """
    batch = {"x": x, "y": y, "sample_weight": sample_weight}
    for name, data in batch.items():
        if data is None:
            continue
        batch[name] = keras.tree.map_structure(_as_tensor, data)
        for tensor in keras.tree.flatten(batch[name]):
            if "float" in tensor.dtype.name and not np.all(np.isfinite(tensor)):
                raise ValueError(
                    "All numbers of the batch must be finite. Received: "
                    f"`{name}` with NaN or infinity. Look for it in the data: no loss "
                    "scale helps."
                )
    return batch["x"], batch["y"], batch["sample_weight"]


def _as_tensor(data: Any) -> Any:
    tensor = ops.convert_to_tensor(data)
    is_wide = tensor.dtype.name == "float64"
    return ops.cast(tensor, keras.config.floatx()) if is_wide else tensor


def scale_of(model: keras.Model, loss_scale: float | None) -> float:
    """Returns the loss scale: the given one, the optimizer's, or 1."""
    if loss_scale is not None:
        return positive_number("loss_scale", loss_scale, "Try 2.0**15.")
    optimizer = model.optimizer
    if isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
        # That of Keras has a scale when it is built.
        scale = getattr(optimizer, "dynamic_scale", optimizer.initial_scale)
        return float(ops.convert_to_numpy(scale))
    return 1.0


def master_values(model: keras.Model) -> dict[int, Any]:
    """Returns the FP32 value of each weight that has a master, by the weight's `id`."""
    optimizer = model.optimizer
    if not optimizer.built or not hasattr(optimizer, "current_masters"):
        return {}
    return dict(optimizer.current_masters())


def fp32_value(variable: Any, masters: dict[int, Any]) -> Any:
    """Returns the value of a variable, from its master if it has one, as float32."""
    value = masters.get(id(variable), variable)
    return ops.cast(ops.convert_to_tensor(value), "float32")
