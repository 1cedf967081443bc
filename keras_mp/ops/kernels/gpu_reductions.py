"""The switch of the GPU kernels of softmax, normalization and sums: off by default.

No GPU has measured them yet, so that formulas in TensorFlow compute there. The native
library also reads the switch, when it is loaded: it registers the kernels if it is on.
"""

import os

SWITCH = "KERAS_MP_GPU_REDUCTIONS"
CHOICES = ("formula", "kernels")


def are_on() -> bool:
    """Tells whether kernels are to be used on a GPU, if they are right there."""
    chosen = os.environ.get(SWITCH) or "formula"
    if chosen not in CHOICES:
        raise ValueError(
            f"The environment variable {SWITCH} must be one of {CHOICES}: what "
            "computes softmax, normalization and sums on a GPU. "
            f"Received: {SWITCH}={chosen!r}."
        )
    return chosen == "kernels"
