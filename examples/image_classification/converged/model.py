"""ResNet-9, which learns CIFAR-10 in a few epochs."""

import keras
from image_classification.model import Classifier
from image_classification.networks.blocks import classifier, conv_bn_relu

from keras_mp import layers


def resnet9(classes: int, width: float) -> Classifier:
    """Returns the network of David Page's "How to train your ResNet".

    Its logits are FP32, from an FP32 layer. Batch normalization is not frozen, and the
    logits are not scaled.

    Args:
        classes: Integer.
        width: Float. What its channels, 64 to 512, are multiplied by.
    """
    images = keras.Input((32, 32, 3), dtype="uint8", name="images")
    x = keras.layers.Rescaling(1 / 127.5, offset=-1, name="rescaling")(images)
    x = conv_bn_relu(x, 64, 3, width=width, name="prepare")
    for channels, is_residual in ((128, True), (256, False), (512, True)):
        name = f"conv{channels}"
        x = conv_bn_relu(x, channels, 3, width=width, name=name)
        x = keras.layers.MaxPooling2D(2, name=f"{name}_pool")(x)
        if is_residual:
            y = conv_bn_relu(x, channels, 3, width=width, name=f"{name}_first")
            y = conv_bn_relu(y, channels, 3, width=width, name=f"{name}_second")
            x = layers.Add(name=f"{name}_add")([x, y])
    x = keras.layers.GlobalMaxPooling2D(name="pool")(x)
    to_fp32 = keras.layers.Activation("linear", dtype="float32", name="to_fp32")
    return Classifier(images, [to_fp32(classifier(x, classes, name="logits"))])
