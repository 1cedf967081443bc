"""The update by the inner optimizer itself: for any optimizer and any gradient."""

from collections.abc import Sequence
from typing import Any

from keras_mp.optimizer.inner_optimizer import touched_rows
from keras_mp.optimizer.masters import are_distinct
from keras_mp.optimizer.update.unscaled_update import UnscaledUpdate


class InnerUpdate(UnscaledUpdate):
    """Applies any optimizer to unscaled FP32 gradients and the masters."""

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
