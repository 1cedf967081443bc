"""The losses of both detectors."""

import keras
import tensorflow as tf
from object_detection.matching import BACKGROUND, match


class MultiboxLoss(keras.losses.Loss):
    """Cross entropy of the classes and smooth L1 distance of the offsets, in FP32.

    Both are summed over the matched default boxes, the cross entropy also over three
    times as many others of the same image, those with the largest; and divided by the
    number of matched default boxes in the batch.

    Args:
        negatives: how many default boxes without an object count for one with.

    Reference: SSD, section 2.2.
    """

    def __init__(self, negatives: int = 3, name: str = "multibox_loss") -> None:
        super().__init__(name=name, reduction="sum", dtype="float32")
        self.negatives = negatives

    def call(self, y_true: tf.Tensor, y_pred: tf.Tensor) -> tf.Tensor:
        """Returns the shares [batch] of the images in the loss of the batch.

        Args:
            y_true: [batch, default boxes, 5]: what `match` returns.
            y_pred: [batch, default boxes, 4 + classes]: offsets and logits.
        """
        labels = tf.cast(y_true[..., 0], tf.int32)
        offsets, logits = tf.split(
            tf.cast(y_pred, tf.float32), [4, y_pred.shape[-1] - 4], axis=-1
        )
        entropy = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
        matched = labels != BACKGROUND
        counted = matched | self._hard(entropy, matched)
        distance = _smooth_l1(y_true[..., 1:] - offsets)
        of_images = tf.reduce_sum(
            tf.where(counted, entropy, 0.0) + tf.where(matched, distance, 0.0), axis=1
        )
        matches = tf.reduce_sum(tf.cast(matched, tf.float32))
        return of_images / tf.maximum(matches, 1.0)

    def _hard(self, entropy: tf.Tensor, matched: tf.Tensor) -> tf.Tensor:
        """Returns which default boxes without an object count, [batch, boxes]."""
        number = self.negatives * tf.reduce_sum(tf.cast(matched, tf.int32), axis=1)
        largest_first = tf.argsort(
            tf.where(matched, -1.0, entropy), direction="DESCENDING", stable=True
        )
        rank = tf.argsort(largest_first)
        return ~matched & (rank < number[:, None])

    def get_config(self) -> dict[str, object]:
        return {"negatives": self.negatives, "name": self.name}


class ProposalLoss(MultiboxLoss):
    """The same for boxes that the network proposes, and that are matched here.

    Reference: Fast R-CNN, section 2.3, with the hardest negatives of SSD.
    """

    def call(self, y_true: tf.Tensor, y_pred: tf.Tensor) -> tf.Tensor:
        """Returns the shares [batch] of the images in the loss of the batch.

        Args:
            y_true: [batch, objects, 5]: labels and boxes, zeros behind the last one.
            y_pred: [batch, proposals, 4 + 4 + 1 + classes]: boxes, offsets, logits.
        """
        boxes, outputs = tf.split(y_pred, [4, y_pred.shape[-1] - 4], axis=-1)
        found = tf.map_fn(
            lambda row: _matched(*row),
            (y_true, tf.stop_gradient(boxes)),
            fn_output_signature=tf.float32,
        )
        return super().call(found, outputs)


def _matched(objects: tf.Tensor, boxes: tf.Tensor) -> tf.Tensor:
    objects = tf.boolean_mask(objects, objects[:, 0] != BACKGROUND)
    return match(objects[:, 1:], objects[:, 0], boxes)


def _smooth_l1(error: tf.Tensor) -> tf.Tensor:
    """Returns the sum over the offsets of x^2 / 2, or |x| - 1/2 beyond one."""
    size = tf.abs(error)
    return tf.reduce_sum(tf.where(size < 1.0, error**2 / 2, size - 0.5), axis=-1)
