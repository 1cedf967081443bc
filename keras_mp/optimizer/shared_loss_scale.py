"""Several optimizers that share one loss scale, and their configs.

While Keras loads a model it recognizes, by an id in their configs, objects that it has
made already. Outside of that a config cannot tell which scale it means.
"""

from typing import Any

from keras_mp.loss_scale import as_loss_scale
from keras_mp.optimizer.loss_scaler import LossScaler
from keras_mp.optimizer.properties import OptimizerProperties


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
