"""Faster R-CNN with the backbone VGG-16."""

import argparse
from collections.abc import Sequence

import keras
import tensorflow as tf
from image_classification.networks.blocks import dense_relu
from keras import layers
from object_detection.backbone import convolution, vgg_16
from object_detection.boxes import anchors
from object_detection.detector import Detector
from object_detection.loss import MultiboxLoss, ProposalLoss
from object_detection.matching import match
from object_detection.regions import Proposals, RoiPooling

import keras_mp

# Of the anchors that count, half have an object.
_NEGATIVES = 1


def faster_rcnn(
    side: int,
    classes: int,
    sizes: Sequence[float],
    ratios: Sequence[float],
    proposals: int,
    width: float = 1.0,
    batch_normalization: bool = False,
) -> keras.Model:
    """Returns Faster R-CNN for images [batch, side, side, 3].

    Its outputs are `anchors` [batch, anchors, 4 + 2], the offsets from each anchor and
    the logits of background and object, in the dtype of the policy of Keras; and
    `proposals` [batch, proposals, 4 + 4 + 1 + classes] in FP32: the proposed box, the
    offsets from it, and the logits of the background and of every class.

    Args:
        side: height and width of the images, pixels.
        classes: number of classes without the background.
        sizes, ratios: of the anchors, as for `anchors`.
        proposals: how many boxes the second stage looks at in an image.
        width: as in `ssd`; it also multiplies the units of fc6 and fc7.
        batch_normalization: as in `ssd`.

    Reference: Faster R-CNN (Ren et al., 2015), section 3.
    """
    conv = convolution(width, batch_normalization)
    images = keras.Input((side, side, 3), name="images")
    _, x = vgg_16(images, conv)
    found = conv(x, 512, 3, name="rpn")
    values = len(sizes) * len(ratios) * (4 + 2)
    found = keras_mp.layers.Conv2D(values, 1, name="rpn_outputs")(found)
    found = layers.Reshape((-1, 6), name="anchors")(found)
    regions = Proposals(x.shape[1], sizes, ratios, proposals, name="regions")(found)
    x = RoiPooling(7, name="roi_pooling")([x, regions])
    for name in ("fc6", "fc7"):
        x = dense_relu(x, 4096, width=width, name=name)
    x = keras_mp.layers.Dense(4 + 1 + classes, name="outputs")(x)
    x = layers.Concatenate(name="proposals", dtype="float32")([regions, x])
    return keras.Model(images, {"anchors": found, "proposals": x}, name="faster_rcnn")


def detector(args: argparse.Namespace, classes: int, objects: int) -> Detector:
    """Returns Faster R-CNN of a preset; `objects` is the most that an image has."""
    boxes = tf.constant(anchors(-(-args.side // 16), args.sizes, args.ratios))

    def target(found: tf.Tensor, labels: tf.Tensor) -> dict[str, tf.Tensor]:
        rows = tf.concat([tf.cast(labels, tf.float32)[:, None], found], axis=1)
        return {
            "anchors": match(found, tf.ones_like(labels), boxes),
            "proposals": tf.pad(rows, [[0, objects - tf.shape(rows)[0]], [0, 0]]),
        }

    return Detector(
        faster_rcnn(
            args.side,
            classes,
            args.sizes,
            args.ratios,
            args.proposals,
            args.width,
            args.batch_normalization,
        ),
        target,
        {"anchors": MultiboxLoss(_NEGATIVES), "proposals": ProposalLoss()},
        lambda outputs: (outputs["proposals"][..., 4:], outputs["proposals"][..., :4]),
    )
