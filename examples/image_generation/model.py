"""DCGAN: the generator and the discriminator."""

from typing import Any

import keras

import keras_mp

_HALVES: dict[str, Any] = {
    "kernel_size": 5,
    "strides": 2,
    "padding": "same",
    "kernel_initializer": keras.initializers.RandomNormal(stddev=0.02),
}


def channels(size: int, width: int) -> list[int]:
    """Returns the channels at the resolutions size / 2, size / 4, ..., 2.

    They double as the resolution is halved, up to 8 times the width.
    """
    return [width * min(2**i, 8) for i in range(size.bit_length() - 2)]


def generator(size: int, width: int, noise: int) -> keras.Model:
    """From noise to images from -1 to 1; every layer doubles the resolution.

    Images of 128 pixels take the seven fractionally-strided convolutions of the paper.

    Args:
        size: of the images, a power of two.
        width: the channels at half of that resolution.
        noise: the length of a vector of noise.
    """
    inputs = keras.Input((noise,))
    x = keras.layers.Reshape((1, 1, noise))(inputs)
    for filters in reversed(channels(size, width)):
        x = keras_mp.layers.Conv2DTranspose(filters, use_bias=False, **_HALVES)(x)
        x = _normalized(x)
    x = keras_mp.layers.Conv2DTranspose(3, activation="tanh", **_HALVES)(x)
    return keras.Model(inputs, x, name="generator")


def discriminator(size: int, width: int, outputs: int = 1) -> keras.Model:
    """From images to logits; every convolution halves the resolution.

    Images of 128 pixels take the six convolutions of the paper, before its two fully
    connected layers.

    Args:
        size: of the images, a power of two.
        width: the channels at half of that resolution.
        outputs: the number of the logits.
    """
    images = keras.Input((size, size, 3))
    first, *more = channels(size, width)
    x = keras_mp.layers.Conv2D(first, **_HALVES)(images)
    x = keras.layers.LeakyReLU(0.2)(x)
    for filters in more:
        x = _normalized(keras_mp.layers.Conv2D(filters, use_bias=False, **_HALVES)(x))
    x = keras.layers.Flatten()(x)
    x = _normalized(keras_mp.layers.Dense(8 * width, use_bias=False)(x))
    logits = keras_mp.layers.Dense(outputs)(x)
    return keras.Model(images, logits, name="discriminator")


def _normalized(x: Any) -> Any:
    """As Radford et al.: but for the generator's output, the discriminator's input."""
    x = keras_mp.layers.BatchNormalization(momentum=0.9)(x)
    return keras.layers.LeakyReLU(0.2)(x)
