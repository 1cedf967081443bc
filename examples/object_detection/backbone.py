"""VGG-16 without its dense layers, the backbone of both detectors."""

from collections.abc import Callable
from typing import Any

import keras
from keras import layers
from object_detection.batches import HALF_RANGE

# Filters and number of the convolutions in the five blocks.
_BLOCKS = [(64, 2), (128, 2), (256, 3), (512, 3), (512, 3)]


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
