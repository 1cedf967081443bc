"""Transposed convolutions: 16 bits in and out, FP32 arithmetic on CPUs."""

import keras

from keras_mp.layers.convolutional.base_conv import FP32ConvTranspose


@keras.saving.register_keras_serializable(package="keras_mp")
class Conv1DTranspose(FP32ConvTranspose, keras.layers.Conv1DTranspose):
    """`keras.layers.Conv1DTranspose`, computed in FP32 on CPUs.

    If TensorFlow sees no GPU, 16-bit inputs and weights are converted to FP32, and the
    result is rounded once, after bias and activation; the gradients of FP32 weights are
    FP32. On a GPU the layer computes as in Keras.

    Args: as in `keras.layers.Conv1DTranspose`.

    Example:

    >>> layer = keras_mp.layers.Conv1DTranspose(2, 3, dtype="mixed_float16")
    >>> outputs = layer(np.ones((1, 5, 4)))
    >>> outputs.shape, outputs.dtype.name
    (TensorShape([1, 7, 2]), 'float16')

    Reference: Mixed Precision Training, section 3.3.
    """


@keras.saving.register_keras_serializable(package="keras_mp")
class Conv2DTranspose(FP32ConvTranspose, keras.layers.Conv2DTranspose):
    """`keras.layers.Conv2DTranspose`, computed in FP32 on CPUs.

    If TensorFlow sees no GPU, 16-bit inputs and weights are converted to FP32, and the
    result is rounded once, after bias and activation; the gradients of FP32 weights are
    FP32. On a GPU the layer computes as in Keras.

    Args: as in `keras.layers.Conv2DTranspose`.

    Example:

    >>> layer = keras_mp.layers.Conv2DTranspose(2, 3, dtype="mixed_float16")
    >>> outputs = layer(np.ones((1, 5, 5, 4)))
    >>> outputs.shape, outputs.dtype.name
    (TensorShape([1, 7, 7, 2]), 'float16')

    Reference: Mixed Precision Training, section 3.3.
    """


@keras.saving.register_keras_serializable(package="keras_mp")
class Conv3DTranspose(FP32ConvTranspose, keras.layers.Conv3DTranspose):
    """`keras.layers.Conv3DTranspose`, computed in FP32 on CPUs.

    If TensorFlow sees no GPU, 16-bit inputs and weights are converted to FP32, and the
    result is rounded once, after bias and activation; the gradients of FP32 weights are
    FP32. On a GPU the layer computes as in Keras.

    Args: as in `keras.layers.Conv3DTranspose`.

    Example:

    >>> layer = keras_mp.layers.Conv3DTranspose(2, 3, dtype="mixed_float16")
    >>> outputs = layer(np.ones((1, 5, 5, 5, 4)))
    >>> outputs.shape, outputs.dtype.name
    (TensorShape([1, 7, 7, 7, 2]), 'float16')

    Reference: Mixed Precision Training, section 3.3.
    """
