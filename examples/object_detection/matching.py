"""Which default box is to find which object."""

import tensorflow as tf
from object_detection.boxes import encode, overlaps

# The class of a default box that matches no object.
BACKGROUND = 0
# A default box matches an object from this overlap on.
_OVERLAP = 0.5


def match(boxes: tf.Tensor, labels: tf.Tensor, defaults: tf.Tensor) -> tf.Tensor:
    """Returns what each default box is to find, FP32 [default boxes, 5].

    A default box matches the object that it overlaps most, if by half or more; and
    every object, the default box that overlaps it most, so that one of any size or
    place is learned.

    Args:
        boxes: FP32 [objects, 4]. There may be none.
        labels: integers [objects], from 1 on.
        defaults: FP32 [default boxes, 4].

    Returns:
        The class, 0 where nothing is matched, and the offsets from the default box to
        the object, zeros there.

    Reference: SSD, section 2.2.
    """
    # With a box without area, which overlaps nothing, there is always a first one.
    boxes = tf.concat([tf.zeros([1, 4]), boxes], axis=0)
    labels = tf.concat([[BACKGROUND], tf.cast(labels, tf.int32)], axis=0)
    found = overlaps(defaults, boxes)
    chosen = tf.argmax(found, axis=1, output_type=tf.int32)
    chosen = tf.where(tf.reduce_max(found, axis=1) >= _OVERLAP, chosen, 0)
    objects = tf.range(1, tf.shape(boxes)[0])
    best = tf.argmax(found, axis=0, output_type=tf.int32)[1:]
    chosen = tf.tensor_scatter_nd_update(chosen, best[:, None], objects)
    classes = tf.gather(labels, chosen)
    matched = (classes != BACKGROUND)[:, None]
    # Where nothing is matched, the offsets are those of a box to itself.
    offsets = encode(tf.where(matched, tf.gather(boxes, chosen), defaults), defaults)
    return tf.concat([tf.cast(classes, tf.float32)[:, None], offsets], axis=1)
