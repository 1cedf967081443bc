"""Separable convolutions: 16 bits in and out, FP32 arithmetic on CPUs."""

import keras

from keras_mp.layers.convolutional.base_conv import FP32SeparableConv


@keras.saving.register_keras_serializable(package="keras_mp")
class SeparableConv1D(FP32SeparableConv, keras.layers.SeparableConv1D):
    """`keras.layers.SeparableConv1D`, computed in FP32 on CPUs.

    If TensorFlow sees no GPU, 16-bit inputs and weights are converted to FP32, and the
    result is rounded once, after bias and activation; the gradients of FP32 weights are
    FP32. On a GPU the layer computes as in Keras.

    With `depth_multiplier=1`, 16 or more channels, last, and a kernel of at most 121
    elements, a native kernel computes the depthwise part, and `fp16_gemm` the rest.
    Then the result of the depthwise part is rounded to 16 bits as well, as in Keras,
    and may overflow.

    Args: as in `keras.layers.SeparableConv1D`.

    Example:

    >>> layer = keras_mp.layers.SeparableConv1D(2, 3, dtype="mixed_float16")
    >>> outputs = layer(np.ones((1, 5, 4)))
    >>> outputs.shape, outputs.dtype.name
    (TensorShape([1, 3, 2]), 'float16')

    Reference: Mixed Precision Training, section 3.3.
    """


@keras.saving.register_keras_serializable(package="keras_mp")
class SeparableConv2D(FP32SeparableConv, keras.layers.SeparableConv2D):
    """`keras.layers.SeparableConv2D`, computed in FP32 on CPUs.

    If TensorFlow sees no GPU, 16-bit inputs and weights are converted to FP32, and the
    result is rounded once, after bias and activation; the gradients of FP32 weights are
    FP32. On a GPU the layer computes as in Keras.

    With `depth_multiplier=1`, 16 or more channels, last, and a kernel of at most 121
    elements, a native kernel computes the depthwise part, and `fp16_gemm` the rest.
    Then the result of the depthwise part is rounded to 16 bits as well, as in Keras,
    and may overflow.

    Args: as in `keras.layers.SeparableConv2D`.

    Example:

    >>> layer = keras_mp.layers.SeparableConv2D(2, 3, dtype="mixed_float16")
    >>> outputs = layer(np.ones((1, 5, 5, 4)))
    >>> outputs.shape, outputs.dtype.name
    (TensorShape([1, 3, 3, 2]), 'float16')

    Reference: Mixed Precision Training, section 3.3.
    """
