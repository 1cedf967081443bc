"""What updates have in common that unscale their gradients before they use them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from keras_mp.optimizer.backend import backend
from keras_mp.optimizer.backend_tf import Runner
from keras_mp.optimizer.gradients import GradientCheck, Wanted, unscale
from keras_mp.optimizer.master_weights import MasterWeights
from keras_mp.optimizer.masters import StoredMaster


def variables_of(masters: Sequence[Any]) -> list[Any]:
    """Returns the variables that masters are stored in."""
    stored = [m.variables if isinstance(m, StoredMaster) else [m] for m in masters]
    return [variable for each in stored for variable in each]


@dataclass
class UnscaledUpdate:
    """Unscales and checks gradients, and then updates in `_update`.

    Attributes:
        optimizer: the inner `keras.optimizers.Optimizer`.
        master_weights: `MasterWeights`.
        gradients: list of tensors, `tf.IndexedSlices` or None, of the scaled loss.
        masters: list of their variables or `StoredMaster`s.
        scale: scalar float32 tensor that the gradients are divided by, or None.
        replicas: int, how many take this step.
        run: the `Runner` that calls the update on them.
    """

    optimizer: Any
    master_weights: MasterWeights
    gradients: Sequence[Any]
    masters: Sequence[Any]
    scale: Any
    replicas: int
    run: Runner

    @property
    def given(self) -> list[Any]:
        """The masters that have a gradient."""
        pairs = zip(self.gradients, self.masters, strict=True)
        return [master for gradient, master in pairs if gradient is not None]

    @property
    def variables(self) -> list[Any]:
        """All variables that the update may change."""
        return [*self.optimizer.variables, *self.master_weights.variables]

    def check(self, wanted: Wanted) -> GradientCheck:
        """Unscales the gradients, and returns the `GradientCheck` of those `given`.

        Args:
            wanted: `Wanted`.
        """
        self._unscaled, check = unscale(
            self.optimizer,
            self.gradients,
            [variables_of([master])[0] for master in self.masters],
            self.scale,
            wanted,
            self.replicas,
        )
        return check

    def apply(self, finite: Any) -> None:
        """Updates slots, masters and weights if `finite` is true.

        Args:
            finite: scalar bool tensor, the same on every replica.
        """
        backend.cond_on_all_replicas(
            finite, self.run, self._update, self._unscaled, self.variables
        )

    def _update(self, gradients: Sequence[Any]) -> None:
        raise NotImplementedError
