"""Images for a GAN: those of CIFAR-10, or a folder of pictures of any size."""

from pathlib import Path

import keras
import numpy as np
import tensorflow as tf


def batches_of_images(images: np.ndarray, batch: int, seed: int) -> tf.data.Dataset:
    """Returns endless batches of images, from -1 to 1."""
    shuffled = tf.data.Dataset.from_tensor_slices(images).shuffle(len(images), seed)
    return _batches(shuffled, batch)


def batches_of_folder(folder: str, size: int, batch: int, seed: int) -> tf.data.Dataset:
    """Returns endless batches of the pictures in a folder, cropped to squares."""
    if not Path(folder).is_dir() or not folder:
        raise ValueError(
            "--data must name a folder of pictures for this preset. Received: "
            f"{folder!r}. Name one, such as that of the images of CelebA."
        )
    pictures = keras.utils.image_dataset_from_directory(
        folder,
        labels=None,
        image_size=(size, size),
        crop_to_aspect_ratio=True,
        batch_size=None,
        seed=seed,
        verbose=False,
    )
    return _batches(pictures, batch)


def _batches(images: tf.data.Dataset, batch: int) -> tf.data.Dataset:
    batches = images.repeat().batch(batch, drop_remainder=True)
    return batches.map(scaled).prefetch(1)


def scaled(images: tf.Tensor) -> tf.Tensor:
    """Returns images of 0 to 255 with numbers from -1 to 1."""
    return tf.cast(images, tf.float32) / 127.5 - 1
