"""Pre-activation ResNet-50: He et al., 2016, Identity Mappings in Residual Nets."""

from functools import partial
from typing import Any

import keras
from image_classification.networks.blocks import bn_relu, classifier, conv

from keras_mp import layers

# Channels inside of the blocks, four times as many outside, and the number of blocks.
STAGES = ((64, 3), (128, 4), (256, 6), (512, 3))


def resnet50(images: Any, *, classes: int, width: float, small_images: bool) -> Any:
    """Returns the logits of images of 224 pixels.

    In the form for small images the first convolution has size 3 and stride 1.
    """
    size, strides = (3, 1) if small_images else (7, 2)
    x = conv(images, 64, size, strides, width=width, name="conv1")
    x = keras.layers.MaxPooling2D(3, 2, "same", name="pool1")(x)
    for stage, (channels, blocks) in enumerate(STAGES, start=2):
        for block in range(1, 1 + blocks):
            strides = 2 if stage > 2 and block == 1 else 1
            name = f"conv{stage}_{block}"
            x = bottleneck(
                x, channels, strides, widens=block == 1, width=width, name=name
            )
    x = bn_relu(x, name="final")
    x = layers.GlobalAveragePooling2D(name="pool5")(x)
    return classifier(x, classes, name="logits")


def bottleneck(
    x: Any, channels: int, strides: int, *, widens: bool, width: float, name: str
) -> Any:
    """Adds three convolutions to the shortcut.

    Batch normalization and ReLU stand before each convolution. A block that widens has
    a convolution in its shortcut, which shares those that stand before the first one.
    """
    convolution = partial(conv, width=width)
    before = bn_relu(x, name=f"{name}_before")
    if widens:
        x = convolution(before, 4 * channels, 1, strides, name=f"{name}_shortcut")
    y = convolution(before, channels, 1, name=f"{name}_reduce")
    y = bn_relu(y, name=f"{name}_reduce")
    y = convolution(y, channels, 3, strides, name=f"{name}_3x3")
    y = bn_relu(y, name=f"{name}_3x3")
    y = convolution(y, 4 * channels, 1, name=f"{name}_expand")
    return layers.Add(name=name)([x, y])
