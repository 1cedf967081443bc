"""The exponents of the weight gradients, for the paper's figure 2b."""

from pathlib import Path
from typing import Any

import keras

import keras_mp


def keep_weights(folder: Path) -> keras.callbacks.Callback:
    """Returns a callback that writes the weights at the end of every epoch."""
    path = folder / "{epoch}.weights.h5"
    return keras.callbacks.ModelCheckpoint(str(path), save_weights_only=True)


def gradients_over_training(
    model: keras.Model, folder: Path, epochs: int, inputs: Any, labels: Any
) -> list[dict[str, Any]]:
    """Returns what FP16 does to the weight gradients of a batch, epoch by epoch.

    They are computed after training, so that they take nothing of its time and memory.

    Args:
        model: compiled. It gets the weights of the last epoch.
        folder: where `keep_weights` has kept them.
        epochs: so many there are.
        inputs, labels: the batch.

    Returns:
        For each epoch the counts that `weight_gradients` returns.
    """
    found = []
    for epoch in range(1, epochs + 1):
        model.load_weights(folder / f"{epoch}.weights.h5")
        found.append(_counts(keras_mp.inspect(model, inputs, labels)))
    return found


def weight_gradients(model: keras.Model, inputs: Any, labels: Any) -> dict[str, Any]:
    """Returns what FP16 does to the weight gradients of a batch.

    Args:
        model: compiled. Its gradients are computed in FP32.
        inputs, labels: the batch.

    Returns:
        Dict of the counts `elements`, `zeros`, `lost` (to zero in FP16) and `exponents`
        (of gradients in `[2**e, 2**(e + 1))`, by e); the loss scale of the paper's
        rule, `suggested_scale`; and `needs_scaling` and `needs_masters`, sentences.
    """
    report = keras_mp.inspect(model, inputs, labels)
    return _counts(report) | {
        "suggested_scale": report.suggested_scale(),
        "needs_scaling": str(report.needs_scaling()),
        "needs_masters": str(report.needs_masters()),
    }


def _counts(report: keras_mp.Numerics) -> dict[str, Any]:
    gradients = report.total("weight_gradient")
    return {
        "elements": gradients.elements,
        "zeros": gradients.zeros,
        "lost": gradients.lost,
        "exponents": {str(e): n for e, n in sorted(gradients.exponents.items())},
    }
