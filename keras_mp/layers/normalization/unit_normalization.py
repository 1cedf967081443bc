"""UnitNormalization: 16 bits in and out, FP32 arithmetic."""

import keras
from keras import ops

from keras_mp.layers.precision import uses_ops
from keras_mp.typing import Tensor


@keras.saving.register_keras_serializable(package="keras_mp")
class UnitNormalization(keras.layers.UnitNormalization):
    """`keras.layers.UnitNormalization` with squares that are summed in FP32.

    `round(x / sqrt(sum(x**2)))`; everything inside `round` is FP32. The 16-bit inputs
    are kept for the backward pass. A vector of zeros stays one; its gradient, which is
    not defined, is 0, in FP32 too; the Keras layer multiplies it by 1e12.

    Args: as in `keras.layers.UnitNormalization`.

    Example:

    >>> x = np.array([[3000.0, 4000.0]], "float16")    # 3000**2 is inf in FP16
    >>> keras_mp.layers.UnitNormalization(dtype="float16")(x).numpy()
    array([[0.6, 0.8]], dtype=float16)

    Reference: Mixed Precision Training, section 3.3.
    """

    def call(self, inputs: Tensor) -> Tensor:
        if not uses_ops(self, inputs):
            is_zero = ops.all(ops.equal(inputs, 0), axis=self.axis, keepdims=True)
            return super().call(ops.where(is_zero, ops.stop_gradient(inputs), inputs))
        from keras_mp.ops import row_normalization

        return row_normalization.normalize_rows(
            inputs, self.axis, row_normalization.UNIT_LENGTH, epsilon=1e-12
        )
