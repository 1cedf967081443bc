"""The update by the inner optimizer itself: for any optimizer and any gradient."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from keras_mp.optimizer.backend import Runner, backend
from keras_mp.optimizer.inner_optimizer import touched_rows
from keras_mp.optimizer.master_weights import MasterWeights, are_distinct
from keras_mp.optimizer.update.gradient_check import GradientCheck, Wanted
from keras_mp.optimizer.update.unscaling import unscale


@dataclass
class InnerUpdate:
    """Applies any optimizer to un-scaled FP32 gradients and the masters.

    Attributes:
        optimizer: `keras.optimizers.Optimizer`.
        master_weights: `MasterWeights`.
        gradients: list of tensors, `tf.IndexedSlices` or None, of the scaled loss.
        masters: list of their variables.
        scale: scalar float32 tensor that the gradients are divided by.
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

    def check(self, wanted: Wanted) -> GradientCheck:
        """Un-scales the gradients, and returns the `GradientCheck` of those `given`.

        Args:
            wanted: `Wanted`.
        """
        self._unscaled, check = unscale(
            self.optimizer,
            self.gradients,
            self.masters,
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
            finite,
            self.run,
            self._update,
            self._unscaled,
            [*self.optimizer.variables, *self.master_weights.variables],
        )

    def _update(self, gradients: Sequence[Any]) -> None:
        rows = self._touched_rows(gradients)
        self.master_weights.sync_masters_from_weights(rows)
        self.optimizer.apply(list(gradients), list(self.masters))
        self.master_weights.sync_weights_from_masters(rows)

    def _touched_rows(self, gradients: Sequence[Any]) -> dict[int, Any]:
        """Returns, by the `id` of a master, the only rows of it that can change."""
        if (
            self.replicas > 1
            or self.master_weights.rounding == "stochastic"
            or not are_distinct(self.masters)
        ):
            return {}
        rows = {
            id(master): touched_rows(self.optimizer, gradient, master)
            for gradient, master in zip(gradients, self.masters, strict=True)
        }
        return {key: touched for key, touched in rows.items() if touched is not None}
