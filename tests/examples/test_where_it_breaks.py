"""Where training breaks: the tasks at toy size, and what they measure."""

import io
import math
import os
import tarfile

import keras
import numpy as np
import pytest
import tensorflow as tf
from experiments.precision import FORMS, PRECISIONS


@pytest.fixture(autouse=True)
def route(monkeypatch):
    """Has the route of the ops be that of before: pseudo-fp16 chooses another one."""
    monkeypatch.setenv("KERAS_MP_OPS", os.environ.get("KERAS_MP_OPS", "auto"))


def cells(count, height=20, width=24):
    """JPEG files of random images."""
    random = np.random.default_rng(0)
    shape = (count, height, width, 3)
    images = random.integers(0, 256, shape, "uint8")
    return [tf.io.encode_jpeg(image).numpy() for image in images]


def write_bccd(path, images, names=("a", "b", "c")):
    """An archive as that of BCCD: the last image is the test set."""
    files = {
        f"JPEGImages/{name}.jpg": image
        for name, image in zip(names, images, strict=False)
    }
    files["ImageSets/Main/trainval.txt"] = "\n".join(names[:-1]).encode()
    files["ImageSets/Main/test.txt"] = names[-1].encode()
    with tarfile.open(path, "w:xz") as archive:
        for name, content in files.items():
            member = tarfile.TarInfo(f"BCCD_Dataset-1/BCCD/{name}")
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return path


# --- image_to_image --------------------------------------------------------


def test_images_of_an_archive(tmp_path):
    from where_it_breaks.image_to_image.data import load

    images = cells(3)
    train, test = load(str(write_bccd(tmp_path / "bccd.tar.xz", images)))
    assert (train, test) == (images[:2], images[2:])


def broken(path):
    write_bccd(path, [*cells(2), b"not a JPEG file"])


@pytest.mark.parametrize(
    ("write", "message"),
    [
        pytest.param(lambda path: None, "does not exist. Check the path", id="missing"),
        pytest.param(
            lambda path: path.write_bytes(b"x" * 999), "cannot be read", id="not-tar"
        ),
        pytest.param(
            lambda path: path.write_bytes(
                write_bccd(path, cells(3)).read_bytes()[:2000]
            ),
            "cannot be read",
            id="cut-short",
        ),
        pytest.param(
            lambda path: tarfile.open(path, "w").close(),
            "without names in ImageSets/Main/trainval.txt",
            id="empty",
        ),
        pytest.param(
            lambda path: write_bccd(path, cells(2)),
            "without JPEGImages/c.jpg",
            id="image-missing",
        ),
        pytest.param(broken, "a broken JPEGImages/c.jpg", id="image-broken"),
    ],
)
def test_bad_archives(write, message, tmp_path):
    from where_it_breaks.image_to_image.data import load

    path = tmp_path / "bccd.tar"
    write(path)
    with pytest.raises(ValueError, match=f"--data must name.*Received: .*{message}"):
        load(str(path))


def test_crops_are_parts_of_images_and_the_same_for_a_seed():
    from where_it_breaks.image_to_image.data import central_crops, random_crops

    images = cells(3)
    whole = np.stack([tf.io.decode_jpeg(image).numpy() for image in images]) / 255
    (x, y), *none = central_crops(images, 16, 4)
    assert not none
    # Rows 2 to 18 of 20, columns 4 to 20 of 24.
    np.testing.assert_allclose(x, whole[:, 2:18, 4:20], rtol=1e-6)
    np.testing.assert_array_equal(x, y)

    def places(crop):
        """Where a crop is in the images."""
        return [
            (image, row, column)
            for image, row, column in np.ndindex(3, 5, 9)
            if np.allclose(crop, whole[image, row : row + 16, column : column + 16])
        ]

    one, other = (list(random_crops(images, 16, 5, 1).take(2)) for _ in range(2))
    found = []
    for (x, _), (same, _) in zip(one, other, strict=True):
        np.testing.assert_array_equal(x, same)
        for crop in x:
            (place,) = places(crop)
            found.append(place)
    assert len(set(found)) > 5


@pytest.fixture
def bccd(tmp_path):
    """Flags of image_to_image for one step on toy images."""
    path = write_bccd(tmp_path / "bccd.tar.xz", cells(3))
    tiny = "--size=16 --width=2 --batch=2 --test-batch=1 --steps=2 --eval-every=1"
    return [*tiny.split(), f"--data={path}", "--verbose=0", f"--out={tmp_path / 'out'}"]


@pytest.mark.slow
@pytest.mark.xslow_except("mixed")
@pytest.mark.parametrize("precision", sorted(PRECISIONS.keys() - FORMS.keys()))
def test_image_to_image(precision, bccd):
    from where_it_breaks.image_to_image.train import main

    result = main([*bccd, f"--precision={precision}"])
    measures = result["measures"]
    assert list(measures) == [
        *("error", "lost gradients", "gradient error", "update error")
    ]
    assert 0 < measures["error"] < 1
    assert len(result["log"]) == 2


# --- super_resolution ------------------------------------------------------


@pytest.mark.slow
@pytest.mark.xslow_except("mixed")
@pytest.mark.parametrize("precision", sorted(PRECISIONS.keys() - FORMS.keys()))
def test_super_resolution(precision, bccd):
    from where_it_breaks.super_resolution.train import main

    flags = [flag for flag in bccd if not flag.startswith(("--size", "--width"))]
    result = main([*flags, "--size=8", "--factor=2", f"--precision={precision}"])
    measures = result["measures"]
    assert list(measures) == [
        *("PSNR", "lost gradients", "gradient error", "update error")
    ]
    if precision != "plain-fp16":  # Adam's second moments vanish in FP16.
        # The error of a pixel is below 1, and not below 0.03.
        assert 0 < measures["PSNR"] < 30
        assert measures["PSNR"] == -10 * math.log10(result["log"][-1]["val_loss"])


def test_small_images_are_means_of_squares():
    from where_it_breaks.super_resolution.train import with_small_images

    image = np.zeros((1, 4, 2, 3), "float32")
    image[0, :2] = [[[0.5] * 3, [1.0] * 3], [[0.0] * 3, [0.5] * 3]]
    batches = tf.data.Dataset.from_tensors((image, image))
    ((small, gray),) = with_small_images(batches, 2)
    # The weights of red, green and blue add up to 0.9999.
    np.testing.assert_allclose(small, [[[[0.5]], [[0.0]]]], atol=2e-4)
    np.testing.assert_allclose(gray, image[..., :1], atol=2e-4)


@pytest.mark.parametrize("dtype", ["float32", "mixed_float16"])
def test_channels_become_pixels(dtype):
    from where_it_breaks.super_resolution.model import PixelShuffle

    layer = PixelShuffle(2, dtype=dtype)
    found = layer(np.array([[[[0, 1, 2, 3], [4, 5, 6, 7]]]], "float32"))
    np.testing.assert_array_equal(found[0, ..., 0], [[0, 1, 4, 5], [2, 3, 6, 7]])
    assert found.dtype == layer.compute_dtype
    assert PixelShuffle.from_config(layer.get_config()).factor == 2


# --- fine_tuning -----------------------------------------------------------


@pytest.fixture
def cifar(tmp_path, monkeypatch):
    """Flags of fine_tuning, on random images."""
    from image_classification.data import Images
    from where_it_breaks.fine_tuning import train

    random = np.random.default_rng(0)
    images = random.integers(0, 256, (12, 32, 32, 3), "uint8")
    labels = (np.arange(12) % 10).astype("int32")
    examples = tf.data.Dataset.from_tensor_slices((images, labels))
    found = Images(examples, examples, decode=tf.identity, classes=10)
    monkeypatch.setattr(train, "load", lambda data: found)
    tiny = (
        "--images=[0,12] --width=2 --batch=4 --test-images=4 --test-batch=4 "
        "--start= --steps=2 --eval-every=2"
    )
    return [*tiny.split(), "--verbose=0", f"--out={tmp_path / 'out'}"]


@pytest.mark.slow
@pytest.mark.xslow_except("mixed")
@pytest.mark.parametrize("precision", sorted(PRECISIONS.keys() - FORMS.keys()))
def test_fine_tuning(precision, cifar):
    from where_it_breaks.fine_tuning.train import main

    result = main([*cifar, f"--precision={precision}"])
    measures = result["measures"]
    assert np.isfinite(measures["loss"])
    # Two steps of 1e-5, where FP16 numbers from 2^-5 on are at least 3e-5 apart.
    assert 0.1 < measures["unmoved"] < 1


@pytest.mark.xslow_except("rounded")
@pytest.mark.slow
@pytest.mark.parametrize("more", [[], ["--round-weights"]], ids=["fp32", "rounded"])
def test_the_statistics_alone(more, cifar):
    """Weights that are but rounded have not moved."""
    from where_it_breaks.fine_tuning.train import main

    result = main([*cifar, "--precision=fp32", "--learning-rate=0", *more])
    assert result["measures"]["unmoved"] == 1


@pytest.mark.xslow
def test_fine_tuning_begins_with_the_weights_of_pre_training(cifar, tmp_path):
    from where_it_breaks.fine_tuning.train import main

    main([*cifar, "--preset=pretraining", "--precision=fp32", *cifar])
    start = tmp_path / "out" / "model.weights.h5"
    flags = ["--precision=fp32", "--learning-rate=0", f"--start={start}"]
    main([*cifar, *flags, f"--out={tmp_path / 'tuned'}"])
    tuned = tmp_path / "tuned" / "model.weights.h5"
    from where_it_breaks.fine_tuning.model import classifier

    before, after = classifier(2, 10), classifier(2, 10)
    before.load_weights(start)
    after.load_weights(tuned)
    for one, other in zip(
        before.trainable_variables, after.trainable_variables, strict=True
    ):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        (["--data", "FILE"], ["--precision", "fp32", "--data", "FILE"]),
        ([], ["--precision", "fp32", "--data", "cifar10"]),
        (["--start", "WEIGHTS"], None),
    ],
    ids=["data", "download", "start"],
)
def test_all_settings_begin_after_pre_training(flags, expected, tmp_path, monkeypatch):
    from where_it_breaks.fine_tuning import compare

    commands = []
    monkeypatch.setattr(
        compare, "run_script", lambda *command: commands.append(command)
    )
    monkeypatch.chdir(tmp_path)
    compare.COMPARISON.prepare(flags)
    found = [[*command[command.index("pretraining") + 1 :]] for command in commands]
    assert found == ([expected] if expected else [])
    # It is there.
    folder = tmp_path / "build" / "where_it_breaks" / "fine_tuning" / "pretraining"
    result = folder / "result.json"
    result.parent.mkdir(parents=True)
    result.write_text("{}")
    compare.COMPARISON.prepare(flags)
    assert len(commands) == len(found)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        pytest.param(
            ["--precision=fp32", "--start=missing.weights.h5"],
            "Received: missing.weights.h5, which does not exist. Make them",
            id="no-start",
        ),
        pytest.param(
            ["--precision=mixed", "--round-weights"],
            "Received: --precision mixed. Choose --precision fp32",
            id="rounded-twice",
        ),
        pytest.param(
            ["--precision=fp32", "--images=[3,13]"],
            r"Received: \[3, 13\], of 12 images. Choose smaller",
            id="too-many-images",
        ),
    ],
)
def test_bad_flags(flags, message, cifar):
    from where_it_breaks.fine_tuning.train import main

    with pytest.raises(ValueError, match=message):
        main([*cifar, *flags])


def test_weights_are_rounded_after_each_step():
    from where_it_breaks.fine_tuning.rounded import RoundWeights

    # The distance from 1 to the next FP16 number below is 2^-11: half of it is lost.
    model = keras.Sequential(
        [
            keras.Input((1,)),
            keras.layers.Dense(1, use_bias=False, kernel_initializer="ones"),
        ]
    )
    for rate, expected in ((2.0**-13, 1.0), (2.0**-11, 1 - 2.0**-10)):
        model.compile(keras.optimizers.SGD(rate), lambda y, p: p[:, 0])
        x = np.ones((2, 1), "float32")
        model.fit(x, x, batch_size=1, verbose=0, callbacks=[RoundWeights()])
        assert model.get_weights() == [[[expected]]]


# --- numbers.py ------------------------------------------------------------


def test_share_unmoved():
    from where_it_breaks.numbers import share_unmoved

    before = [np.array([1.0, 2.0, 3.0]), np.array([[4.0]])]
    after = [np.array([1.0, 2.5, 3.0]), np.array([[5.0]])]
    assert share_unmoved(before, after) == 0.5


def test_inspected():
    """A gradient of 2^-30 for each of two activations: FP16 loses all."""
    from where_it_breaks.numbers import inspected

    dense = keras.layers.Dense(1, use_bias=False, kernel_initializer="ones")
    model = keras.Sequential([keras.Input((1,)), dense])
    model.compile(keras.optimizers.SGD(2.0**9), lambda y, p: 2.0**-29 * p[:, 0])
    x = np.ones((2, 1), "float32")
    # The update, 2^-20, changes a weight of 1 in FP32, and not in FP16.
    assert inspected(model, x, x) == {
        "lost gradients": 1.0,
        "gradient error": 1.0,
        "update error": 1.0,
    }


def test_inspected_after_training_diverged():
    from where_it_breaks.numbers import inspected

    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    model.set_weights([np.full((2, 1), np.nan), np.zeros(1)])
    found = inspected(model, np.ones((4, 2)), np.ones((4, 1)))
    assert [*found] == ["lost gradients", "gradient error", "update error"]
    assert np.isnan([*found.values()]).all()


# --- compare.py ------------------------------------------------------------


@pytest.mark.parametrize("task", ["image_to_image", "super_resolution", "fine_tuning"])
def test_flags_of_all_settings(task):
    import importlib

    from experiments.flags import parse

    comparison = importlib.import_module(f"where_it_breaks.{task}.compare").COMPARISON
    assert set(comparison.demo) <= set(comparison.settings)
    seen = [vars(parse(comparison.folder, f)) for f in comparison.settings.values()]
    assert all(seen.count(flags) == 1 for flags in seen)
