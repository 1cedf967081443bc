"""Multibox SSD with the backbone VGG-16."""

import argparse
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import keras
import tensorflow as tf
from keras import layers
from object_detection.backbone import convolution, vgg_16
from object_detection.boxes import boxes_of_a_cell, default_boxes
from object_detection.detector import Detector
from object_detection.loss import MultiboxLoss
from object_detection.matching import match

import keras_mp

# Filters of the two convolutions behind VGG-16 that lead to the next map.
_EXTRA = [(256, 512), (128, 256), (128, 256), (128, 256)]


def map_sizes(side: int) -> list[int]:
    """Returns the heights of the feature maps for an image that is so high and wide.

    300 gives 38, 19, 10, 5, 3, 1, those of SSD300.
    """
    first = -(-side // 8)
    sizes = [first, -(-first // 2)]
    while sizes[-1] > 2 and len(sizes) < 2 + len(_EXTRA):
        sizes.append(_next_size(sizes[-1]))
    return sizes


def ssd(
    side: int,
    classes: int,
    ratios: Sequence[Sequence[float]],
    width: float = 1.0,
    batch_normalization: bool = False,
) -> keras.Model:
    """Returns SSD for images [batch, side, side, 3].

    Its output [batch, default boxes, 4 + 1 + classes] has the offsets from each default
    box, and the logits of the background and of every class, in the dtype of the policy
    of Keras. The convolutions accumulate in FP32.

    Args:
        side: height and width of the images, pixels.
        classes: number of classes without the background.
        ratios: as for `default_boxes`.
        width: what the number of filters of each layer is multiplied with; it is
            rounded to a multiple of 8.
        batch_normalization: whether it follows every convolution but those of the
            outputs. SSD has none and starts from a trained backbone; from random
            weights it learns much faster with it.

    Reference: SSD, section 3, SSD300; ScratchDet (Zhu et al., 2019), section 3.
    """
    conv = convolution(width, batch_normalization)
    images = keras.Input((side, side, 3), name="images")
    block4, x = vgg_16(images, conv)
    # Normalized to length one and scaled by 20 in SSD: this is the same with scales
    # that begin at the root of the number of filters, 22.6.
    maps = [keras_mp.layers.RMSNormalization(name="block4_normalization")(block4)]
    x = layers.MaxPooling2D(3, 1, "same", name="block5_pool")(x)
    x = conv(x, 1024, 3, name="conv6", dilation_rate=6)
    x = conv(x, 1024, 1, name="conv7")
    maps.append(x)
    steps = zip(_EXTRA, pairwise(map_sizes(side)[1:]), strict=False)
    for i, ((narrow, wide), (before, _)) in enumerate(steps, start=8):
        x = conv(x, narrow, 1, name=f"conv{i}_1")
        x = conv(x, wide, 3, name=f"conv{i}_2", **_way_to_next(before))
        maps.append(x)
    heads = zip(maps, ratios, strict=True)
    found = [_head(x, classes, more, f"head{i}") for i, (x, more) in enumerate(heads)]
    outputs = layers.Concatenate(axis=1, name="default_boxes")(found)
    return keras.Model(images, outputs, name="ssd")


def detector(args: argparse.Namespace, classes: int, objects: int) -> Detector:
    """Returns SSD of a preset."""
    del objects
    boxes = tf.constant(default_boxes(map_sizes(args.side), args.scales, args.ratios))
    return Detector(
        ssd(args.side, classes, args.ratios, args.width, args.batch_normalization),
        lambda found, labels: match(found, labels, boxes),
        MultiboxLoss(),
        lambda outputs: (tf.cast(outputs, tf.float32), boxes),
    )


def _next_size(size: int) -> int:
    return size - 2 if size <= 5 else -(-size // 2)


def _way_to_next(size: int) -> dict[str, Any]:
    """Returns how a 3x3 convolution makes the next map of one of this size."""
    return {"padding": "valid"} if size <= 5 else {"strides": 2}


def _head(x: Any, classes: int, ratios: Sequence[float], name: str) -> Any:
    """Returns offsets and logits [batch, default boxes, 5 + classes] of a map."""
    values = 4 + 1 + classes
    # The two convolutions of SSD, one for offsets and one for logits, as one.
    conv = keras_mp.layers.Conv2D(
        boxes_of_a_cell(ratios) * values, 3, padding="same", name=name
    )
    return layers.Reshape((-1, values), name=f"{name}_boxes")(conv(x))
