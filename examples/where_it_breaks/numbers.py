"""What FP16 does to the numbers of a model, and which of its weights have moved."""

import math
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np

import keras_mp

_MEASURES = ("lost gradients", "gradient error", "update error")


def inspected(model: keras.Model, x: Any, y: Any) -> dict[str, float]:
    """Returns what FP16 makes of one batch.

    Returns:
        `lost gradients`: the share of the activation gradients that FP16 rounds to zero
        without a loss scale. `gradient error`: the length of the difference between the
        weight gradients of FP16, without a scale, and those of FP32, relative to the
        latter. `update error`: how far the change of FP16 weights without masters is
        from the update, relative to it. All are NaN where training has diverged.
    """
    if not all(np.isfinite(weight).all() for weight in model.get_weights()):
        return dict.fromkeys(_MEASURES, math.nan)
    report = keras_mp.inspect(model, x, y)
    found = report.total("activation_gradient")
    values = (
        found.lost / found.elements,
        report.gradient_errors[1.0],
        report.needs_masters().value,
    )
    return dict(zip(_MEASURES, values, strict=True))


def weights_of(model: keras.Model) -> list[np.ndarray]:
    """Returns the trainable weights as FP16 stores them."""
    return [np.array(weight).astype("float16") for weight in model.trainable_variables]


def share_unmoved(before: Sequence[np.ndarray], after: Sequence[np.ndarray]) -> float:
    """Returns the share of the weights that have the value that they began with."""
    same = sum(np.sum(a == b) for a, b in zip(before, after, strict=True))
    return float(same / sum(a.size for a in before))
