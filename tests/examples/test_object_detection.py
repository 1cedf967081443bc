"""SSD, and both detectors of the object detection example trained on squares."""

import json
import math
from argparse import Namespace
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf
from experiments.precision import FORMS, PRECISIONS
from experiments.sgd import SGD
from wrapping import optimizer_for

# mixed-no-masters differs from mixed in what a callback does after a step.
STEPS = sorted(PRECISIONS.keys() - FORMS.keys() - {"mixed-no-masters"})

NETWORKS = {
    "ssd": {"scales": [0.3, 0.3, 0.3], "ratios": [[2], [2]]},
    "faster-rcnn": {"sizes": [0.3, 0.5], "ratios": [0.5, 1, 2], "proposals": 16},
}


def tiny(network, batch_normalization=True):
    """Returns a network for images of 32 pixels and 2 classes."""
    from object_detection.train import NETWORKS as DETECTORS

    args = Namespace(
        side=32,
        width=1 / 16,
        batch_normalization=batch_normalization,
        **NETWORKS[network],
    )
    return DETECTORS[network](args, 2, 2)


# --- ssd.py, backbone.py ---------------------------------------------------

SSD300 = [[2], [2, 3], [2, 3], [2, 3], [2], [2]]


def test_paper_preset_has_the_weights_of_ssd300():
    """Counted by hand from section 3 of the SSD paper, for the 20 classes of VOC.

    torchvision's documentation gives 35,641,826 for ssd300_vgg16 with 91 classes of
    COCO, background included: 70 more logits for each of the default boxes of a cell.
    """
    from object_detection.boxes import default_boxes
    from object_detection.ssd import map_sizes, ssd

    presets = Path(ssd.__code__.co_filename).parent / "presets"
    paper = json.loads((presets / "paper.json").read_text())
    assert paper["ratios"] == SSD300
    assert map_sizes(paper["side"]) == [38, 19, 10, 5, 3, 1]
    boxes = default_boxes([38, 19, 10, 5, 3, 1], paper["scales"], paper["ratios"])
    assert len(boxes) == 8732
    vgg = 14_714_688
    conv6_and_7 = (9 * 512 + 1) * 1024 + (1024 + 1) * 1024
    extra = (1024 + 1) * 256 + (9 * 256 + 1) * 512 + (512 + 1) * 128
    extra += 3 * (9 * 128 + 1) * 256 + 2 * (256 + 1) * 128
    boxes_and_channels = [(4, 512), (6, 1024), (6, 512), (6, 256), (4, 256), (4, 256)]
    heads = sum(n * (9 * channels + 1) for n, channels in boxes_and_channels)
    expected = vgg + 512 + conv6_and_7 + extra + heads * (4 + 21)
    assert expected == 26_285_486
    assert expected + heads * 70 == 35_641_826
    model = ssd(paper["side"], 20, paper["ratios"], paper["width"])
    assert model.count_params() == expected
    assert model.output_shape == (None, 8732, 25)


@pytest.mark.parametrize(
    ("side", "maps"), [(32, [4, 2]), (128, [16, 8, 4, 2]), (160, [20, 10, 5, 3, 1])]
)
def test_map_sizes(side, maps):
    from object_detection.ssd import map_sizes, ssd

    assert map_sizes(side) == maps
    model = ssd(side, 1, [[2]] * len(maps), width=1 / 64)
    cells = sum(size**2 for size in maps)
    assert model.output_shape == (None, 4 * cells, 4 + 2)


def test_pretrained_weights_see_the_same_image(monkeypatch):
    from object_detection.backbone import load_imagenet
    from object_detection.batches import normalized
    from object_detection.ssd import ssd

    vgg = keras.applications.VGG16(False, weights=None, input_shape=(32, 32, 3))
    monkeypatch.setattr(keras.applications, "VGG16", lambda include_top: vgg)
    model = ssd(32, 1, [[2], [2]])
    load_imagenet(model)
    pixels = np.random.default_rng(0).uniform(0, 255, (1, 32, 32, 3)).astype("float32")
    expected, found = (
        keras.Model(m.inputs[0], m.get_layer("block2_conv2").output)(x)
        for m, x in [
            (vgg, keras.applications.vgg16.preprocess_input(pixels.copy())),
            (model, normalized(tf.constant(pixels))),
        ]
    )
    # Four convolutions of up to 9 * 128 products, of which few cancel out.
    scale = np.max(np.abs(expected))
    np.testing.assert_allclose(found / scale, expected / scale, atol=1152 * 2**-24)


def test_pretrained_weights_of_another_network():
    from object_detection.backbone import load_imagenet

    model = tiny("ssd").model
    with pytest.raises(ValueError, match=r"no batch normalization. Received: "):
        load_imagenet(model)


@pytest.mark.xslow_except("mixed")
@pytest.mark.slow
@pytest.mark.parametrize("precision", ["fp32", "mixed"])
def test_a_backbone_that_was_trained_before(precision, tmp_path, monkeypatch):
    """SSD begins with the backbone of a classifier, in each precision."""
    from image_classification.data import Images
    from object_detection import pretrain
    from object_detection.backbone import load_backbone

    random = np.random.default_rng(0)
    images = random.integers(0, 256, (4, 32, 32, 3), "uint8")
    examples = tf.data.Dataset.from_tensor_slices((images, np.arange(4)))
    found = Images(examples, examples, decode=tf.identity, classes=4)
    monkeypatch.setattr(pretrain, "load", lambda data: found)
    flags = "--width=0.0625 --batch=2 --test-images=4 --steps=2 --warm-up=1"
    pretrain.main([*flags.split(), "--eval-every=2", f"--out={tmp_path}"])

    keras.config.set_dtype_policy(PRECISIONS[precision].dtype_policy)
    model = tiny("ssd").model
    load_backbone(model, str(tmp_path / "model.weights.h5"), 1 / 16, True)
    trained = backbone_weights(tmp_path / "model.weights.h5")
    kernel = model.get_layer("block5_conv3").kernel
    expected = trained["block5_conv3"].astype(kernel.dtype)
    np.testing.assert_array_equal(kernel, expected)
    assert np.any(model.get_layer("block1_conv1_bn").moving_mean != 0)


def backbone_weights(path):
    """The kernels of convolutions, by the name of the layer."""
    from object_detection.backbone import backbone

    keras.config.set_dtype_policy("float32")
    model = backbone(1 / 16, True)
    model.load_weights(path)
    return {
        layer.name: layer.kernel.numpy()
        for layer in model.layers
        if hasattr(layer, "kernel")
    }


def test_a_backbone_that_was_not_trained():
    from object_detection.backbone import load_backbone

    with pytest.raises(ValueError, match=r"Received: none.h5, which does not exist"):
        load_backbone(tiny("ssd").model, "none.h5", 1 / 16, True)


def test_the_backbone_is_trained_before_the_settings(tmp_path, monkeypatch):
    from object_detection import compare

    monkeypatch.chdir(tmp_path)
    run = []
    monkeypatch.setattr(compare, "run_script", run.append)
    compare.pretrain(["--preset", "demo"])
    assert run == []
    compare.pretrain(["--preset", "pretrained_demo"])
    assert run == [compare.HERE / "pretrain.py"]


# --- both networks, trained ------------------------------------------------


@pytest.mark.xslow_except("mixed-ssd", "mixed-faster-rcnn", "pseudo-fp16-faster-rcnn")
@pytest.mark.slow_except("mixed-ssd")
@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize("precision", STEPS)
def test_one_step_in_every_precision(
    precision, network, images_of_squares, monkeypatch
):
    """A step whose gradients overflow at the first dynamic scale changes nothing."""
    from object_detection.batches import held_out_batches

    setting = PRECISIONS[precision]
    if setting.computes_in_fp32:
        monkeypatch.setenv("KERAS_MP_OPS", "reference")
    keras.config.set_dtype_policy(setting.dtype_policy)
    detector = tiny(network)
    model = detector.model
    optimizer = optimizer_for(PRECISIONS[precision], SGD(0.5, global_clipnorm=5.0))
    model.compile(optimizer=optimizer, loss=detector.loss, run_eagerly=True)
    ((x, y),) = held_out_batches(images_of_squares[:2], 32, detector.target, batch=2)
    heads = [
        weight
        for weight in model.trainable_variables
        if weight.path.startswith(("head", "rpn_outputs", "outputs"))
    ]
    before = [weight.numpy() for weight in heads]
    metrics = model.train_on_batch(x, y, return_dict=True)
    assert math.isfinite(metrics["loss"])
    skipped = precision in ("mixed", "pseudo-fp16") and int(optimizer.skipped_steps)
    for old, weight in zip(before, heads, strict=True):
        assert np.isfinite(weight.numpy()).all()
        assert (weight.numpy() != old).any() == (not skipped), weight.path


def mixed_or_slow(precisions):
    """Returns cases: `make test-all` runs mixed precision, `make test-slow` the rest.

    One step in every precision is a test of its own.
    """
    return [
        pytest.param(each, marks=() if each == "mixed" else pytest.mark.xslow)
        for each in precisions
    ]


@pytest.mark.xslow_except("paper-mixed-ssd")
@pytest.mark.slow
@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize("precision", mixed_or_slow(STEPS))
@pytest.mark.parametrize(
    "batch_normalization", [False, True], ids=["paper", "normalized"]
)
def test_every_precision_trains(
    batch_normalization, precision, network, images_of_squares, monkeypatch
):
    from object_detection.batches import training_batches

    keras.utils.set_random_seed(0)
    setting = PRECISIONS[precision]
    if setting.computes_in_fp32:
        monkeypatch.setenv("KERAS_MP_OPS", "reference")
    keras.config.set_dtype_policy(setting.dtype_policy)
    detector = tiny(network, batch_normalization)
    model = detector.model
    optimizer = optimizer_for(PRECISIONS[precision], SGD(0.01, global_clipnorm=5.0))
    model.compile(optimizer=optimizer, loss=detector.loss, jit_compile=False)
    batches = training_batches(images_of_squares, 32, detector.target, batch=2, seed=0)
    before = [weight.numpy() for weight in model.trainable_variables]
    # A dynamic scale begins high: the first steps overflow, and are skipped.
    history = model.fit(batches, steps_per_epoch=8, shuffle=False, verbose=0)
    assert math.isfinite(history.history["loss"][0])
    moved = [
        not np.array_equal(old, new.numpy())
        for old, new in zip(before, model.trainable_variables, strict=True)
    ]
    # A relu may be silent for two images; no kernel of a head may be.
    assert np.mean(moved) > 0.5
    assert all(
        m
        for m, w in zip(moved, model.trainable_variables, strict=True)
        if w.path.startswith(("head", "rpn_outputs", "outputs"))
    )


@pytest.mark.xslow
@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize("precision", mixed_or_slow(["fp32", "mixed"]))
def test_learns_two_images_by_heart(precision, network, images_of_squares):
    """The loss, the boxes and what is counted belong together, in both classes."""
    from object_detection.batches import held_out_batches
    from object_detection.evaluation import average_precisions, detect

    keras.utils.set_random_seed(0)
    setting = PRECISIONS[precision]
    keras.config.set_dtype_policy(setting.dtype_policy)
    detector = tiny(network)
    model = detector.model
    # At a rate that stays, the last step may spoil a box.
    rate = keras.optimizers.schedules.CosineDecay(0.003, 150)
    optimizer = optimizer_for(PRECISIONS[precision], keras.optimizers.Adam(rate))
    model.compile(optimizer=optimizer, loss=detector.loss, jit_compile=False)
    batches = held_out_batches(images_of_squares[:2], 32, detector.target, batch=2)
    model.fit(batches.cache().repeat(), steps_per_epoch=150, shuffle=False, verbose=0)
    found = detect(detector, batches)
    precisions = average_precisions(images_of_squares[:2], found, ["cat", "dog"])
    assert min(precisions.values()) > 0.99


# --- train.py, gradients.py, figure3.py ------------------------------------


@pytest.fixture
def flags(flags_for_squares):
    return [*flags_for_squares, "--scales=[0.3, 0.5, 0.9]", "--ratios=[[2], []]"]


def numbers(result):
    rows = [(row["loss"], row["val_loss"]) for row in result["log"]]
    return rows, result["measures"], result["loss_scale"]


@pytest.mark.xslow
def test_a_run_that_was_killed_ends_the_same(flags, tmp_path):
    from object_detection.train import main

    flags = [*flags, "--precision=mixed", "--loss-scale=8", f"--out={tmp_path / 'out'}"]
    whole = main(flags)
    assert whole["loss_scale"] == 8
    assert set(whole["measures"]) == {"mAP", "AP cat", "AP dog"}
    # What is left when a run is killed in its second epoch.
    max((tmp_path / "out" / "checkpoints").iterdir()).unlink()
    assert numbers(main([*flags, "--resume"])) == numbers(whole)


@pytest.mark.xslow
def test_figure_3_of_a_run_in_fp32(flags, tmp_path, capsys, monkeypatch):
    from object_detection import gradients as measuring
    from object_detection.figure3 import main as figure3
    from object_detection.train import main

    monkeypatch.setattr(measuring, "SCALES", [8.0, 2.0**-12])
    out = tmp_path / "fp32"
    gradients = main([*flags, "--precision=fp32", f"--out={out}"])["gradients"]
    counted = sum(gradients["exponents"].values()) + gradients["zeros"]
    assert counted == gradients["elements"]
    lost = list(gradients["lost"].values())
    assert lost == sorted(lost)
    figure3([str(out / "result.json"), f"--out={tmp_path / 'figure3.png'}"])
    assert (tmp_path / "figure3.png").read_bytes().startswith(b"\x89PNG")
    rows = capsys.readouterr().out.splitlines()
    found = [row.split("|")[1].strip() for row in rows if row.startswith("| ")]
    assert found[2:] == ["8", "0.000244141"]


@pytest.mark.parametrize("content", [None, "{}"], ids=["missing", "not FP32"])
def test_figure_3_of_another_file(tmp_path, capsys, content):
    from object_detection.figure3 import main

    path = tmp_path / "result.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(SystemExit):
        main([str(path)])
    assert "must be that of a run in FP32" in capsys.readouterr().err
