"""The two layers between the stages of Faster R-CNN, FP32 under every dtype policy."""

from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf
from object_detection.boxes import anchors, decode

# Of two proposals that overlap by more than that, the less probable is dropped.
_OVERLAP = 0.7
_WHOLE_IMAGE = [0.0, 0.0, 1.0, 1.0]


@keras.saving.register_keras_serializable(package="object_detection")
class Proposals(keras.layers.Layer):
    """Returns the boxes that most probably hold an object, [batch, proposals, 4].

    Where non-maximum suppression leaves fewer, the others are the whole image. No
    gradient flows through them.

    Args:
        cells, sizes, ratios: as for `anchors`.
        proposals: how many boxes are returned for each image.

    Reference: Faster R-CNN, section 3.3, "approximate joint training".
    """

    def __init__(
        self,
        cells: int,
        sizes: Sequence[float],
        ratios: Sequence[float],
        proposals: int,
        **kwargs: Any,
    ) -> None:
        super().__init__(autocast=False, **kwargs)
        self.cells, self.sizes, self.ratios = cells, sizes, ratios
        self.proposals = proposals

    def call(self, found: tf.Tensor) -> tf.Tensor:
        """Returns the boxes of offsets and logits [batch, anchors, 4 + 2]."""
        found = tf.cast(tf.stop_gradient(found), tf.float32)
        boxes = decode(found[..., :4], anchors(self.cells, self.sizes, self.ratios))
        boxes = tf.clip_by_value(boxes, 0.0, 1.0)
        kept, _, _, number = tf.image.combined_non_max_suppression(
            boxes[:, :, None],
            tf.nn.softmax(found[..., 4:])[..., 1:],
            max_output_size_per_class=self.proposals,
            max_total_size=self.proposals,
            iou_threshold=_OVERLAP,
        )
        there = tf.range(self.proposals) < number[:, None]
        return tf.where(there[..., None], kept, tf.constant(_WHOLE_IMAGE))

    def get_config(self) -> dict[str, Any]:
        own = ("cells", "sizes", "ratios", "proposals")
        return super().get_config() | {name: getattr(self, name) for name in own}


@keras.saving.register_keras_serializable(package="object_detection")
class RoiPooling(keras.layers.Layer):
    """Returns features of regions, all of one size: [batch, regions, values].

    A region is resized to twice that size by bilinear interpolation, and the largest
    of every 2 x 2 values is taken, in the place of the largest in bins of whole cells.

    Args:
        size: height and width of the result.

    Reference: Fast R-CNN (Girshick, 2015), section 2.1.
    """

    def __init__(self, size: int, **kwargs: Any) -> None:
        super().__init__(autocast=False, **kwargs)
        self.size = size

    def call(self, inputs: list[tf.Tensor]) -> tf.Tensor:
        """Takes features [batch, height, width, channels] and boxes of regions."""
        features, regions = inputs
        # The gradients of all regions add up in this dtype.
        features = tf.cast(features, tf.float32)
        number, channels = regions.shape[1], features.shape[-1]
        images = tf.repeat(tf.range(tf.shape(features)[0]), number)
        boxes = tf.reshape(self._sampled(features.shape, regions), [-1, 4])
        crops = tf.image.crop_and_resize(features, boxes, images, [2 * self.size] * 2)
        pooled = tf.nn.max_pool2d(crops, 2, 2, "VALID")
        return tf.reshape(pooled, [-1, number, self.size**2 * channels])

    def get_config(self) -> dict[str, Any]:
        return super().get_config() | {"size": self.size}

    def _sampled(self, shape: tf.TensorShape, regions: tf.Tensor) -> tf.Tensor:
        """Returns the first and last samples, the centres of equal parts of a region.

        0 and 1 are the centres of the outermost cells.
        """
        cells = tf.constant([*shape[1:3]], tf.float32)
        start, end = regions[..., :2], regions[..., 2:]
        inwards = (end - start) / (4 * self.size)
        ends = [start + inwards, end - inwards]
        centres = [(at * cells - 0.5) / (cells - 1) for at in ends]
        return tf.clip_by_value(tf.concat(centres, axis=-1), 0.0, 1.0)
