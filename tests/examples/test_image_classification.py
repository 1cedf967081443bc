"""The classifiers: their data, their networks, and training in every precision."""

import io
import json
import lzma
import math
import os
import sys

import keras
import numpy as np
import pytest
import tensorflow as tf
from experiments.flags import parse
from experiments.precision import FORMS, PRECISIONS
from image_classification import compare, data, train
from image_classification.model import NETWORKS, Classifier, build
from image_classification.networks.local_response_normalization import (
    LocalResponseNormalization,
)
from wrapping import optimizer_for

import keras_mp

# mixed-no-masters differs from mixed in what a callback does after a step.
STEPS = sorted(PRECISIONS.keys() - FORMS.keys() - {"mixed-no-masters"})


@pytest.fixture(autouse=True)
def route(monkeypatch):
    """Has the route of the ops be that of before."""
    monkeypatch.setenv("KERAS_MP_OPS", os.environ.get("KERAS_MP_OPS", "auto"))


# --- data.py ---------------------------------------------------------------


def make_arrays(train=8, test=4, size=32):
    """JPEG images of one colour each; the labels alternate."""
    count = train + test
    colours = np.arange(count, dtype="uint8")[:, None, None, None] * 20
    pixels = np.broadcast_to(colours, (count, size, size, 3))
    files = [tf.io.encode_jpeg(image).numpy() for image in pixels]
    return {
        "jpeg": np.frombuffer(b"".join(files), "uint8"),
        "offsets": np.cumsum([0, *map(len, files)]).astype("uint32"),
        "label": (np.arange(count) % 2).astype("uint8"),
        "is_train": np.arange(count) < train,
        "classes": np.array(["dark", "light"]),
    }


def write_arrays(path, arrays):
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)
    content = buffer.getvalue()
    path.write_bytes(lzma.compress(content) if path.suffix == ".xz" else content)
    return path


@pytest.fixture
def file(tmp_path):
    return write_arrays(tmp_path / "images.npz.xz", make_arrays())


def values(dataset, decode):
    """The first pixel of each image, and its label."""
    return [(int(decode(x)[0, 0, 0]), int(y)) for x, y in dataset]


@pytest.mark.parametrize("name", ["images.npz", "images.npz.xz"])
def test_reads_a_file_of_jpeg_images(tmp_path, name):
    images = data.load(str(write_arrays(tmp_path / name, make_arrays())))
    assert images.classes == 2
    assert values(images.train, images.decode) == [(20 * i, i % 2) for i in range(8)]
    assert values(images.test, images.decode) == [(20 * i, i % 2) for i in range(8, 12)]


def test_reads_cifar10(monkeypatch):
    pixels = np.full((3, 32, 32, 3), 7, "uint8")
    arrays = (pixels, np.array([[1], [2], [3]], "uint8"))
    monkeypatch.setattr(keras.datasets.cifar10, "load_data", lambda: (arrays, arrays))
    images = data.load("cifar10")
    assert images.classes == 10
    assert values(images.train, images.decode) == [(7, 1), (7, 2), (7, 3)]


def write_images(folder, *names):
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        pixels = np.full((5, 7, 3), len(name), "uint8")
        (folder / name).write_bytes(tf.io.encode_png(pixels).numpy())


def test_reads_a_folder(tmp_path):
    write_images(tmp_path, "train/b/1.png", "train/a/22.png", "val/b/333.png")
    images = data.load(str(tmp_path))
    assert images.classes == 2
    assert sorted(values(images.train, images.decode)) == [(13, 1), (14, 0)]
    assert values(images.test, images.decode) == [(13, 1)]


def without(name):
    return lambda path: write_arrays(
        path, {k: v for k, v in make_arrays().items() if k != name}
    )


def cut_short(path):
    write_arrays(path, make_arrays())
    path.write_bytes(path.read_bytes()[:-20])


def with_offsets(path):
    arrays = make_arrays()
    write_arrays(path, arrays | {"offsets": arrays["offsets"][:-1]})


@pytest.mark.parametrize(
    ("write", "message"),
    [
        pytest.param(lambda path: None, "does not exist. Check the path", id="missing"),
        pytest.param(
            lambda path: path.write_bytes(b""), "and whole.*again", id="empty"
        ),
        pytest.param(
            lambda path: path.write_bytes(lzma.compress(b"text")),
            "and whole. Received: .*again",
            id="not npz",
        ),
        pytest.param(cut_short, "and whole. Received: .*again", id="cut short"),
        pytest.param(without("label"), "without label. Give another", id="no labels"),
        pytest.param(with_offsets, "12 labels, 12 offsets", id="offsets"),
        pytest.param(
            lambda path: path.mkdir(), "train/CLASS.*Move the images", id="folder"
        ),
    ],
)
def test_a_bad_file_is_refused(tmp_path, write, message):
    path = tmp_path / "images.npz.xz"
    write(path)
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        data.load(str(path))


def test_tfds_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorflow_datasets", None)
    with pytest.raises(ImportError, match="pip install tensorflow-datasets"):
        data.load("tfds:imagenet2012")


@pytest.mark.slow
def test_training_batches_are_endless_and_depend_on_the_seed_alone(file):
    images = data.load(str(file))

    def take(seed, skip=0):
        batches = data.training_batches(
            images, batch=3, canvas=40, crop=32, resize=False, seed=seed
        )
        return [(x.numpy(), y.numpy()) for x, y in batches.skip(skip).take(6)]

    first = take(seed=0)
    assert len(first) == 6
    for x, y in first:
        assert x.shape == (3, 32, 32, 3)
        assert x.dtype == np.uint8
        assert y.shape == (3,)
    np.testing.assert_equal(take(seed=0), first)
    np.testing.assert_equal(take(seed=0, skip=4)[:2], first[4:])
    assert not np.array_equal(take(seed=1)[0][0], first[0][0])


def test_crops_show_each_place_of_the_canvas_and_half_are_flipped():
    """A bright pixel in the corner of an image is moved, and mirrored."""
    image = np.zeros((1, 8, 8, 3), "uint8")
    image[0, 2, 1] = 255
    dataset = tf.data.Dataset.from_tensor_slices((image, [0]))
    images = data.Images(dataset, dataset, decode=tf.identity, classes=1)
    batches = data.training_batches(
        images, batch=400, canvas=10, crop=8, resize=False, seed=0
    )
    pixels = next(iter(batches))[0].numpy()[..., 0]
    _, rows, columns = np.nonzero(pixels)
    # One pixel of border on each side: moved by -1, 0 or 1.
    assert set(rows) == {1, 2, 3}
    assert set(columns) == {0, 1, 2, 5, 6, 7}
    # 200 of 400 are flipped, with a standard deviation of 10.
    assert 150 < np.sum(columns > 3) < 250


@pytest.mark.parametrize("resize", [False, True], ids=["borders", "resized"])
def test_test_images_are_cut_from_the_centre(file, resize):
    images = data.load(str(file))
    (batch,) = data.test_batches(
        images, batch=8, canvas=40, crop=32, resize=resize, count=3
    )
    expected = np.array([160, 180, 200], "uint8")[:, None, None, None]
    np.testing.assert_array_equal(batch[0], np.broadcast_to(expected, (3, 32, 32, 3)))
    np.testing.assert_array_equal(batch[1], [0, 1, 0])


# --- networks/ and model.py ------------------------------------------------

# With the published counts they are close to: AlexNet and GoogLeNet those of Caffe's
# models; VGG-D table 2 of its paper (138 million); Inception v3 that of torchvision,
# with the head; ResNet-50 v2 of Keras has biases, too (25,568,360).
WEIGHTS = {
    "alexnet": 60_965_224,
    "vgg-d": 138_357_544,
    "googlenet": 13_378_280,
    "inception-v2": 11_194_984,
    "inception-v3": 27_161_264,
    "resnet-50": 25_549_352,
}
# Of them in the auxiliary heads.
AUXILIARY = {"googlenet": 6_379_728, "inception-v3": 3_326_696}


def count(variables):
    return sum(math.prod(variable.shape) for variable in variables)


@pytest.mark.parametrize("network", NETWORKS)
def test_weights_of_the_paper_preset(network):
    flags = ["--preset=paper", f"--network={network}"]
    args = parse(train.HERE, train.with_recipe(flags))
    # Only shapes are looked at, so nothing is allocated.
    with keras.StatelessScope(initialize_variables=False):
        model = build(
            args.network,
            image_size=args.crop,
            classes=1000,
            width=args.width,
            small_images=args.small_images,
        )
    outputs = {"googlenet": 3, "inception-v3": 2}.get(network, 1)
    assert [output.shape for output in model.outputs] == [(None, 1000)] * outputs
    variables = model.trainable_variables
    heads = [v for v in variables if v.path.startswith("auxiliary")]
    assert count(variables) == WEIGHTS[network]
    assert count(heads) == AUXILIARY.get(network, 0)


def toy(network):
    return build(network, image_size=32, classes=2, width=1 / 32, small_images=True)


@pytest.fixture
def few_modules(monkeypatch):
    """Leaves a module or two of each kind, which are built as fast as they are few."""
    from image_classification.networks import googlenet, inception_v2, resnet

    kept = {googlenet: ("3a", "4a", "5a"), inception_v2: ("3a", "3c", "4a", "5b")}
    for module, names in kept.items():
        few = {name: module.MODULES[name] for name in names}
        monkeypatch.setattr(module, "MODULES", few)
    stages = [(channels, min(blocks, 2)) for channels, blocks in resnet.STAGES[:2]]
    monkeypatch.setattr(resnet, "STAGES", stages)


@pytest.mark.xslow_except(
    "alexnet-mixed",
    "vgg-d-mixed",
    "googlenet-mixed",
    "inception-v2-mixed",
    "resnet-50-mixed",
)
@pytest.mark.slow_except("resnet-50-mixed", "alexnet-mixed")
@pytest.mark.parametrize("precision", STEPS)
@pytest.mark.parametrize("network", NETWORKS)
def test_one_step(network, precision, few_modules, monkeypatch):
    """A step whose gradients overflow at the first dynamic scale changes nothing."""
    policy = PRECISIONS[precision].dtype_policy
    if PRECISIONS[precision].computes_in_fp32:
        monkeypatch.setenv("KERAS_MP_OPS", "reference")
    keras.config.set_dtype_policy(policy)
    model = toy(network)
    optimizer = optimizer_for(PRECISIONS[precision], keras.optimizers.SGD(0.5))
    model.compile(optimizer=optimizer, run_eagerly=True)
    kernels = [v for v in model.trainable_variables if v.name == "kernel"]
    before = keras.ops.convert_to_numpy(kernels[0])
    x = np.random.default_rng(0).integers(0, 256, (4, 32, 32, 3), "uint8")
    loss = model.train_on_batch(x, np.array([0, 1, 0, 1]))
    after = [keras.ops.convert_to_numpy(kernel) for kernel in kernels]
    skipped = precision in ("mixed", "pseudo-fp16") and int(optimizer.skipped_steps)
    assert np.isfinite(loss)
    assert model(x).dtype == tf.float32
    assert {kernel.dtype for kernel in after} == {np.dtype(policy)}
    assert all(np.all(np.isfinite(kernel)) for kernel in after)
    assert np.any(after[0] != before) == (not skipped)


def test_auxiliary_heads_take_part_in_the_training_loss_alone():
    """All logits are 0, so that each cross entropy is that of two equal classes."""
    images = keras.Input((2,))
    heads = [keras.layers.Dense(2, "linear", kernel_initializer="zeros")(images)] * 3
    model = Classifier(images, heads)
    model.compile(optimizer="sgd")
    x, y = np.ones((4, 2)), np.zeros(4, "int32")
    loss = model.compute_loss(y=y, y_pred=model(x), training=True)
    assert float(loss) == pytest.approx(1.6 * math.log(2))
    assert model.evaluate(x, y, verbose=0) == pytest.approx(math.log(2))


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_local_response_normalization(dtype):
    """Six channels of 300: their squares, 90,000, are beyond FP16.

    At the borders 3 and 4 channels are summed, elsewhere 5.
    """
    layer = LocalResponseNormalization(dtype=dtype)
    found = layer(np.full((1, 1, 1, 6), 300, dtype))
    neighbours = np.array([3, 4, 5, 5, 4, 3])
    expected = 300 / (2 + 1e-4 * neighbours * 300.0**2) ** 0.75
    assert found.dtype == dtype
    # One rounding to FP16, or some in FP32.
    rtol = 2**-11 if dtype == "float16" else 1e-6
    np.testing.assert_allclose(found[0, 0, 0], expected, rtol=rtol)


# --- train.py and compare.py -----------------------------------------------


@pytest.mark.parametrize("preset", ["demo", "paper"])
def test_a_recipe_names_flags_of_its_preset(preset):
    recipes = json.loads((train.HERE / f"recipes/{preset}.json").read_text())
    assert list(recipes) == list(NETWORKS)
    for network, values in recipes.items():
        flags = [f"--preset={preset}", f"--network={network}"]
        args = vars(parse(train.HERE, train.with_recipe(flags)))
        assert args["network"] == network
        assert {name: args[name] for name in values} == values
        assert args["steps"] % args["eval_every"] == 0


def test_flags_prevail_over_the_recipe():
    flags = ["--preset=paper", "--network=alexnet", "--crop=64"]
    assert parse(train.HERE, train.with_recipe(flags)).crop == 64


def test_the_decay_of_the_weights_is_that_of_the_public_recipes():
    """Gradients of 0: a weight goes to (1 - rate * decay / (1 - momentum)) of it."""
    args = parse(train.HERE, ["--learning-rate=0.5", "--weight-decay=0.01"])
    optimizer = train.make_optimizer(args)
    kernel = keras.Variable([1.0], name="kernel")
    others = [keras.Variable([1.0], name=name) for name in train.NOT_DECAYED]
    optimizer.apply([keras.ops.zeros(1)] * 4, [kernel, *others])
    assert float(kernel[0]) == pytest.approx(1 - 0.5 * 0.01 / 0.1)
    assert [float(other[0]) for other in others] == [1.0, 1.0, 1.0]


TOY = ["--network=alexnet", "--width=0.03", "--batch=4", "--eval-every=2"]


@pytest.mark.xslow
def test_train_in_mixed_precision_and_resume(file, tmp_path):
    flags = [*TOY, f"--data={file}", "--steps=4", "--verbose=0"]
    whole = train.main([*flags, f"--out={tmp_path / 'whole'}"])
    parts = f"--out={tmp_path / 'parts'}"
    train.main([*flags, "--steps=2", parts])
    resumed = train.main([*flags, "--resume", parts])
    assert 0 <= whole["measures"]["top-1"] <= 100
    assert whole["loss_scale"] == 2**15
    losses = [[row["loss"] for row in run["log"]] for run in (whole, resumed)]
    assert losses[0] == losses[1]
    assert resumed["measures"] == whole["measures"]


def test_each_setting_trains_its_network():
    settings = compare.COMPARISON.settings
    assert set(compare.COMPARISON.demo) <= set(settings)
    # Of one network the forms of state, and of one two seeds more without masters.
    assert len(settings) == 6 * 9 + 18 + 2
    for name, flags in settings.items():
        argv = train.with_recipe([*flags, *compare.COMPARISON.short])
        assert name.startswith(parse(train.HERE, argv).network)


@pytest.mark.slow
def test_the_converged_network(file, tmp_path):
    """A short run, and the rate: up to the highest, and down to 0 at the end."""
    from image_classification.converged import train as converged

    flags = ["--width=0.03", "--batch=4", "--steps=2", "--eval-every=1", "--warm-up=1"]
    found = converged.main(
        [*flags, f"--data={file}", "--verbose=0", f"--out={tmp_path / 'out'}"]
    )
    assert len(found["log"]) == 2
    assert 0 <= found["measures"]["top-1"] <= 100
    args = parse(converged.HERE, ["--steps=8", "--warm-up=2", "--learning-rate=0.5"])
    rate = converged.one_cycle(args)
    assert [float(rate(step)) for step in (0, 1, 2, 5, 8)] == pytest.approx(
        [0, 0.25, 0.5, 0.25, 0], abs=1e-7
    )


def test_a_wrapped_optimizer_decays_the_masters():
    """A step of 2**-12 of a weight, which FP16 cannot take, is kept by the master."""
    args = parse(train.HERE, ["--learning-rate=1", f"--weight-decay={0.1 * 2**-12}"])
    optimizer = keras_mp.wrap(train.make_optimizer(args), loss_scale=1)
    kernel = keras.Variable([1.0], name="kernel", dtype="float16")
    bias = keras.Variable([1.0], name="bias", dtype="float16")
    for _ in range(8):
        optimizer.apply([keras.ops.zeros(1, "float16")] * 2, [kernel, bias])
    # Rounded to FP16, whose numbers are 2**-11 apart below 1.
    assert float(kernel[0]) == pytest.approx((1 - 2**-12) ** 8, abs=2**-12)
    assert float(bias[0]) == 1.0
