"""Depthwise convolutions: 16 bits in and out, FP32 arithmetic on CPUs."""

import keras

from keras_mp.layers.convolutional.base_conv import FP32DepthwiseConv


@keras.saving.register_keras_serializable(package="keras_mp")
class DepthwiseConv1D(FP32DepthwiseConv, keras.layers.DepthwiseConv1D):
    """`keras.layers.DepthwiseConv1D`, computed in FP32 on CPUs.

    If TensorFlow sees no GPU, 16-bit inputs and weights are converted to FP32, and the
    result is rounded once, after bias and activation; the gradients of FP32 weights are
    FP32. On a GPU the layer computes as in Keras.

    With `depth_multiplier=1`, 16 or more channels, last, and a kernel of at most 121
    elements, a native kernel computes it, inside XLA and outside. XLA has none for CPUs
    and takes 9 to 65 times as long (docs/performance.md).

    Args: as in `keras.layers.DepthwiseConv1D`.

    Example:

    >>> layer = keras_mp.layers.DepthwiseConv1D(3, dtype="mixed_float16")
    >>> outputs = layer(np.ones((1, 5, 4)))
    >>> outputs.shape, outputs.dtype.name
    (TensorShape([1, 3, 4]), 'float16')

    Reference: Mixed Precision Training, section 3.3.
    """


@keras.saving.register_keras_serializable(package="keras_mp")
class DepthwiseConv2D(FP32DepthwiseConv, keras.layers.DepthwiseConv2D):
    """`keras.layers.DepthwiseConv2D`, computed in FP32 on CPUs.

    If TensorFlow sees no GPU, 16-bit inputs and weights are converted to FP32, and the
    result is rounded once, after bias and activation; the gradients of FP32 weights are
    FP32. On a GPU the layer computes as in Keras.

    With `depth_multiplier=1`, 16 or more channels, last, and a kernel of at most 121
    elements, a native kernel computes it, inside XLA and outside. XLA has none for CPUs
    and takes 9 to 65 times as long (docs/performance.md).

    Args: as in `keras.layers.DepthwiseConv2D`.

    Example:

    >>> layer = keras_mp.layers.DepthwiseConv2D(3, dtype="mixed_float16")
    >>> outputs = layer(np.ones((1, 5, 5, 4)))
    >>> outputs.shape, outputs.dtype.name
    (TensorShape([1, 3, 3, 4]), 'float16')

    Reference: Mixed Precision Training, section 3.3.
    """
