"""The precisions that every experiment trains in, under the names of the flag."""

from dataclasses import dataclass
from typing import Any

import keras

import keras_mp


@dataclass(frozen=True)
class Precision:
    """How numbers are stored, and by what the optimizer updates the weights.

    Attributes:
        dtype_policy: that of Keras: of weights, activations and gradients.
        loss_scale: that of `keras_mp.wrap`, or None for an optimizer that is not
            wrapped: without masters and without loss scaling.
        computes_in_fp32: whether plain TensorFlow computes FP16 numbers in FP32 and
            rounds the result, the "pseudo FP16" of the paper's section 4.3, in the
            place of kernels that multiply FP16 numbers.
    """

    dtype_policy: str
    loss_scale: Any = None
    computes_in_fp32: bool = False

    def wrap(self, optimizer: keras.optimizers.Optimizer) -> Any:
        """Returns the optimizer with masters and loss scaling, or as it is."""
        if self.loss_scale is None:
            return optimizer
        return keras_mp.wrap(optimizer, loss_scale=self.loss_scale)


PRECISIONS = {
    "fp32": Precision("float32"),
    "mixed": Precision("float16", loss_scale="dynamic"),
    "mixed-no-scaling": Precision("float16", loss_scale=1.0),
    "fp16-no-master": Precision("float16"),
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
