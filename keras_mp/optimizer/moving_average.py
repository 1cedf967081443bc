"""Masters and their exponential moving averages."""

from collections.abc import Sequence
from typing import Any

import keras
from keras import ops

from keras_mp.optimizer.inner_optimizer import leaves


def keeps_average(optimizer: Any) -> bool:
    """Tells whether an optimizer, or one inside it, averages what it updates."""
    return any(leaf.use_ema for leaf in leaves(optimizer))


def overwrite_with_average(optimizer: Any, masters: Sequence[Any]) -> None:
    """Overwrites masters with their moving averages.

    Args:
        optimizer: `keras.optimizers.Optimizer`, which keeps averages.
        masters: list of variables that it updates.
    """
    optimizer.finalize_variable_values(masters)
    if keras.backend.backend() == "jax":
        # Keras has made a master and its average one buffer, and the next `fit`
        # cannot donate a buffer twice.
        for master in masters:
            master.assign(ops.copy(master))
