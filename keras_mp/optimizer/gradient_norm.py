"""The norm of the gradients of a step, kept for those who watch a training run."""

from collections.abc import Sequence
from typing import Any

import keras
from keras import ops

from keras_mp.optimizer.backend import backend, sum_gradients
from keras_mp.optimizer.update.gradient_check import GradientCheck, sum_of_squares_of


def check_can_keep_norm() -> None:
    """Checks that the norm of the gradients can be kept.

    Raises:
        RuntimeError: Keras's backend is not TensorFlow.
    """
    if keras.backend.backend() != "tensorflow":
        raise RuntimeError(
            "Keeping the norm of the gradients, as `LossScaleCallback(log_dir=...)` "
            "does, needs Keras on the TensorFlow backend. "
            f"Received: backend={keras.backend.backend()!r}. Leave out `log_dir`, "
            "or set KERAS_BACKEND=tensorflow before Keras is imported."
        )


class GradientNorm:
    """Keeps the norm of the unscaled gradients of the last step, once asked to.

    Its variable is none of the optimizer's, so files do not change.

    Attributes:
        variable: scalar float32 variable, or None before `keep`.
    """

    variable: Any = None

    def keep(self, strategy: Any) -> None:
        """Creates the variable.

        Args:
            strategy: the strategy that the optimizer was created in.

        Raises:
            RuntimeError: as for `check_can_keep_norm`.
        """
        check_can_keep_norm()
        with backend.scope_of(strategy):
            self.variable = keras.Variable(
                0.0,
                trainable=False,
                dtype="float32",
                aggregation="only_first_replica",
                name="gradient_norm",
            )

    def assign(
        self, check: GradientCheck, parts: Sequence[Any] | None, scale: Any
    ) -> None:
        """Sets the norm to the norm of a step, if it is kept.

        Args:
            check: `GradientCheck` of the gradients.
            parts: list of this replica's gradients or of None, if they are not summed
                over the replicas yet; or None.
            scale: scalar float32 tensor that the parts are divided by, or None.
        """
        if self.variable is None:
            return
        if parts is None:
            self.variable.assign(ops.sqrt(check.sum_of_squares))
            return
        sums = [g for g in sum_gradients(parts, "float32") if g is not None]
        norm = ops.sqrt(sum_of_squares_of(sums))
        self.variable.assign(norm if scale is None else norm / scale)
