"""Images of CIFAR-10 as batches for a classifier."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

Examples = tuple[np.ndarray, np.ndarray]


def training_batches(
    train: Examples, part: Sequence[int], batch: int, seed: int
) -> tf.data.Dataset:
    """Returns endless batches of the images from one index to another.

    Args:
        train: images, uint8, and labels.
        part: the first index, and that after the last one.
        batch: the size of a batch.
        seed: of the order.
    """
    images, labels = train
    first, last = part
    if not 0 <= first < last <= len(images):
        raise ValueError(
            "--images must be two indices of training images, as in [0, 1000]. "
            f"Received: {list(part)}, of {len(images)} images. Choose smaller ones."
        )
    examples = tf.data.Dataset.from_tensor_slices(
        (images[first:last], labels[first:last])
    )
    shuffled = examples.shuffle(last - first, seed).repeat()
    return shuffled.batch(batch).map(_scaled).prefetch(1)


def held_out(test: Examples, count: int, batch: int) -> tf.data.Dataset:
    """Returns the first images, in batches."""
    images, labels = test
    examples = tf.data.Dataset.from_tensor_slices((images[:count], labels[:count]))
    return examples.batch(batch).map(_scaled).cache()


def _scaled(images: Any, labels: Any) -> tuple[Any, Any]:
    """Returns the images with numbers from -1 to 1."""
    return tf.cast(images, tf.float32) / 127.5 - 1, labels
