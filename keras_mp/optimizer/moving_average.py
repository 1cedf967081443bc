"""Masters and their exponential moving averages."""

from collections.abc import Sequence
from typing import Any

import keras
from keras import ops

from keras_mp.optimizer.inner_optimizer import leaves
from keras_mp.optimizer.master_weights import MasterWeights


def keeps_average(optimizer: Any) -> bool:
    """Tells whether an optimizer, or one inside it, averages what it updates."""
    return any(leaf.use_ema for leaf in leaves(optimizer))


def overwrite_with_average(
    optimizer: Any, master_weights: MasterWeights, masters: Sequence[Any]
) -> None:
    """Overwrites masters with their moving averages.

    Args:
        optimizer: `keras.optimizers.Optimizer`, which keeps averages.
        master_weights: `MasterWeights`.
        masters: list of those to overwrite.
    """
    if master_weights.are_compressed:
        averages = master_weights.kept.averages
        for master in masters:
            average = averages[master_weights.position(master)]
            master.assign(ops.copy(average))
        return
    optimizer.finalize_variable_values(masters)
    if keras.backend.backend() == "jax":
        # Keras has made a master and its average one buffer, and the next `fit`
        # cannot donate a buffer twice.
        for master in masters:
            master.assign(ops.copy(master))
