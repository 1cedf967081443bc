"""Smooth random images, and the same with noise: data for a denoiser."""

import keras
import numpy as np

import keras_mp


def smooth_images(count, size=64, seed=0):
    """Waves and discs, as float32 of the shape (count, size, size, 3)."""
    random = np.random.default_rng(seed)
    axis = np.linspace(-1, 1, size)
    y, x = np.meshgrid(axis, axis, indexing="ij")
    images = np.empty((count, size, size, 3), "float32")
    for image in images:
        for channel in range(3):
            a, b, c, d = random.normal(size=4)
            wave = np.sin(3 * (a * x + b * y) + c)
            disc = np.hypot(x - c / 2, y - d / 2) < 0.4
            image[:, :, channel] = (wave + disc) / 2
    return images


def with_noise(images, deviation, seed=1):
    noise = np.random.default_rng(seed).normal(0, deviation, images.shape)
    return (images + noise).astype("float32")


def denoiser():
    """Three convolutions, under the current dtype policy."""
    return keras.Sequential(
        [
            keras.Input((64, 64, 3)),
            keras_mp.layers.Conv2D(16, 3, padding="same", activation="relu"),
            keras_mp.layers.Conv2D(16, 3, padding="same", activation="relu"),
            keras_mp.layers.Conv2D(3, 3, padding="same"),
        ]
    )
