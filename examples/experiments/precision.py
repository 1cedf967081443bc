"""The precisions that every experiment trains in, under the names of the flag."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import keras

import keras_mp


@dataclass(frozen=True)
class Precision:
    """How numbers are stored, and by what the optimizer updates the weights.

    Attributes:
        dtype_policy: that of Keras: of weights, activations and gradients.
        loss_scale: that of `keras_mp.wrap`, or None for an optimizer that is not
            wrapped: its weights and its state, such as moments, have the dtype of the
            policy, and there is no loss scaling.
        keeps_masters: whether the FP32 masters keep what FP16 weights cannot. If not,
            they are rounded to FP16 after each step.
        forms: in which masters and optimizer state are stored: arguments of
            `keras_mp.wrap`.
        computes_in_fp32: whether plain TensorFlow computes FP16 numbers in FP32 and
            rounds the result, the "pseudo FP16" of the paper's section 4.3, in the
            place of kernels that multiply FP16 numbers.
    """

    dtype_policy: str
    loss_scale: Any = None
    keeps_masters: bool = True
    forms: Mapping[str, Any] = field(default_factory=dict)
    computes_in_fp32: bool = False

    def wrap(
        self, optimizer: keras.optimizers.Optimizer, loss_scale: Any = None
    ) -> Any:
        """Returns the optimizer with masters and loss scaling, or as it is.

        Args:
            optimizer: of Keras.
            loss_scale: in the place of that of this precision, if it has one.
        """
        if self.loss_scale is None:
            return optimizer
        scale = loss_scale or self.loss_scale
        return keras_mp.wrap(optimizer, loss_scale=scale, **self.forms)


# How masters and optimizer state are stored, by the name of the precision.
FORMS = {
    "mixed-remainders": {"masters": "remainders"},
    "mixed-int8": {"state": "int8"},
    "mixed-remainders-int8": {"masters": "remainders", "state": "int8"},
    "mixed-stochastic": {"masters": None, "rounding": "stochastic"},
}
PRECISIONS = {
    "fp32": Precision("float32"),
    "mixed": Precision("float16", loss_scale="dynamic"),
    "mixed-no-scaling": Precision("float16", loss_scale=1.0),
    "mixed-no-masters": Precision("float16", loss_scale="dynamic", keeps_masters=False),
    **{
        name: Precision("float16", loss_scale="dynamic", forms=forms)
        for name, forms in FORMS.items()
    },
    "plain-fp16": Precision("float16"),
    "pseudo-fp16": Precision("float16", loss_scale="dynamic", computes_in_fp32=True),
}


def precision_of(name: str, loss_scale: str | float) -> Precision:
    """Returns the precision that the flags name.

    Args:
        name: a key of `PRECISIONS`.
        loss_scale: `"dynamic"`, `"statistical"` or a number, for `mixed`; the others
            have their own.
    """
    if name != "mixed":
        return PRECISIONS[name]
    if loss_scale == "statistical":
        return Precision("float16", loss_scale=keras_mp.StatisticalLossScale())
    return Precision("float16", loss_scale=loss_scale)
