"""SGD whose gradients may be of several dtypes."""

from collections.abc import Sequence
from typing import Any

import keras
from keras import ops


@keras.saving.register_keras_serializable(package="experiments")
class SGD(keras.optimizers.SGD):
    """`keras.optimizers.SGD`, which clips and updates with gradients in FP32.

    Batch normalization keeps FP32 weights under every dtype policy. Without FP32
    masters of the others there are gradients in FP16 and in FP32, and the norm of all
    together, by which Keras clips, can be taken in one dtype only. The FP16 weights,
    and their momentum, are still updated in FP16.

    Args: those of `keras.optimizers.SGD`.
    """

    def apply(
        self, grads: Sequence[Any], trainable_variables: Sequence[Any] | None = None
    ) -> None:
        super().apply([ops.cast(g, "float32") for g in grads], trainable_variables)
