"""VGG-16 without its dense layers, the backbone of both detectors."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import keras
from image_classification.networks.blocks import conv_bn_relu, conv_relu
from keras import layers
from object_detection.batches import HALF_RANGE

# Filters and number of the convolutions in the five blocks.
_BLOCKS = [(64, 2), (128, 2), (256, 3), (512, 3), (512, 3)]
# What pretrain.py calls the weights that it writes.
WEIGHTS = "model.weights.h5"


def vgg_16(images: Any, conv: Callable[..., Any]) -> tuple[Any, Any]:
    """Returns the outputs of blocks 4 and 5, at an 8th and a 16th of the size.

    Args:
        images: [batch, height, width, 3].
        conv: called with a tensor, filters, kernel size and name.

    Reference: Simonyan and Zisserman, 2014, configuration D.
    """
    outputs, x = [], images
    for block, (filters, number) in enumerate(_BLOCKS, start=1):
        if block > 1:
            pool = layers.MaxPooling2D(2, 2, "same", name=f"block{block - 1}_pool")
            x = pool(x)
        for i in range(1, number + 1):
            x = conv(x, filters, 3, name=f"block{block}_conv{i}")
        outputs.append(x)
    return outputs[3], outputs[4]


def load_imagenet(model: keras.Model) -> None:
    """Downloads VGG-16 trained on ImageNet, and has its convolutions be the backbone.

    Those weights are for pixels blue, green and red, less the same mean, not divided.
    """
    if not model.get_layer("block1_conv1").use_bias:
        raise ValueError(
            "VGG-16 of ImageNet has no batch normalization. Received: a network with "
            "it. Give --no-batch-normalization or --no-pretrained."
        )
    for layer in keras.applications.VGG16(include_top=False).layers:
        weights = layer.get_weights()
        if layer.name == "block1_conv1":
            weights[0] = weights[0][:, :, ::-1] * HALF_RANGE
        if weights:
            model.get_layer(layer.name).set_weights(weights)


def convolution(width: float, batch_normalization: bool) -> Callable[..., Any]:
    """Returns a convolution with ReLU, for `vgg_16` and what follows it.

    Args:
        width: what the number of filters is multiplied with.
        batch_normalization: whether it is between the two.
    """
    return partial(conv_bn_relu if batch_normalization else conv_relu, width=width)


def backbone(width: float, batch_normalization: bool) -> keras.Model:
    """Returns VGG-16 without its dense layers, by itself, for images of any size."""
    images = keras.Input((None, None, 3))
    _, x = vgg_16(images, convolution(width, batch_normalization))
    return keras.Model(images, x)


def load_backbone(
    model: keras.Model, start: str, width: float, batch_normalization: bool
) -> None:
    """Has a detector begin with the weights that pretrain.py wrote.

    Args:
        model: the detector.
        start: the file of the weights.
        width: that of both.
        batch_normalization: likewise.
    """
    path = Path(start)
    if not path.is_file():
        raise ValueError(
            "--start must name the weights of a backbone. Received: "
            f"{start}, which does not exist. Make them with pretrain.py."
        )
    trained = backbone(width, batch_normalization)
    trained.load_weights(path)
    for layer in trained.layers:
        if layer.weights:
            model.get_layer(layer.name).set_weights(layer.get_weights())
