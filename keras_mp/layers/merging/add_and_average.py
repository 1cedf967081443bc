"""Add and Average: 16 bits in and out, FP32 accumulation."""

import functools
import operator
from typing import Any

import keras
from keras import ops

from keras_mp.layers.precision import uses_ops
from keras_mp.typing import Tensor


def sum_in_fp32(inputs: Tensor) -> Any:
    """Returns the sum of tensors in FP32; each is cast before it is added."""
    return functools.reduce(operator.add, [ops.cast(x, "float32") for x in inputs])


@keras.saving.register_keras_serializable(package="keras_mp")
class Add(keras.layers.Add):
    """`keras.layers.Add`, which adds three or more inputs in FP32 and rounds once.

    Two inputs are added as in Keras, which also rounds their sum once.

    Args: as in `keras.layers.Add`.

    Example:

    >>> x = np.full((1, 1), 6e4, "float16")    # 2 * 6e4 is inf in FP16
    >>> keras_mp.layers.Add(dtype="float16")([x, x, -x]).numpy()
    array([[6.e+04]], dtype=float16)

    Reference: Mixed Precision Training, section 3.3.
    """

    def _merge_function(self, inputs: Tensor) -> Any:
        if len(inputs) < 3 or not uses_ops(self, *inputs):
            return super()._merge_function(inputs)
        return keras.ops.cast(sum_in_fp32(inputs), self.compute_dtype)


@keras.saving.register_keras_serializable(package="keras_mp")
class Average(keras.layers.Average):
    """`keras.layers.Average`, which averages in FP32 and rounds once.

    Args: as in `keras.layers.Average`.

    Example:

    >>> x = np.full((1, 1), 4e4, "float16")    # the sum is inf in FP16
    >>> keras_mp.layers.Average(dtype="float16")([x, x]).numpy()
    array([[4.e+04]], dtype=float16)

    Reference: Mixed Precision Training, section 3.3.
    """

    def _merge_function(self, inputs: Tensor) -> Any:
        if not uses_ops(self, *inputs):
            return super()._merge_function(inputs)
        return keras.ops.cast(sum_in_fp32(inputs) / len(inputs), self.compute_dtype)
