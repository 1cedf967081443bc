"""Boxes of the object detection example: matching, losses and what is counted."""

import math

import numpy as np
import pytest
import tensorflow as tf

# --- boxes.py, matching.py, loss.py ----------------------------------------


def test_default_boxes_known_by_hand():
    from object_detection.boxes import boxes_of_a_cell, default_boxes

    boxes = default_boxes([2, 1], [0.25, 1.0, 1.0], [[4], []])
    assert boxes.shape == (4 * boxes_of_a_cell([4]) + boxes_of_a_cell([]), 4)
    np.testing.assert_allclose(
        boxes[[0, 1, 2, 3, 4, 8, 16]],
        [
            [0.125, 0.125, 0.375, 0.375],
            [0.0, 0.0, 0.5, 0.5],  # the root of 0.25 * 1
            [0.1875, 0.0, 0.3125, 0.5],  # 4 times as wide as high
            [0.0, 0.1875, 0.5, 0.3125],
            [0.125, 0.625, 0.375, 0.875],  # the cell to the right
            [0.625, 0.125, 0.875, 0.375],  # and the one below
            [0.0, 0.0, 1.0, 1.0],
        ],
    )


def test_default_boxes_of_other_maps():
    from object_detection.boxes import default_boxes

    with pytest.raises(ValueError, match=r"Received: 2 maps .*, 2 scales, 2 lists"):
        default_boxes([2, 1], [0.2, 0.9], [[2], [2]])


def test_overlaps_known_by_hand():
    from object_detection.boxes import overlaps

    unit = [0.0, 0.0, 1.0, 1.0]
    others = [unit, [0.0, 0.5, 1.0, 1.5], [0.5, 0.5, 1.5, 1.5], [2.0, 2.0, 3.0, 3.0]]
    nothing = [[0.5, 0.5, 0.5, 0.5]]
    found = overlaps(tf.constant([unit]), tf.constant(others + nothing))
    np.testing.assert_allclose(found, [[1, 1 / 3, 1 / 7, 0, 0]], rtol=2**-23)


def test_offsets_lead_back_to_the_box():
    from object_detection.boxes import decode, encode

    rng = np.random.default_rng(0)
    boxes, defaults = (
        np.concatenate([corner, corner + rng.uniform(0.1, 0.5, (9, 2))], axis=1)
        for corner in rng.uniform(0, 0.5, (2, 9, 2))
    )
    offsets = encode(tf.constant(boxes), tf.constant(defaults))
    np.testing.assert_allclose(decode(offsets, defaults), boxes, atol=8 * 2**-53)
    shifted = encode(tf.constant([[0.1, 0.0, 1.1, 2.0]]), tf.constant([[0.0, 0, 1, 1]]))
    expected = [[1.0, 5.0, 0.0, math.log(2) / 0.2]]
    np.testing.assert_allclose(shifted, expected, rtol=2**-20, atol=2**-20)


def test_matches_known_by_hand():
    from object_detection.matching import match

    defaults = tf.constant(
        [
            [0.0, 0.0, 0.5, 0.5],  # the first object
            [0.0, 0.125, 0.5, 0.625],  # overlaps it by 3/5
            [0.0, 0.25, 0.5, 0.75],  # by 1/3
            [0.5, 0.0, 1.0, 0.5],  # overlaps the second object most, but by 1/4
            [0.5, 0.5, 1.0, 1.0],  # nothing
        ]
    )
    boxes = tf.constant([[0.0, 0.0, 0.5, 0.5], [0.5, 0.0, 0.75, 0.25]])
    found = match(boxes, tf.constant([3, 1]), defaults).numpy()
    assert found[:, 0].tolist() == [3, 3, 0, 1, 0]
    assert not found[[0, 2, 4], 1:].any()
    np.testing.assert_allclose(found[1, 1:], [0, -2.5, 0, 0], atol=2**-20)


def test_an_image_without_objects_matches_nothing():
    from object_detection.matching import match

    defaults = tf.constant([[0.0, 0.0, 0.5, 0.5]])
    found = match(tf.zeros([0, 4]), tf.zeros([0], tf.int32), defaults)
    assert not found.numpy().any()


def multibox(labels, offsets, logits, negatives=3):
    """Returns the loss in FP64, a default box after the other."""
    total, matches = 0.0, np.count_nonzero(labels)
    for image in range(len(labels)):
        row = logits[image] - logits[image].max(axis=-1, keepdims=True)
        probabilities = np.exp(row) / np.exp(row).sum(axis=-1, keepdims=True)
        entropy = -np.log(probabilities)[range(len(row)), labels[image]]
        matched = labels[image] > 0
        hardest = sorted(entropy[~matched], reverse=True)[: negatives * matched.sum()]
        size = np.abs(offsets[image][matched])
        distance = np.where(size < 1, size**2 / 2, size - 0.5).sum()
        total += entropy[matched].sum() + sum(hardest) + distance
    return total / max(matches, 1)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize(
    "matched", [[2, 1], [0, 3], [0, 0], [8, 8]], ids=lambda m: f"{m[0]}+{m[1]} matched"
)
def test_loss(matched, dtype):
    from object_detection.loss import MultiboxLoss

    rng = np.random.default_rng(1)
    labels = np.zeros((2, 8), int)
    for row, number in zip(labels, matched, strict=True):
        row[:number] = 1 + np.arange(number) % 3
    y_true = np.concatenate([labels[..., None], np.zeros((2, 8, 4))], axis=2)
    y_pred = rng.normal(0, 2, (2, 8, 4 + 4)).astype(dtype)
    loss = MultiboxLoss()(tf.constant(y_true, "float32"), tf.constant(y_pred))
    assert loss.dtype == "float32"
    expected = multibox(labels, *np.split(y_pred.astype("float64"), [4], axis=2))
    # The inputs are the same; a sum of 2 * 8 numbers rounds less than 40 times.
    np.testing.assert_allclose(loss, expected, rtol=40 * 2**-24)


def test_only_the_hardest_of_equal_negatives_count():
    from object_detection.loss import MultiboxLoss

    y_true = np.zeros((1, 8, 5), "float32")
    y_true[0, 0, 0] = 1
    loss = MultiboxLoss()(tf.constant(y_true), tf.zeros([1, 8, 4 + 2], tf.float16))
    np.testing.assert_allclose(loss, 4 * math.log(2), rtol=2**-22)


def test_the_config_of_the_loss():
    from object_detection.loss import MultiboxLoss

    config = MultiboxLoss(negatives=5).get_config()
    assert MultiboxLoss.from_config(config).negatives == 5


# --- evaluation.py ---------------------------------------------------------


def test_detections_are_suppressed_class_by_class():
    from object_detection.evaluation import suppress

    defaults = tf.constant(
        [[0.0, 0.0, 0.5, 0.5], [0.0, 0.05, 0.5, 0.55], [0.5, 0.5, 1.0, 1.0]]
    )
    # Two cats on one another, the second one also a dog, and background.
    logits = tf.constant([[0.0, 3.0, -9.0], [0.0, 2.0, 2.0], [9.0, -9.0, -9.0]])
    outputs = tf.concat([tf.zeros([3, 4]), logits], axis=1)[None]
    boxes, probabilities, classes, number = suppress(outputs, defaults)
    assert number.numpy() == [2]
    assert classes[0, :2].numpy().tolist() == [0, 1]
    np.testing.assert_allclose(boxes[0, 0], defaults[0], atol=2**-20)
    expected = [np.exp(3) / (np.exp(3) + 1), np.exp(2) / (2 * np.exp(2) + 1)]
    np.testing.assert_allclose(probabilities[0, :2], expected, rtol=1e-3)


LEFT, RIGHT = [0.0, 0.0, 1.0, 0.5], [0.0, 0.5, 1.0, 1.0]
A_BIT_LEFT = [0.0, 0.0, 1.0, 0.4]  # overlaps LEFT by 0.8


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        pytest.param([(A_BIT_LEFT, 1, 0.9), (RIGHT, 2, 0.8)], [1.0, 1.0], id="all"),
        pytest.param([(RIGHT, 2, 0.8)], [0.0, 1.0], id="one missed"),
        # At every recall the precision is one half.
        pytest.param([(RIGHT, 1, 0.9), (LEFT, 1, 0.8)], [0.5, 0.0], id="one too many"),
        pytest.param([(LEFT, 2, 0.9), (RIGHT, 1, 0.9)], [0.0, 0.0], id="class"),
        pytest.param([(LEFT, 1, 0.5), (LEFT, 1, 0.4)], [1.0, 0.0], id="twice"),
        pytest.param([], [0.0, 0.0], id="nothing"),
    ],
)
def test_average_precision_known_by_hand(found, expected, capfd):
    from object_detection.data import Image
    from object_detection.evaluation import average_precisions

    image = Image(b"", np.array([LEFT, RIGHT]), np.array([1, 2]), np.zeros(2, bool))
    boxes = np.reshape(np.array([box for box, _, _ in found]), (-1, 4))
    labels, scores = (np.array([row[i] for row in found]) for i in (1, 2))
    result = average_precisions([image], [(boxes, labels, scores)], ["cat", "dog"])
    np.testing.assert_allclose(list(result.values()), expected, atol=1e-12)
    assert list(result) == ["cat", "dog"]
    assert not capfd.readouterr().out


def test_difficult_objects_do_not_count():
    from object_detection.data import Image
    from object_detection.evaluation import average_precisions

    boxes = np.array([LEFT, RIGHT])
    image = Image(b"", boxes, np.array([1, 1]), np.array([False, True]))
    for found in (boxes, boxes[:1]):
        row = found, np.ones(len(found), int), np.linspace(0.9, 0.8, len(found))
        assert average_precisions([image], [row], ["cat"])["cat"] == pytest.approx(1)
