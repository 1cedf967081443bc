"""Batches of images, cropped and flipped together with their boxes, through tf.data."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from object_detection.data import Image

# The mean of the pixels of ImageNet, and half of their range.
MEAN, HALF_RANGE = [123.68, 116.779, 103.939], 127.5
# The area and the shape, width by height, of what is cropped of an image, and how much
# of one of its objects is in there.
_AREA, _SHAPE, _COVERED = (0.3, 1.0), (0.5, 2.0), 0.5

Target = Callable[[tf.Tensor, tf.Tensor], Any]
Row = tuple[tf.Tensor, tf.Tensor, tf.Tensor]


def training_batches(
    images: Sequence[Image], side: int, target: Target, batch: int, seed: int
) -> tf.data.Dataset:
    """Returns endless shuffled batches; the same seed gives the same ones.

    Every second image is cropped, every second one flipped, by chance.

    Args:
        images: what `load` returned.
        side: height and width of the images in a batch, pixels.
        target: from boxes [objects, 4] and labels [objects] of an image to what a
            network is to find.
        batch: images in a batch.
        seed: integer.

    Returns:
        `tf.data.Dataset` of FP32 images [batch, side, side, 3] around zero, and of
        what `target` returns.
    """

    def example(number: tf.Tensor, row: Row) -> tuple[tf.Tensor, Any]:
        seeds = tf.random.experimental.stateless_split([seed, number], 4)
        image, boxes, labels = row
        image = tf.io.decode_jpeg(image, channels=3)
        if _by_chance(seeds[0]):
            image, boxes, labels = crop(image, boxes, labels, seeds[1])
        if _by_chance(seeds[2]):
            image, boxes = flip(image, boxes)
        return _resized(image, side), target(boxes, labels)

    rows = _rows(images).shuffle(len(images), seed=seed).repeat()
    numbered = tf.data.Dataset.zip(tf.data.Dataset.counter(), rows)
    examples = numbered.map(example, tf.data.AUTOTUNE)
    return examples.batch(batch, drop_remainder=True).prefetch(2)


def held_out_batches(
    images: Sequence[Image], side: int, target: Target, batch: int
) -> tf.data.Dataset:
    """Returns the images as they are, in their own order."""

    def example(*row: tf.Tensor) -> tuple[tf.Tensor, Any]:
        jpeg, boxes, labels = row
        image = tf.io.decode_jpeg(jpeg, channels=3)
        return _resized(image, side), target(boxes, labels)

    return _rows(images).map(example, tf.data.AUTOTUNE).batch(batch).prefetch(2)


def crop(image: tf.Tensor, boxes: tf.Tensor, labels: tf.Tensor, seed: tf.Tensor) -> Row:
    """Returns a random part of an image, and the objects whose centre is in it."""
    begin, size, window = tf.image.stateless_sample_distorted_bounding_box(
        tf.shape(image),
        tf.clip_by_value(boxes, 0.0, 1.0)[None],
        seed,
        min_object_covered=_COVERED,
        aspect_ratio_range=_SHAPE,
        area_range=_AREA,
        use_image_if_no_bounding_boxes=True,
    )
    start, end = window[0, 0, :2], window[0, 0, 2:]
    corners = (tf.reshape(boxes, [-1, 2, 2]) - start) / (end - start)
    centres = tf.reduce_mean(corners, axis=1)
    kept = tf.reduce_all((centres > 0.0) & (centres < 1.0), axis=1)
    boxes = tf.clip_by_value(tf.reshape(corners, [-1, 4]), 0.0, 1.0)[kept]
    return tf.slice(image, begin, size), boxes, labels[kept]


def flip(image: tf.Tensor, boxes: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns an image with left and right exchanged."""
    top, left, bottom, right = tf.unstack(boxes, axis=1)
    boxes = tf.stack([top, 1.0 - right, bottom, 1.0 - left], axis=1)
    return tf.reverse(image, axis=[1]), boxes


def _rows(images: Sequence[Image]) -> tf.data.Dataset:
    """Returns a dataset of (JPEG, boxes, labels)."""
    lengths = [len(image.labels) for image in images]

    def ragged(name: str) -> tf.RaggedTensor:
        values = np.concatenate([getattr(image, name) for image in images])
        return tf.RaggedTensor.from_row_lengths(values, lengths)

    rows = [image.jpeg for image in images], ragged("boxes"), ragged("labels")
    # A slice of a ragged tensor becomes a plain tensor when it passes through `map`.
    return tf.data.Dataset.from_tensor_slices(rows).map(lambda *row: row)


def _resized(image: tf.Tensor, side: int) -> tf.Tensor:
    """Returns the image as a square, its pixels around zero."""
    return normalized(tf.image.resize(image, [side, side], antialias=True))


def normalized(pixels: tf.Tensor) -> tf.Tensor:
    """Returns pixels, red, green and blue from 0 to 255, as numbers around zero."""
    return (pixels - MEAN) / HALF_RANGE


def _by_chance(seed: tf.Tensor) -> tf.Tensor:
    return tf.random.stateless_uniform([], seed) < 0.5
