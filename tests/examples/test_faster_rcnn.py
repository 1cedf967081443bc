"""Faster R-CNN of the object detection example: its layers, weights and a run."""

import math

import keras
import numpy as np
import pytest
import tensorflow as tf
from experiments.flags import parse


def test_paper_preset_has_the_weights_of_faster_rcnn():
    """Counted by hand: VGG-16 with fc6 and fc7, 3 x 3 anchors, the 20 classes of VOC.

    The paper's network has 80 x 4096 more, for offsets of its own for every class.
    """
    from object_detection import train

    args = parse(train.HERE, ["--preset=faster_rcnn_paper"])
    # Only shapes are looked at, so nothing is allocated.
    with keras.StatelessScope(initialize_variables=False):
        model = train.NETWORKS[args.network](args, 20, 1).model
    vgg = 14_714_688
    proposing = (9 * 512 + 1) * 512 + (512 + 1) * 9 * (4 + 2)
    dense = (7 * 7 * 512 + 1) * 4096 + (4096 + 1) * 4096 + (4096 + 1) * (4 + 21)
    weights = sum(math.prod(v.shape) for v in model.trainable_variables)
    assert weights == vgg + proposing + dense == 136_750_479
    shapes = {name: output.shape for name, output in model.output.items()}
    assert shapes == {"anchors": (None, 9 * 38**2, 6), "proposals": (None, 300, 29)}


def test_anchors_known_by_hand():
    from object_detection.boxes import anchors

    boxes = anchors(2, [0.25, 0.5], [1, 4])
    assert boxes.shape == (4 * 4, 4)
    expected = [
        [0.125, 0.125, 0.375, 0.375],
        [0.1875, 0.0, 0.3125, 0.5],  # 4 times as wide as high
        [0.0, 0.0, 0.5, 0.5],
        [0.125, 0.625, 0.375, 0.875],  # the cell to the right
    ]
    np.testing.assert_allclose(boxes[[0, 1, 2, 4]], expected)


def test_proposals_known_by_hand():
    """Of 4 cells: one object there, one cut at the border, and two seen twice."""
    from object_detection.regions import Proposals

    logits = [[0.0, 3.0], [0.0, -1.0], [0.0, -2.0], [0.0, 4.0]]
    # The second box is moved onto the first one, the third to where the fourth is; an
    # offset of 10 is the size of a box. The fourth is moved down by half of its size.
    offsets = [[0.0, 0, 0, 0], [0, -10, 0, 0], [5, 10, 0, 0], [5, 0, 0, 0]]
    found = tf.constant([np.concatenate([offsets, logits], axis=1)], tf.float16)
    layer = Proposals(2, [0.5], [1.0], 3, dtype="float16")
    regions = Proposals.from_config(layer.get_config())(found)
    assert regions.dtype == tf.float32
    expected = [[0.75, 0.5, 1.0, 1.0], [0.0, 0.0, 0.5, 0.5], [0.0, 0.0, 1.0, 1.0]]
    np.testing.assert_allclose(regions[0], expected, atol=2**-20)


def test_pooling_of_a_ramp():
    """Of a ramp, bilinear interpolation is the ramp; the largest sample is the last."""
    from object_detection.regions import RoiPooling

    # The value is the row's centre, in shares of the height.
    rows = np.repeat((np.arange(8) + 0.5) / 8, 8).reshape(1, 8, 8, 1)
    images = tf.constant(np.concatenate([rows, -rows]), "float32")
    regions = tf.constant([[[0.125, 0.25, 0.625, 0.75]], [[0.5, 0.5, 0.75, 0.75]]])
    pooled = RoiPooling(2, dtype="float16")([images, regions])
    assert pooled.shape == (2, 1, 4)
    # Samples at 1/8, 3/8, 5/8 and 7/8 of a region; of -rows the first is the largest.
    first = 0.125 + 0.5 * np.array([3, 3, 7, 7]) / 8
    second = -(0.5 + 0.25 * np.array([1, 1, 5, 5]) / 8)
    np.testing.assert_allclose(pooled[:, 0], [first, second], atol=2**-20)


def test_the_gradients_of_many_regions_add_up():
    """In FP16 a sum of ones ends at 2048."""
    from object_detection.regions import RoiPooling

    images = tf.ones([1, 2, 2, 1], tf.float16)
    regions = tf.constant([[[0.0, 0.0, 1.0, 1.0]] * 4096])
    with tf.GradientTape() as tape:
        tape.watch(images)
        total = tf.reduce_sum(RoiPooling(2, dtype="float16")([images, regions]))
    gradient = tape.gradient(total, images)
    assert gradient.dtype == tf.float16
    # Each of the four results of a region is a mean of pixels.
    found = np.sum(gradient.numpy(), dtype="float64")
    np.testing.assert_allclose(found, 4 * 4096, rtol=2**-11)


@pytest.mark.slow
def test_gradients_of_regions_are_the_same_each_time():
    """Threads that add to the same cells in any order lose what others have added."""
    from object_detection.regions import RoiPooling

    random = np.random.default_rng(0)
    images = tf.constant(random.normal(size=(4, 8, 8, 128)), tf.float32)
    corners = random.uniform(0, 0.5, (4, 256, 2))
    ends = corners + random.uniform(0.1, 0.5, (4, 256, 2))
    regions = tf.constant(np.concatenate([corners, ends], axis=-1), tf.float32)
    layer = RoiPooling(7)

    def gradient():
        with tf.GradientTape() as tape:
            tape.watch(images)
            total = tf.reduce_sum(layer([images, regions]))
        return tape.gradient(total, images).numpy()

    first = gradient()
    for _ in range(5):
        np.testing.assert_array_equal(gradient(), first)


@pytest.mark.xslow
def test_a_run_of_faster_rcnn(flags_for_squares, tmp_path):
    from object_detection.train import main

    preset = ["--preset=faster_rcnn_demo", "--precision=fp32", "--sizes=[0.3, 0.5]"]
    preset += ["--ratios=[1]", "--proposals=4", f"--out={tmp_path / 'out'}"]
    result = main([*preset, *flags_for_squares])
    assert set(result["measures"]) == {"mAP", "AP cat", "AP dog"}
    assert 0 < result["gradients"]["errors"]["8.0"] < 1
