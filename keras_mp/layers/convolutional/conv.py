"""Conv1D, Conv2D and Conv3D: 16 bits in and out, FP32 arithmetic on CPUs."""

import keras

from keras_mp.layers.convolutional.base_conv import FP32Conv


@keras.saving.register_keras_serializable(package="keras_mp")
class Conv1D(FP32Conv, keras.layers.Conv1D):
    """`keras.layers.Conv1D`, computed in FP32 on CPUs.

    If TensorFlow sees no GPU, 16-bit inputs and weights are converted to FP32, and the
    result is rounded once, after bias and activation; the gradients of FP32 weights are
    FP32. On a GPU the layer computes as in Keras.

    Args: as in `keras.layers.Conv1D`.

    Example:

    >>> layer = keras_mp.layers.Conv1D(2, 3, dtype="mixed_float16")
    >>> outputs = layer(np.ones((1, 5, 4)))
    >>> outputs.shape, outputs.dtype.name
    (TensorShape([1, 3, 2]), 'float16')

    Reference: Mixed Precision Training, section 3.3.
    """


@keras.saving.register_keras_serializable(package="keras_mp")
class Conv2D(FP32Conv, keras.layers.Conv2D):
    """`keras.layers.Conv2D`, computed in FP32 on CPUs.

    If TensorFlow sees no GPU, 16-bit inputs and weights are converted to FP32, and the
    result is rounded once, after bias and activation; the gradients of FP32 weights are
    FP32. On a GPU the layer computes as in Keras.

    Args: as in `keras.layers.Conv2D`.

    Example:

    >>> layer = keras_mp.layers.Conv2D(2, 3, dtype="mixed_float16")
    >>> outputs = layer(np.ones((1, 5, 5, 4)))
    >>> outputs.shape, outputs.dtype.name
    (TensorShape([1, 3, 3, 2]), 'float16')

    Reference: Mixed Precision Training, section 3.3.
    """


@keras.saving.register_keras_serializable(package="keras_mp")
class Conv3D(FP32Conv, keras.layers.Conv3D):
    """`keras.layers.Conv3D`, computed in FP32 on CPUs.

    If TensorFlow sees no GPU, 16-bit inputs and weights are converted to FP32, and the
    result is rounded once, after bias and activation; the gradients of FP32 weights are
    FP32. On a GPU the layer computes as in Keras.

    Args: as in `keras.layers.Conv3D`.

    Example:

    >>> layer = keras_mp.layers.Conv3D(2, 3, dtype="mixed_float16")
    >>> outputs = layer(np.ones((1, 5, 5, 5, 4)))
    >>> outputs.shape, outputs.dtype.name
    (TensorShape([1, 3, 3, 3, 2]), 'float16')

    Reference: Mixed Precision Training, section 3.3.
    """
