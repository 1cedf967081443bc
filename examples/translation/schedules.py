"""The learning-rate schedules of the two tutorials."""

from collections.abc import Sequence
from typing import Any

import keras


def luong234(learning_rate: float, steps: int) -> Any:
    """Halves the learning rate four times in the last third of the steps.

    Example:
    >>> rate = luong234(1.0, steps=12000)
    >>> [float(rate(step)) for step in (8000, 8001, 9001, 10001, 11001)]
    [1.0, 0.5, 0.25, 0.125, 0.0625]
    """
    start = steps * 2 // 3
    every = max((steps - start) // 4, 1)
    return keras.optimizers.schedules.PiecewiseConstantDecay(
        [start + i * every for i in range(4)],
        [learning_rate * 0.5**i for i in range(5)],
    )


class DecayOnWorse(keras.callbacks.Callback):
    """Multiplies the learning rate when the loss exceeds its three last values.

    Args:
        factor: Float. What the learning rate is multiplied by.
        losses: List of floats. The losses of the epochs before those of this run.
    """

    def __init__(self, factor: float = 0.99, losses: Sequence[float] = ()) -> None:
        super().__init__()
        self.factor = factor
        self.losses = list(losses)

    def on_epoch_end(self, epoch: int, logs: dict[str, float] | None = None) -> None:
        loss = (logs or {})["loss"]
        if len(self.losses) >= 3 and loss > max(self.losses[-3:]):
            rate = self.model.optimizer.learning_rate
            self.model.optimizer.learning_rate = float(rate) * self.factor
        self.losses.append(loss)
