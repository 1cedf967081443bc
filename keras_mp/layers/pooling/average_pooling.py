"""Average pooling in 1D, 2D and 3D: 16 bits in and out, FP32 accumulation."""

import keras

from keras_mp.layers.pooling.base_pooling import FP32AveragePooling


@keras.saving.register_keras_serializable(package="keras_mp")
class AveragePooling1D(FP32AveragePooling, keras.layers.AveragePooling1D):
    """`keras.layers.AveragePooling1D`, which averages in FP32 and rounds once.

    Nothing is kept for the backward pass.

    Args: as in `keras.layers.AveragePooling1D`.

    Example:

    >>> layer = keras_mp.layers.AveragePooling1D(2, dtype="float16")
    >>> x = np.full((1, 2, 1), 4e4, "float16")    # the sum is inf in FP16
    >>> float(keras.ops.max(layer(x)))
    40000.0

    Reference: Mixed Precision Training, section 3.3.
    """


@keras.saving.register_keras_serializable(package="keras_mp")
class AveragePooling2D(FP32AveragePooling, keras.layers.AveragePooling2D):
    """`keras.layers.AveragePooling2D`, which averages in FP32 and rounds once.

    Nothing is kept for the backward pass.

    Args: as in `keras.layers.AveragePooling2D`.

    Example:

    >>> layer = keras_mp.layers.AveragePooling2D(2, dtype="float16")
    >>> x = np.full((1, 2, 2, 1), 4e4, "float16")    # the sum is inf in FP16
    >>> float(keras.ops.max(layer(x)))
    40000.0

    Reference: Mixed Precision Training, section 3.3.
    """


@keras.saving.register_keras_serializable(package="keras_mp")
class AveragePooling3D(FP32AveragePooling, keras.layers.AveragePooling3D):
    """`keras.layers.AveragePooling3D`, which averages in FP32 and rounds once.

    Nothing is kept for the backward pass.

    Args: as in `keras.layers.AveragePooling3D`.

    Example:

    >>> layer = keras_mp.layers.AveragePooling3D(2, dtype="float16")
    >>> x = np.full((1, 2, 2, 2, 1), 4e4, "float16")    # the sum is inf in FP16
    >>> float(keras.ops.max(layer(x)))
    40000.0

    Reference: Mixed Precision Training, section 3.3.
    """
