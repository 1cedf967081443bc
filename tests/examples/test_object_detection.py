"""The object detection example: its parts, and all of it on images of squares."""

import io
import json
import math
import tarfile
import zipfile
from argparse import Namespace
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf
from experiments.flags import parse
from experiments.precision import PRECISIONS
from experiments.sgd import SGD

# --- data.py ---------------------------------------------------------------

BOX = "<bndbox><xmin>{}</xmin><ymin>{}</ymin><xmax>{}</xmax><ymax>{}</ymax></bndbox>"


def annotation(objects, width=64, height=32):
    """Returns VOC's XML of (name, difficult, left, top, right, bottom) in pixels."""
    rows = (
        f"<object><name>{name}</name><difficult>{difficult}</difficult>"
        f"{BOX.format(*box)}</object>"
        for name, difficult, *box in objects
    )
    size = f"<size><width>{width}</width><height>{height}</height></size>"
    return f"<annotation>{size}{''.join(rows)}</annotation>".encode()


def jpeg(objects, width=64, height=32):
    """Returns an image, red and blue by the name of the objects on black."""
    pixels = np.zeros((height, width, 3), np.uint8)
    for name, _, left, top, right, bottom in objects:
        pixels[top:bottom, left:right, 0 if name == "cat" else 2] = 255
    return tf.io.encode_jpeg(pixels).numpy()


def voc(images, lists, folder="VOC2007/"):
    """Returns the files of a data set, of objects by the name of the image."""
    files = {}
    for name, objects in images.items():
        files[f"{folder}Annotations/{name}.xml"] = annotation(objects)
        files[f"{folder}JPEGImages/{name}.jpg"] = jpeg(objects)
    for name, listed in lists.items():
        files[f"{folder}ImageSets/Main/{name}.txt"] = "\n".join(listed).encode()
    return files


def write(path, files):
    if path.suffix == ".zip":
        with zipfile.ZipFile(path, "w") as archive:
            for name, content in files.items():
                archive.writestr(name, content)
    else:
        with tarfile.open(path, f"w:{path.suffix[1:]}".replace("tar", "")) as archive:
            for name, content in files.items():
                member = tarfile.TarInfo(name)
                member.size = len(content)
                archive.addfile(member, io.BytesIO(content))
    return str(path)


DOG, CAT = ("dog", 0, 16, 8, 48, 24), ("cat", 1, 0, 0, 32, 32)
IMAGES = {"a": [DOG, CAT], "b": [("dog", 0, 5, 5, 5, 5)]}
LISTS = {"trainval": ["a"], "test": ["b", "a"]}


@pytest.mark.parametrize("name", ["voc.tar", "voc.tar.xz", "voc.tar.gz", "voc.zip"])
def test_reads_archives(tmp_path, name):
    from object_detection.data import load

    path = write(tmp_path / name, voc(IMAGES, LISTS))
    classes, train, test = load(path, "trainval", "test")
    assert classes == ["cat", "dog"]
    assert train[0].labels.tolist() == [2, 1]
    assert train[0].boxes.tolist() == [[0.25, 0.25, 0.75, 0.75], [0, 0, 1, 0.5]]
    assert train[0].difficult.tolist() == [False, True]
    assert train[0].jpeg == jpeg([DOG, CAT])
    # A box without area is left out, its image stays.
    assert [image.boxes.shape for image in test] == [(0, 4), (2, 4)]


def test_joins_the_sets_of_several_years(tmp_path):
    from object_detection.data import load

    files = voc(IMAGES, LISTS) | voc({"a": [CAT]}, {"trainval": ["a"]}, "x/VOC2012/")
    _, train, test = load(write(tmp_path / "voc.tar", files), "trainval", "test")
    assert [image.labels.tolist() for image in train] == [[2, 1], [1]]
    assert len(test) == 2


WITHOUT_SIZE = annotation([DOG]).replace(b"<size>", b"<x>").replace(b"/size", b"/x")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        pytest.param(None, "file or of .* Received: .* not a file", id="missing"),
        pytest.param("broken", r"whole .tar, .*Fetch it again", id="no archive"),
        pytest.param("cut", r"whole .tar, .*Fetch it again", id="cut short"),
        pytest.param(
            {"ImageSets/Main/test.txt": None},
            r"Main/test.txt. Received: .* lists \['trainval'\]",
            id="no list",
        ),
        pytest.param(
            {"ImageSets/Main/test.txt": b""}, "images in .*/test.txt", id="empty list"
        ),
        pytest.param(
            {"JPEGImages/b.jpg": None}, r"without \['JPEGImages/b.jpg", id="no image"
        ),
        pytest.param(
            {"Annotations/a.xml": b"<annotation>"}, "must be XML .*a.xml", id="no XML"
        ),
        pytest.param(
            {"Annotations/a.xml": WITHOUT_SIZE}, "must be XML .*a.xml", id="no size"
        ),
        pytest.param(
            {"Annotations/a.xml": annotation([DOG], width=0)}, "a.xml", id="size 0"
        ),
    ],
)
def test_bad_data(tmp_path, changes, message):
    from object_detection.data import load

    path = tmp_path / "voc.tar.gz"
    if isinstance(changes, dict):
        files = voc(IMAGES, LISTS, "")
        for name, content in changes.items():
            del files[name]
            files |= {name: content} if content is not None else {}
        write(path, files)
    elif changes is not None:
        write(path, voc(IMAGES, LISTS))
        whole = path.read_bytes()
        path.write_bytes(whole[: len(whole) // 2] if changes == "cut" else b"text")
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        load(str(path), "trainval", "test")


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


# --- batches.py ------------------------------------------------------------


@pytest.fixture
def images(tmp_path):
    from object_detection.data import load

    files = voc({str(i): squares(i) for i in range(6)}, {"a": map(str, range(6))})
    return load(write(tmp_path / "voc.tar", files), "a", "a")[1]


def squares(i):
    """Returns a cat on the left and a dog on the right, some pixels apart."""
    return [("cat", 0, i, 4, 16 + i, 20), ("dog", 0, 40, 8, 56, 24 + i)]


def default_boxes_of(side):
    from object_detection.boxes import default_boxes
    from object_detection.ssd import map_sizes

    maps = map_sizes(side)
    return tf.constant(default_boxes(maps, [0.3] * (len(maps) + 1), [[2]] * len(maps)))


def target(boxes, labels):
    """Returns what SSD is to find."""
    from object_detection.matching import match

    return match(boxes, labels, default_boxes_of(32))


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


def test_batches_are_the_same_for_a_seed(images):
    from object_detection.batches import training_batches

    def first(seed):
        batches = training_batches(images, 32, target, batch=4, seed=seed)
        return [x.numpy() for batch in batches.take(3) for x in batch]

    for one, again in zip(first(0), first(0), strict=True):
        np.testing.assert_array_equal(one, again)
    assert not np.array_equal(first(0)[0], first(1)[0])
    assert first(0)[0].shape == (4, 32, 32, 3)
    assert first(0)[1].shape == (4, len(default_boxes_of(32)), 5)


def red_and_blue(image, boxes, labels):
    """Returns the mean red and blue inside of each box, by its class."""
    height, width, _ = image.shape
    ends = np.rint(np.array(boxes) * [height, width, height, width]).astype(int)
    inside = (image[t:b, left:r] for t, left, b, r in ends)
    means = (np.mean(part, axis=(0, 1)) for part in inside)
    return {int(label): mean for label, mean in zip(labels, means, strict=True)}


@pytest.mark.parametrize("change", ["flip", "crop"])
def test_boxes_stay_with_their_objects(images, change):
    from object_detection import batches

    seen = 0
    for i in range(24):
        row = images[i % 6]
        image = tf.io.decode_jpeg(row.jpeg, channels=3)
        boxes, labels = tf.constant(row.boxes), tf.constant(row.labels)
        if change == "flip":
            image, boxes = batches.flip(image, boxes)
        else:
            image, boxes, labels = batches.crop(image, boxes, labels, seed=[0, i])
        found = red_and_blue(image.numpy(), boxes.numpy(), labels.numpy())
        # A pixel at the edge of a box is of another colour, and JPEG blurs edges.
        for label, (red, _, blue) in found.items():
            assert (red > 200 and blue < 60) if label == 1 else (blue > 180 > 60 > red)
            seen += 1
    assert seen == 48 if change == "flip" else 24 < seen < 48


def test_crop_of_an_image_without_objects():
    from object_detection.batches import crop

    image = tf.zeros([32, 64, 3], tf.uint8)
    part, boxes, labels = crop(image, tf.zeros([0, 4]), tf.zeros([0], tf.int32), [0, 0])
    assert part.shape[0] <= 32
    assert boxes.shape == (0, 4)
    assert labels.shape == (0,)


def test_held_out_images_are_whole_and_in_order(images):
    from object_detection.batches import held_out_batches

    batches = list(held_out_batches(images, 32, target, batch=4))
    assert [len(x) for x, _ in batches] == [4, 2]
    expected = target(tf.constant(images[4].boxes), images[4].labels)
    np.testing.assert_array_equal(batches[1][1][0], expected)
    # Black, less the mean of the pixels of ImageNet.
    darkest = batches[0][0].numpy().min(axis=(0, 1, 2))
    np.testing.assert_allclose(darkest, [-0.970, -0.916, -0.815], atol=0.001)


# --- model.py --------------------------------------------------------------

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


@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize(
    "batch_normalization", [False, True], ids=["paper", "normalized"]
)
def test_every_precision_trains(
    batch_normalization, precision, network, images, monkeypatch
):
    from object_detection.batches import training_batches

    keras.utils.set_random_seed(0)
    setting = PRECISIONS[precision]
    if setting.computes_in_fp32:
        monkeypatch.setenv("KERAS_MP_OPS", "reference")
    keras.config.set_dtype_policy(setting.dtype_policy)
    detector = tiny(network, batch_normalization)
    model = detector.model
    optimizer = setting.wrap(SGD(0.01, global_clipnorm=5.0))
    model.compile(optimizer=optimizer, loss=detector.loss, jit_compile=False)
    batches = training_batches(images, 32, detector.target, batch=2, seed=0)
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


@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize("precision", ["fp32", "mixed"])
def test_learns_two_images_by_heart(precision, network, images):
    """The loss, the boxes and what is counted belong together, in both classes."""
    from object_detection.batches import held_out_batches
    from object_detection.evaluation import average_precisions, detect

    keras.utils.set_random_seed(0)
    setting = PRECISIONS[precision]
    keras.config.set_dtype_policy(setting.dtype_policy)
    detector = tiny(network)
    model = detector.model
    optimizer = setting.wrap(keras.optimizers.Adam(0.003))
    model.compile(optimizer=optimizer, loss=detector.loss, jit_compile=False)
    batches = held_out_batches(images[:2], 32, detector.target, batch=2)
    model.fit(batches.cache().repeat(), steps_per_epoch=100, shuffle=False, verbose=0)
    found = detect(detector, batches)
    precisions = average_precisions(images[:2], found, ["cat", "dog"])
    assert min(precisions.values()) > 0.99


# --- regions.py ------------------------------------------------------------


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


# --- train.py, gradients.py, figure3.py ------------------------------------

TINY = ["--side=32", "--width=0.0625", "--scales=[0.3, 0.5, 0.9]", "--ratios=[[2], []]"]
TINY += ["--batch=2", "--steps=2", "--eval-every=1", "--warm-up=1", "--verbose=0"]


@pytest.fixture
def flags(tmp_path):
    """The flags of a run on images of squares."""
    names = [str(i) for i in range(6)]
    lists = {"trainval": names[:4], "test": names[4:]}
    files = voc({name: squares(int(name)) for name in names}, lists)
    return [*TINY, f"--data={write(tmp_path / 'squares.tar', files)}"]


def numbers(result):
    rows = [(row["loss"], row["val_loss"]) for row in result["log"]]
    return rows, result["measures"], result["loss_scale"]


def test_a_run_of_faster_rcnn(flags, tmp_path):
    from object_detection.train import main

    preset = ["--preset=faster_rcnn_demo", "--precision=fp32", "--sizes=[0.3, 0.5]"]
    preset += ["--ratios=[1]", "--proposals=4", f"--out={tmp_path / 'out'}"]
    flags = [flag for flag in flags if not flag.startswith(("--scales", "--ratios"))]
    result = main([*preset, *flags])
    assert set(result["measures"]) == {"mAP", "AP cat", "AP dog"}
    assert 0 < result["gradients"]["errors"]["8.0"] < 1


def test_a_run_that_was_killed_ends_the_same(flags, tmp_path):
    from object_detection.train import main

    flags = [*flags, "--precision=mixed", "--loss-scale=8", f"--out={tmp_path / 'out'}"]
    whole = main(flags)
    assert whole["loss_scale"] == 8
    assert set(whole["measures"]) == {"mAP", "AP cat", "AP dog"}
    # What is left when a run is killed in its second epoch.
    max((tmp_path / "out" / "checkpoints").iterdir()).unlink()
    assert numbers(main([*flags, "--resume"])) == numbers(whole)


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
