"""`Verification`: loss and gradients in FP16, with and without a plan, against FP32."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from keras import ops

from keras_mp.diagnostics.updates import Difference
from keras_mp.precision.run import Trace


@dataclass(frozen=True)
class Comparison:
    """How far one run is from the one in FP32.

    Attributes:
        loss: float.
        gradient_error: float, the relative error of all weight gradients as one vector;
            inf if one is not finite.
        cosine: float or None, of the angle between the two; None if one is not
            finite.
    """

    loss: float
    gradient_error: float
    cosine: float | None

    @classmethod
    def of(cls, run: Trace, reference: Trace) -> "Comparison":
        """Returns it for a run of a model and its run in FP32."""
        difference = Difference.between(gradients_of(run), gradients_of(reference))
        return cls(float(run.loss), difference.relative_error, difference.cosine)

    def __str__(self) -> str:
        cosine = "-" if self.cosine is None else f"{self.cosine:.6f}"
        return (
            f"loss {self.loss:.6g}, gradient error {self.gradient_error:.2%}, "
            f"cosine {cosine}"
        )


@dataclass(frozen=True)
class Verification:
    """What `PrecisionPlan.verify` returns.

    Attributes:
        loss: float, in FP32.
        before: `Comparison` of the model in FP16 throughout.
        after: `Comparison` of the model with the plan.
    """

    loss: float
    before: Comparison
    after: Comparison

    @classmethod
    def of(cls, fp32: Trace, fp16: Trace, planned: Trace) -> "Verification":
        """Returns it for three runs on one batch."""
        before, after = (Comparison.of(each, fp32) for each in (fp16, planned))
        return cls(float(fp32.loss), before, after)

    def __str__(self) -> str:
        return (
            f"FP32:      loss {self.loss:.6g}\n"
            f"FP16:      {self.before}\n"
            f"with plan: {self.after}"
        )


def gradients_of(run: Trace) -> Any:
    """Returns all weight gradients of a run as one float64 vector."""
    found = [gradient for _, gradient in run.weight_gradients]
    vectors = [np.ravel(ops.convert_to_numpy(each)) for each in found]
    return np.concatenate([*vectors, np.zeros(0)])
