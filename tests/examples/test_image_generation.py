"""DCGAN: its networks, its two optimizers, its measure, and all of it at toy size."""

import json
import os
from itertools import pairwise
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf
from experiments.precision import FORMS, PRECISIONS

import keras_mp

EXAMPLE = Path(__file__).parents[2] / "examples" / "image_generation"


@pytest.fixture(autouse=True)
def route(monkeypatch):
    """Has the route of the ops be that of before: pseudo-fp16 chooses another one."""
    monkeypatch.setenv("KERAS_MP_OPS", os.environ.get("KERAS_MP_OPS", "auto"))


def count(model, kind):
    return sum(isinstance(layer, kind) for layer in model.layers)


# --- model.py --------------------------------------------------------------


@pytest.mark.slow
def test_the_networks_of_the_paper():
    """Section 4.6: 7 transposed convolutions; 6 convolutions and 2 dense layers."""
    from image_generation.model import discriminator, generator

    preset = json.loads((EXAMPLE / "presets" / "paper.json").read_text())
    made = generator(preset["size"], preset["width"], preset["noise"])
    judged = discriminator(preset["size"], preset["width"])
    assert made.output_shape == (None, 128, 128, 3)
    assert count(made, keras_mp.layers.Conv2DTranspose) == 7
    assert count(made, keras.layers.LeakyReLU) == 6
    assert count(judged, keras_mp.layers.Conv2D) == 6
    assert count(judged, keras_mp.layers.Dense) == 2
    # Kernels of 5 x 5 between 100, 1024, 1024, 1024, 512, 256, 128 and 3 channels, four
    # numbers for each channel that is normalized, and three biases.
    widths = [100, 1024, 1024, 1024, 512, 256, 128]
    pairs = [*zip(widths, [*widths[1:], 3], strict=True)]
    kernels = 25 * sum(a * b for a, b in pairs)
    assert made.count_params() == kernels + 4 * sum(widths[1:]) + 3
    # The first convolution has biases; 2 x 2 x 1024 numbers are left for 1,024 units.
    widths = [3, 128, 256, 512, 1024, 1024, 1024]
    pairs = [*pairwise(widths)]
    kernels = 25 * sum(a * b for a, b in pairs) + 4096 * 1024 + 1024
    normalized = 4 * sum(widths[2:]) + 4 * 1024
    assert judged.count_params() == kernels + normalized + 128 + 1


# --- gan.py ----------------------------------------------------------------


def small_gan(policy="float16"):
    from image_generation.gan import GAN
    from image_generation.model import discriminator, generator

    keras.config.set_dtype_policy(policy)
    return GAN(generator(8, 2, 4), discriminator(8, 2))


@pytest.mark.slow
def test_two_optimizers_share_a_scale():
    model = small_gan()
    rule = keras_mp.DynamicLossScale(8.0, growth_interval=2)
    first = keras_mp.wrap("adam", loss_scale=rule)
    model.compile(first, keras_mp.wrap("adam", loss_scale=first))
    images = np.random.default_rng(0).uniform(-1, 1, (8, 8, 8, 3)).astype("float32")
    model.fit(images, batch_size=2, verbose=0)
    # Four joint steps: the scale has doubled twice, not four times.
    assert float(first.loss_scale) == 32
    assert float(model.discriminator_optimizer.loss_scale) == 32
    assert int(first.iterations) == int(model.discriminator_optimizer.iterations) == 4


@pytest.mark.slow
def test_an_overflow_of_one_is_seen_by_the_scale_of_both():
    model = small_gan()
    first = keras_mp.wrap("adam", loss_scale=keras_mp.DynamicLossScale(8.0))
    model.compile(first, keras_mp.wrap("adam", loss_scale=first))
    before = [np.array(w) for w in model.discriminator.trainable_variables]
    images = np.full((2, 8, 8, 3), np.inf, "float32")
    model.fit(images, batch_size=2, verbose=0)
    assert float(first.loss_scale) == 4
    for one, other in zip(before, model.discriminator.trainable_variables, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.xslow
def test_each_player_is_trained_by_its_own_loss():
    """Where the other's optimizer stands still, a player's loss falls."""
    images = np.random.default_rng(0).uniform(-1, 1, (16, 8, 8, 3)).astype("float32")
    for rates, name in (
        ((0.01, 0.0), "generator_loss"),
        ((0.0, 0.01), "discriminator_loss"),
    ):
        keras.utils.set_random_seed(0)
        model = small_gan("float32")
        model.compile(*(keras.optimizers.Adam(rate) for rate in rates))
        log = model.fit(images, batch_size=16, epochs=60, verbose=0).history[name]
        assert log[-1] < 0.7 * log[0]


def test_cross_entropy_is_fp32():
    from image_generation.gan import cross_entropy

    logits = tf.constant([[0.0], [0.0]], tf.float16)
    for label in (0, 1):
        loss = cross_entropy(label, logits)
        assert loss.dtype == tf.float32
        assert float(loss) == pytest.approx(np.log(2), rel=2**-22)


# --- judge.py --------------------------------------------------------------


def test_frechet_distance_known_by_hand():
    from image_generation.judge import frechet_distance

    # Two points a feature have the covariance of their distances.
    corners = np.array([[1, 1], [1, -1], [-1, 1], [-1, -1]])
    # Means 0 and (3, 4); covariances 4/3 and 16/3 of the identity: 25 + 2 * 4/3.
    assert frechet_distance(corners, 2 * corners + [3, 4]) == pytest.approx(25 + 8 / 3)
    assert frechet_distance(corners, corners) == pytest.approx(0, abs=1e-12)
    # One feature alone varies: C1 C2 is singular. 4/3 + 4/3 - 0.
    line = corners * [1, 0]
    across = corners * [0, 1]
    assert frechet_distance(line, across) == pytest.approx(8 / 3)


# --- train.py --------------------------------------------------------------


@pytest.fixture
def flags(tmp_path, monkeypatch):
    """Flags of toy size, on random images."""
    from image_classification.data import Images
    from image_generation import train

    random = np.random.default_rng(0)
    images = random.integers(0, 256, (12, 8, 8, 3), "uint8")
    labels = (np.arange(12) % 2).astype("int32")
    examples = tf.data.Dataset.from_tensor_slices((images, labels))
    monkeypatch.setattr(
        train, "load", lambda data: Images(examples, examples, tf.identity, 2)
    )
    tiny = "--size=8 --width=2 --noise=4 --batch=4 --generated=8 --judge-steps=1"
    judge = f"--judge={tmp_path / 'judge.weights.h5'}"
    return [*tiny.split(), judge, "--steps=2", "--eval-every=1", "--verbose=0"]


@pytest.mark.slow
@pytest.mark.xslow_except("mixed")
@pytest.mark.parametrize("precision", sorted(PRECISIONS.keys() - FORMS.keys()))
def test_train(precision, flags, tmp_path):
    from image_generation.train import main

    result = main([*flags, f"--precision={precision}", f"--out={tmp_path / 'out'}"])
    assert list(result["measures"]) == [
        "FID",
        "FID of training images",
        "accuracy of the judge",
    ]
    assert np.isfinite(result["measures"]["FID"])
    # Training and test images are the same here.
    assert result["measures"]["FID of training images"] == pytest.approx(0, abs=1e-4)
    assert len(result["log"]) == 2
    sample = np.load(tmp_path / "out" / "sample.npz")["images"]
    assert (sample.shape, sample.dtype) == ((8, 8, 8, 3), np.uint8)


@pytest.mark.xslow
def test_a_resumed_run_equals_the_uninterrupted_one(flags, tmp_path):
    from image_generation.train import main

    flags = [*flags, "--precision=mixed"]
    whole = main([*flags, f"--out={tmp_path / 'whole'}"])
    main([*flags, "--steps=1", f"--out={tmp_path / 'parts'}"])
    parts = main([*flags, "--resume", f"--out={tmp_path / 'parts'}"])
    assert parts["measures"] == whole["measures"]
    one, other = (
        np.load(tmp_path / name / "sample.npz")["images"] for name in ("whole", "parts")
    )
    np.testing.assert_array_equal(one, other)


@pytest.mark.xslow
def test_the_checkpoints_are_judged(flags, tmp_path, capsys):
    from image_generation import checkpoints
    from image_generation.train import main

    run = tmp_path / "mixed"
    result = main([*flags, "--precision=mixed", f"--out={run}"])
    (first, _), (last, distance) = checkpoints.distances(run)
    assert (first, last) == (1, 2)
    assert distance == result["measures"]["FID"]
    checkpoints.main([str(run)])
    assert f"mixed, epoch 2: FID {distance:.2f}\n" in capsys.readouterr().out


@pytest.mark.slow
def test_faces_have_no_judge(flags, tmp_path, monkeypatch):
    from dataclasses import replace

    from image_generation import train

    found = replace(train.load(""), classes=1)
    monkeypatch.setattr(train, "load", lambda data: found)
    result = train.main([*flags, "--precision=fp32", f"--out={tmp_path / 'out'}"])
    assert result["measures"] == {}


# --- compare.py, figure6.py ------------------------------------------------


def test_grid_keeps_the_order():
    from image_generation.figure6 import grid

    images = (
        np.zeros((64, 2, 3, 3), "uint8")
        + np.arange(64, dtype="uint8")[:, None, None, None]
    )
    pixels = grid(images)
    assert pixels.shape == (16, 24, 3)
    np.testing.assert_array_equal(pixels[::2, ::3, 0].ravel(), np.arange(64))


def keep_samples(folder, *names, size=32):
    """Writes a sample of random images for each setting, as train.py does."""
    random = np.random.default_rng(0)
    samples = {
        name: random.integers(0, 256, (64, size, size, 3), "uint8") for name in names
    }
    for name, images in samples.items():
        (folder / name).mkdir()
        np.savez(folder / name / "sample.npz", images=images)
    return samples


def test_samples_are_drawn_side_by_side(tmp_path):
    from image_generation.compare import grids

    keep_samples(tmp_path, "fp32", "mixed-no-scaling", size=4)
    text = grids({"fp32": {}, "mixed, no scaling": {}}, tmp_path)
    assert str(tmp_path / "samples.png") in text
    assert (tmp_path / "samples.png").stat().st_size > 0


@pytest.mark.slow_except("32-2")
@pytest.mark.parametrize(("size", "times"), [(32, 2), (128, 1)])
def test_figure_6_has_every_pixel(tmp_path, size, times):
    from image_generation.figure6 import grid, main
    from matplotlib.image import imread

    samples = keep_samples(tmp_path, "fp32", "mixed", size=size)
    main([str(tmp_path), f"--out={tmp_path / 'figure6.png'}"])
    pixels = np.round(255 * imread(tmp_path / "figure6.png")[..., :3]).astype("uint8")
    side = 8 * size * times
    # A title above, and the grids at both sides.
    assert pixels.shape == (side + 32, 2 * side + 16, 3)
    for left, images in zip((0, side + 16), samples.values(), strict=True):
        drawn = pixels[32:, left : left + side]
        np.testing.assert_array_equal(drawn[::times, ::times], grid(images))
        np.testing.assert_array_equal(drawn[times - 1 :: times, ::times], grid(images))


def test_figure_6_without_samples(tmp_path, capsys):
    from image_generation.figure6 import main

    keep_samples(tmp_path, "fp32")
    with pytest.raises(SystemExit):
        main([str(tmp_path)])
    assert f"without {tmp_path / 'mixed' / 'sample.npz'}" in capsys.readouterr().err
