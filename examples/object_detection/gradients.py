"""How small the gradients of a trained detector are, and what FP16 makes of them."""

import math
from typing import Any

import keras

import keras_mp

# The paper's scale, none, and smaller ones. Gradients at a scale of 1/16 are those of a
# loss that is divided by 16 times as much, and not scaled.
SCALES = [2.0**exponent for exponent in (3, 0, -4, -8, -12)]


def measure(model: keras.Model, x: Any, y: Any) -> dict[str, Any]:
    """Returns what FP16 loses of the gradients of a batch, as JSON can hold it.

    Args:
        model: trained and compiled.
        x: images of a batch.
        y: what their default boxes are to find.

    Returns:
        A dict. Of the activation gradients of all layers, computed in FP32, `elements`,
        `zeros` and `exponents`, from e to the number of magnitudes in
        `[2**e, 2**(e + 1))`. And for each loss scale of `SCALES` in `lost` the share of
        them that is zero in FP16 alone, and in `errors` the relative error of the
        gradients of the weights in FP16.

    Reference: Mixed Precision Training, section 3.2 and figure 3.
    """
    reports = [keras_mp.inspect(model, x, y, loss_scale=scale) for scale in SCALES]
    found = reports[0].total("activation_gradient")
    if found is None:
        raise ValueError("A model must have layers. Received: one without.")
    return {
        "elements": found.elements,
        "zeros": found.zeros,
        "exponents": {str(e): count for e, count in found.exponents.items()},
        "lost": {
            str(scale): found.lost_at(round(math.log2(scale))) / found.elements
            for scale in SCALES
        },
        "errors": {
            str(scale): report.gradient_errors[scale]
            for scale, report in zip(SCALES, reports, strict=True)
        },
    }
