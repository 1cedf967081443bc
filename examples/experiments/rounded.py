"""Masters that know no more than FP16 weights do."""

from typing import Any

import keras
from keras import ops

import keras_mp


class RoundMasters(keras.callbacks.Callback):
    """Rounds FP32 masters to FP16 after each step, as if there were none.

    The loss is scaled, and the state of the optimizer stays in FP32, so that what
    differs from mixed precision differs for want of masters. (A plain optimizer on FP16
    weights keeps its state in FP16, too.)
    """

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        # A weight that is stored in FP32 is listed as its own master.
        weights = {id(weight) for weight in self.model.trainable_variables}
        # A GAN has two.
        for optimizer in vars(self.model).values():
            if not isinstance(optimizer, keras_mp.FP32MasterOptimizer):
                continue
            with optimizer.fp32_weights():
                for master in optimizer.master_weights:
                    if id(master) not in weights:
                        rounded = ops.cast(master, "float16")
                        master.assign(ops.cast(rounded, "float32"))
