"""Separable convolutions, in FP32 between 16-bit inputs and outputs on a CPU."""

import keras

from keras_mp.layers.convolutional.base_conv import FP32SeparableConv


@keras.saving.register_keras_serializable(package="keras_mp")
class SeparableConv1D(FP32SeparableConv, keras.layers.SeparableConv1D):
    """`keras.layers.SeparableConv1D`, computed in FP32 where the host is slow in FP16.

    Where TensorFlow sees no GPU, 16-bit inputs and weights are converted to FP32, and
    the result is rounded once, with bias and activation. On a GPU the convolution is
    that of Keras. The gradients of FP32 weights are FP32 on a CPU.

    Args: those of `keras.layers.SeparableConv1D`.

    Example:

    >>> layer = keras_mp.layers.SeparableConv1D(2, 3, dtype="mixed_float16")
    >>> outputs = layer(np.ones((1, 5, 4)))
    >>> outputs.shape, outputs.dtype.name
    (TensorShape([1, 3, 2]), 'float16')

    Reference: Mixed Precision Training, section 3.3.
    """


@keras.saving.register_keras_serializable(package="keras_mp")
class SeparableConv2D(FP32SeparableConv, keras.layers.SeparableConv2D):
    """`keras.layers.SeparableConv2D`, computed in FP32 where the host is slow in FP16.

    Where TensorFlow sees no GPU, 16-bit inputs and weights are converted to FP32, and
    the result is rounded once, with bias and activation. On a GPU the convolution is
    that of Keras. The gradients of FP32 weights are FP32 on a CPU.

    Args: those of `keras.layers.SeparableConv2D`.

    Example:

    >>> layer = keras_mp.layers.SeparableConv2D(2, 3, dtype="mixed_float16")
    >>> outputs = layer(np.ones((1, 5, 5, 4)))
    >>> outputs.shape, outputs.dtype.name
    (TensorShape([1, 3, 3, 2]), 'float16')

    Reference: Mixed Precision Training, section 3.3.
    """
