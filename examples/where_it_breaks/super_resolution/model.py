"""The efficient sub-pixel network, which enlarges images."""

from typing import Any

import keras
from keras import ops

import keras_mp


@keras.saving.register_keras_serializable(package="super_resolution")
class PixelShuffle(keras.layers.Layer):
    """Makes squares of r x r pixels of the r^2 channels of each position.

    Args:
        factor: r.
        **kwargs: those of `keras.layers.Layer`.
    """

    def __init__(self, factor: int, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.factor = factor

    def call(self, x: Any) -> Any:
        """Maps [batch, height, width, r^2] to [batch, r height, r width, 1]."""
        r = self.factor
        _, height, width, _ = x.shape
        x = ops.reshape(x, (-1, height, width, r, r))
        x = ops.transpose(x, (0, 1, 3, 2, 4))
        return ops.reshape(x, (-1, r * height, r * width, 1))

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "factor": self.factor}


def espcn(size: int, factor: int) -> keras.Model:
    """Returns the network of Shi et al., 2016, as wide as that of Keras's own example.

    Args:
        size: of the square gray images that it enlarges.
        factor: by which it enlarges both their sides.
    """
    options = {"padding": "same", "kernel_initializer": "orthogonal"}
    images = x = keras.Input((size, size, 1))
    for filters, kernel_size in ((64, 5), (64, 3), (32, 3)):
        x = keras_mp.layers.Conv2D(filters, kernel_size, activation="relu", **options)(
            x
        )
    x = keras_mp.layers.Conv2D(factor**2, 3, **options)(x)
    return keras.Model(images, PixelShuffle(factor)(x))
