"""GlobalAveragePooling2D, in FP32 between 16-bit inputs and outputs."""

import keras

from keras_mp.layers.pooling.base_pooling import FP32GlobalPooling


@keras.saving.register_keras_serializable(package="keras_mp")
class GlobalAveragePooling2D(FP32GlobalPooling, keras.layers.GlobalAveragePooling2D):
    """`keras.layers.GlobalAveragePooling2D`, which averages in FP32 and rounds once.

    Nothing is held for the backward pass.

    Args: those of `keras.layers.GlobalAveragePooling2D`.

    Example:

    >>> layer = keras_mp.layers.GlobalAveragePooling2D(dtype="float16")
    >>> layer(np.full((1, 400, 400, 1), 3.0, "float16")).numpy()
    array([[3.]], dtype=float16)

    Reference: Mixed Precision Training, section 3.3.
    """
