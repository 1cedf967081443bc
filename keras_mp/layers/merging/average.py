"""Average, in FP32 between 16-bit inputs and outputs."""

from typing import Any

import keras

from keras_mp.layers.merging.base_merging import sum_in_fp32
from keras_mp.layers.precision import uses_ops


@keras.saving.register_keras_serializable(package="keras_mp")
class Average(keras.layers.Average):
    """`keras.layers.Average`, which averages in FP32 and rounds once.

    Args: those of `keras.layers.Average`.

    Example:

    >>> x = np.full((1, 1), 4e4, "float16")    # the sum is inf in FP16
    >>> keras_mp.layers.Average(dtype="float16")([x, x]).numpy()
    array([[4.e+04]], dtype=float16)

    Reference: Mixed Precision Training, section 3.3.
    """

    def _merge_function(self, inputs: Any) -> Any:
        if not uses_ops(self, *inputs):
            return super()._merge_function(inputs)
        return keras.ops.cast(sum_in_fp32(inputs) / len(inputs), self.compute_dtype)
