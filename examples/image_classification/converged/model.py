"""ResNet-9, which learns CIFAR-10 in a few epochs."""

from typing import Any

import keras
from image_classification.model import Classifier
from image_classification.networks.blocks import bn_relu, classifier, conv, conv_bn_relu
from keras import ops

from keras_mp import layers

LABEL_SMOOTHING = 0.1
# Of the logits: larger ones would be sure of a class too early.
SCALE = 0.125


class SmoothedClassifier(Classifier):
    """A `Classifier` of which every class is a little likely."""

    def cross_entropy(self, labels: Any, logits: Any) -> Any:
        """As in `Classifier`, with smoothed labels."""
        entropy = keras.losses.categorical_crossentropy(
            ops.one_hot(labels, logits.shape[-1]),
            logits,
            from_logits=True,
            label_smoothing=LABEL_SMOOTHING,
        )
        return ops.mean(entropy)


def resnet9(classes: int, width: float) -> SmoothedClassifier:
    """Returns the network of David Page's "How to train your ResNet".

    Of its bag of tricks it has pooling before batch normalization, scaled logits and
    smoothed labels. The logits are scaled in FP32. Batch normalization is not frozen.

    Args:
        classes: Integer.
        width: Float. What its channels, 64 to 512, are multiplied by.
    """
    images = keras.Input((32, 32, 3), dtype="uint8", name="images")
    x = keras.layers.Rescaling(1 / 127.5, offset=-1, name="rescaling")(images)
    x = conv_bn_relu(x, 64, 3, width=width, name="prepare")
    for channels, is_residual in ((128, True), (256, False), (512, True)):
        name = f"conv{channels}"
        x = conv(x, channels, 3, width=width, name=name)
        x = keras.layers.MaxPooling2D(2, name=f"{name}_pool")(x)
        x = bn_relu(x, name=name)
        if is_residual:
            y = conv_bn_relu(x, channels, 3, width=width, name=f"{name}_first")
            y = conv_bn_relu(y, channels, 3, width=width, name=f"{name}_second")
            x = layers.Add(name=f"{name}_add")([x, y])
    x = keras.layers.GlobalMaxPooling2D(name="pool")(x)
    scaled = keras.layers.Rescaling(SCALE, dtype="float32", name="scaled_logits")
    logits = scaled(classifier(x, classes, name="logits"))
    return SmoothedClassifier(images, [logits])
