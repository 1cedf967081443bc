"""Weights without masters, and nothing else of mixed precision."""

from typing import Any

import keras
from keras import ops


class RoundWeights(keras.callbacks.Callback):
    """Rounds FP32 weights to FP16 after each step, as if they were stored so.

    Activations, gradients and the state of the optimizer stay in FP32, so that what
    differs from FP32 differs for want of masters. (A plain optimizer on FP16 weights
    keeps its moments in FP16 too.)
    """

    def on_train_begin(self, logs: Any = None) -> None:
        self._round()

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self._round()

    def _round(self) -> None:
        for weight in self.model.trainable_variables:
            weight.assign(ops.cast(ops.cast(weight, "float16"), "float32"))
