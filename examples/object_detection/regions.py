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
        height, width, channels = features.shape[1:]
        y, x = tf.split(self._samples(regions), 2, axis=-1)
        # As two products: the gradient of tf.image.crop_and_resize loses summands where
        # threads add to the same cell.
        rows = tf.einsum("bnph,bhwc->bnpwc", _weights(y[..., 0], height), features)
        crops = tf.matmul(_weights(x[..., 0], width)[:, :, None], rows)
        crops = tf.reshape(crops, [-1, 2 * self.size, 2 * self.size, channels])
        pooled = tf.nn.max_pool2d(crops, 2, 2, "VALID")
        return tf.reshape(pooled, [-1, regions.shape[1], self.size**2 * channels])

    def get_config(self) -> dict[str, Any]:
        return super().get_config() | {"size": self.size}

    def _samples(self, regions: tf.Tensor) -> tf.Tensor:
        """Returns the centres of equal parts of regions: [..., samples, y and x]."""
        start, end = regions[..., None, :2], regions[..., None, 2:]
        part = (tf.range(2.0 * self.size) + 0.5) / (2 * self.size)
        return start + part[:, None] * (end - start)


def _weights(at: tf.Tensor, cells: int) -> tf.Tensor:
    """Returns how much each cell counts in samples of a map, [..., samples, cells].

    Args:
        at: where the samples are, as shares of the map.
        cells: how many the map has. Beyond the centre of the outermost it alone counts.
    """
    cell = tf.clip_by_value(at * cells - 0.5, 0.0, cells - 1.0)
    return tf.maximum(0.0, 1.0 - tf.abs(cell[..., None] - tf.range(float(cells))))
