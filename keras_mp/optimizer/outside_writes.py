"""Weights in 16 bits that a training step itself moves and moves back."""

import warnings
from collections.abc import Sequence
from typing import Any

from keras_mp.optimizer.backend import backend
from keras_mp.optimizer.masters import needs_master, path_of


class OutsideWrites:
    """Warns of a step that assigns to a 16-bit weight more than once before `apply`.

    Sharpness-aware minimization does so: it adds to a weight, takes a gradient, and
    subtracts the same. In 16 bits the weight does not come back to the bit, and its
    master, which takes what was written, loses what lies below.

    It looks at the step while that is traced, which costs nothing when it runs. It does
    not see a loop that runs eagerly, assignments in branches, or several replicas.
    """

    def __init__(self) -> None:
        self._seen: tuple[Any, int] = (None, 0)
        self._has_warned = False

    def take_note(self) -> None:
        """Leaves out, from now on, what the current function has assigned so far."""
        self._seen = (backend.current_function(), backend.traced_operations())

    def check(self, weights: Sequence[Any]) -> None:
        """Warns once, if the current function has assigned to one of these repeatedly.

        Args:
            weights: list of the variables of a step.
        """
        function, seen = self._seen
        start = seen if function is backend.current_function() else 0
        if self._has_warned or backend.traced_operations() <= start:
            return
        halves = [weight for weight in weights if needs_master(weight)]
        counts = backend.traced_assignments(halves, start)
        for weight, count in zip(halves, counts, strict=True):
            if count > 1:
                self._has_warned = True
                warnings.warn(
                    f"A training step assigns {count} times to {path_of(weight)!r} "
                    f"before `apply`. In {weight.dtype} each assignment is rounded. "
                    "Unless the weight comes back bit for bit, what its master had "
                    "below the last bit is lost. Add and subtract in `with "
                    "optimizer.fp32_weights(model):`, which yields the FP32 values.",
                    stacklevel=3,
                )
                return
