"""Global average pooling in 1D, 2D and 3D: 16 bits in and out, FP32 accumulation."""

import keras
from keras import ops

from keras_mp.layers.pooling.base_pooling import FP32GlobalPooling, spatial_axes
from keras_mp.layers.precision import uses_ops
from keras_mp.typing import Tensor


@keras.saving.register_keras_serializable(package="keras_mp")
class GlobalAveragePooling1D(keras.layers.GlobalAveragePooling1D):
    """`keras.layers.GlobalAveragePooling1D`, which averages in FP32 and rounds once.

    Nothing is kept for the backward pass.

    Args: as in `keras.layers.GlobalAveragePooling1D`.

    Example:

    >>> layer = keras_mp.layers.GlobalAveragePooling1D(dtype="float16")
    >>> layer(np.full((1, 100_000, 1), 3.0, "float16")).numpy()
    array([[3.]], dtype=float16)

    Reference: Mixed Precision Training, section 3.3.
    """

    def call(self, inputs: Tensor, mask: Tensor | None = None) -> Tensor:
        if not uses_ops(self, inputs):
            return super().call(inputs, mask=mask)
        from keras_mp.ops import mean, sum

        axes = spatial_axes(self, inputs)
        if mask is None:
            return mean(inputs, axes, self.keepdims)
        mask = ops.cast(mask, "bool")
        mask = ops.expand_dims(mask, 2 if self.data_format == "channels_last" else 1)
        total, count = (
            sum(x, axes, self.keepdims, "float32")
            for x in (ops.where(mask, inputs, 0), ops.cast(mask, "float32"))
        )
        return ops.cast(total / count, inputs.dtype)


@keras.saving.register_keras_serializable(package="keras_mp")
class GlobalAveragePooling2D(FP32GlobalPooling, keras.layers.GlobalAveragePooling2D):
    """`keras.layers.GlobalAveragePooling2D`, which averages in FP32 and rounds once.

    Nothing is kept for the backward pass.

    Args: as in `keras.layers.GlobalAveragePooling2D`.

    Example:

    >>> layer = keras_mp.layers.GlobalAveragePooling2D(dtype="float16")
    >>> layer(np.full((1, 400, 400, 1), 3.0, "float16")).numpy()
    array([[3.]], dtype=float16)

    Reference: Mixed Precision Training, section 3.3.
    """


@keras.saving.register_keras_serializable(package="keras_mp")
class GlobalAveragePooling3D(FP32GlobalPooling, keras.layers.GlobalAveragePooling3D):
    """`keras.layers.GlobalAveragePooling3D`, which averages in FP32 and rounds once.

    Nothing is kept for the backward pass.

    Args: as in `keras.layers.GlobalAveragePooling3D`.

    Example:

    >>> layer = keras_mp.layers.GlobalAveragePooling3D(dtype="float16")
    >>> layer(np.full((1, 50, 50, 50, 1), 3.0, "float16")).numpy()
    array([[3.]], dtype=float16)

    Reference: Mixed Precision Training, section 3.3.
    """
