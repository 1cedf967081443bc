"""The networks by name, and the classifier made of one of them."""

from typing import Any

import keras
from image_classification.networks.alexnet import alexnet
from image_classification.networks.googlenet import googlenet
from image_classification.networks.inception_v2 import inception_v2
from image_classification.networks.inception_v3 import inception_v3
from image_classification.networks.resnet import resnet50
from image_classification.networks.vgg import vgg_d
from keras import ops

NETWORKS = {
    "alexnet": alexnet,
    "vgg-d": vgg_d,
    "googlenet": googlenet,
    "inception-v2": inception_v2,
    "inception-v3": inception_v3,
    "resnet-50": resnet50,
}
AUXILIARY_WEIGHT = 0.3


class Classifier(keras.Model):
    """Maps images to logits in FP32, the auxiliary ones last.

    The auxiliary heads of GoogLeNet and Inception v3 take part in the training loss
    alone: Szegedy et al., 2015, section 5.
    """

    def compute_loss(
        self,
        x: Any = None,
        y: Any = None,
        y_pred: Any = None,
        sample_weight: Any = None,
        training: bool = True,
    ) -> Any:
        """Returns the mean cross entropy in FP32."""
        logits, *auxiliary = keras.tree.flatten(y_pred)
        loss = self.cross_entropy(y, logits)
        if training:
            for head in auxiliary:
                loss += AUXILIARY_WEIGHT * self.cross_entropy(y, head)
        return loss

    def cross_entropy(self, labels: Any, logits: Any) -> Any:
        """Returns the mean cross entropy of logits [batch, classes]."""
        entropy = keras.losses.sparse_categorical_crossentropy(
            labels, logits, from_logits=True
        )
        return ops.mean(entropy)

    def compute_metrics(
        self, x: Any, y: Any, y_pred: Any, sample_weight: Any = None
    ) -> dict[str, Any]:
        logits = keras.tree.flatten(y_pred)[0]
        return super().compute_metrics(x, y, logits, sample_weight)


def build(
    network: str, *, image_size: int, classes: int, width: float, small_images: bool
) -> Classifier:
    """Returns a network under the current dtype policy.

    Args:
        network: One of `NETWORKS`.
        image_size: Integer. Height and width of the images, whose values are 0 to 255.
        classes: Integer.
        width: Float. What the channels of the paper are multiplied by.
        small_images: Whether the network has its form for images of 32 or 64 pixels.
    """
    images = keras.Input((image_size, image_size, 3), dtype="uint8", name="images")
    x = keras.layers.Rescaling(1 / 127.5, offset=-1, name="rescaling")(images)
    logits = NETWORKS[network](
        x, classes=classes, width=width, small_images=small_images
    )
    to_fp32 = keras.layers.Activation("linear", dtype="float32", name="to_fp32")
    outputs = [to_fp32(x) for x in keras.tree.flatten(logits)]
    return Classifier(images, outputs, name=network)
