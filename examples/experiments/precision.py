"""The precisions that every experiment trains in, under the names of the flag."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import keras
from keras import ops

import keras_mp


@dataclass(frozen=True)
class Precision:
    """How numbers are stored, and by what the optimizer updates the weights.

    Attributes:
        dtype_policy: that of Keras: of weights, activations and gradients.
        wrap_options: arguments of `keras_mp.wrap`, or None for an optimizer that is not
            wrapped: its weights and its state, such as moments, have the dtype of the
            policy, and there is no loss scaling.
        keeps_masters: whether the FP32 masters keep what FP16 weights cannot. If not,
            they are rounded to FP16 after each step.
        computes_in_fp32: whether plain TensorFlow computes FP16 numbers in FP32 and
            rounds the result, the "pseudo FP16" of the paper's section 4.3, instead of
            kernels that multiply FP16 numbers.
    """

    dtype_policy: str
    wrap_options: Mapping[str, Any] | None = None
    keeps_masters: bool = True
    computes_in_fp32: bool = False


DYNAMIC = {"loss_scale": "dynamic"}
# How masters and optimizer state are stored, by the name of the precision.
FORMS = {
    "mixed-remainders": {"masters": "remainders"},
    "mixed-int8": {"state": "int8"},
    "mixed-remainders-int8": {"masters": "remainders", "state": "int8"},
    "mixed-stochastic": {"masters": None, "rounding": "stochastic"},
}
SMALLEST_FORMS = {
    "mixed-int8-remainders-int8": {"masters": "int8_remainders", "state": "int8"},
    "mixed-int8-remainders-int4": {"masters": "int8_remainders", "state": "int4"},
}
ALL_FORMS = FORMS | SMALLEST_FORMS
PRECISIONS = {
    "fp32": Precision("float32"),
    "mixed": Precision("float16", DYNAMIC),
    "mixed-no-scaling": Precision("float16", {"loss_scale": 1.0}),
    "mixed-no-masters": Precision("float16", DYNAMIC, keeps_masters=False),
    **{name: Precision("float16", DYNAMIC | form) for name, form in ALL_FORMS.items()},
    "plain-fp16": Precision("float16"),
    "pseudo-fp16": Precision("float16", DYNAMIC, computes_in_fp32=True),
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
        return Precision("float16", {"loss_scale": keras_mp.StatisticalLossScale()})
    return Precision("float16", {"loss_scale": loss_scale})


def setting_of(name: str) -> str:
    """Returns a precision as settings are named: "mixed, no masters", "plain fp16"."""
    if name.startswith("mixed-"):
        return name.replace("-", ", ", 1).replace("-", " ")
    return name.replace("plain-", "plain ")


class RoundMasters(keras.callbacks.Callback):
    """Rounds FP32 masters to FP16 after each step, as if there were none.

    The loss is scaled, and the state of the optimizer stays in FP32, so that what
    differs from mixed precision differs for want of masters. (A plain optimizer on FP16
    weights keeps its state in FP16, too.)
    """

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        # A weight that is stored in FP32 is listed as its own master.
        weights = {id(weight) for weight in self.model.trainable_variables}
        # A GAN has two.
        for optimizer in vars(self.model).values():
            if not isinstance(optimizer, keras_mp.FP32MasterOptimizer):
                continue
            with optimizer.fp32_weights():
                for master in optimizer.master_weights:
                    if id(master) not in weights:
                        rounded = ops.cast(master, "float16")
                        master.assign(ops.cast(rounded, "float32"))
