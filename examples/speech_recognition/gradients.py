"""The exponents of the weight gradients, for the paper's figure 2b."""

from typing import Any

import keras
import tensorflow as tf

import keras_mp


def weight_gradients(model: keras.Model, batches: tf.data.Dataset) -> dict[str, Any]:
    """Returns what FP16 does to the weight gradients of the first training batch.

    Args:
        model: compiled. Its gradients are computed in FP32.
        batches: of inputs and labels.

    Returns:
        Dict of the counts `elements`, `zeros`, `lost` (to zero in FP16) and `exponents`
        (of gradients in `[2**e, 2**(e + 1))`, by e); the loss scale of the paper's
        rule, `suggested_scale`; and `needs_scaling` and `needs_masters`, sentences.
    """
    ((inputs, labels),) = batches.take(1)
    report = keras_mp.inspect(model, inputs, labels)
    gradients = report.total("weight_gradient")
    return {
        "elements": gradients.elements,
        "zeros": gradients.zeros,
        "lost": gradients.lost,
        "exponents": {str(e): n for e, n in sorted(gradients.exponents.items())},
        "suggested_scale": report.suggested_scale(),
        "needs_scaling": str(report.needs_scaling()),
        "needs_masters": str(report.needs_masters()),
    }
