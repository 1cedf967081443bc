"""What the networks share: convolutions with what follows them.

In all of them `width` multiplies the number of channels: at 1.0 they are those of the
paper that the network is from.
"""

from typing import Any

import keras

from keras_mp import layers


def scaled(channels: int, width: float) -> int:
    """Returns `channels * width`, rounded to a multiple of 8, and at least 8.

    All channels of the papers are such multiples, as are the vectors of a CPU and the
    tiles of a tensor core.
    """
    return max(8, 8 * round(channels * width / 8))


def conv(
    x: Any,
    channels: int,
    kernel_size: Any,
    strides: int = 1,
    padding: str = "same",
    *,
    width: float,
    name: str,
    **options: Any,
) -> Any:
    """Applies a convolution, by default without bias and activation."""
    return layers.Conv2D(
        scaled(channels, width),
        kernel_size,
        strides=strides,
        padding=padding,
        kernel_initializer="he_normal",
        name=name,
        **{"use_bias": False, **options},
    )(x)


def conv_relu(x: Any, *args: Any, **options: Any) -> Any:
    """Applies a convolution with a bias, and ReLU; arguments as of `conv`."""
    return conv(x, *args, use_bias=True, activation="relu", **options)


def conv_bn_relu(x: Any, *args: Any, name: str, **options: Any) -> Any:
    """Applies a convolution, batch normalization and ReLU; arguments as of `conv`."""
    return bn_relu(conv(x, *args, name=name, **options), name=name)


def bn_relu(x: Any, *, name: str) -> Any:
    """Applies batch normalization and ReLU.

    The moving averages follow within tens of steps. With Keras's momentum of 0.99 those
    of a short run would still remember how they began.
    """
    x = layers.BatchNormalization(momentum=0.9, epsilon=1e-5, name=f"{name}_bn")(x)
    return keras.layers.ReLU(name=f"{name}_relu")(x)


def dense_relu(
    x: Any, units: int, *, width: float, name: str, dropout: float = 0.5
) -> Any:
    """Applies a fully connected layer, ReLU and dropout."""
    x = layers.Dense(
        scaled(units, width),
        activation="relu",
        kernel_initializer="he_normal",
        name=name,
    )(x)
    return keras.layers.Dropout(dropout, name=f"{name}_dropout")(x)


def classifier(x: Any, classes: int, *, name: str) -> Any:
    """Returns the logits: those of the last layer."""
    return layers.Dense(classes, name=name)(x)
