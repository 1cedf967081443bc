"""An autoencoder of images."""

import keras

import keras_mp


def autoencoder(size: int, width: int) -> keras.Model:
    """Three convolutions that halve an image, and three that double it again.

    Args:
        size: of the square images, divisible by 8.
        width: the channels of the first convolution; the next ones have more.
    """
    options = {"kernel_size": 4, "strides": 2, "padding": "same"}
    images = x = keras.Input((size, size, 3))
    for filters in (width, 2 * width, 4 * width):
        x = keras_mp.layers.Conv2D(filters, activation="relu", **options)(x)
    for filters in (2 * width, width):
        x = keras_mp.layers.Conv2DTranspose(filters, activation="relu", **options)(x)
    return keras.Model(images, keras_mp.layers.Conv2DTranspose(3, **options)(x))
