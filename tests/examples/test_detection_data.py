"""Images and boxes of the object detection example: archives, crops and batches."""

import numpy as np
import pytest
import tensorflow as tf
import voc

# --- data.py ---------------------------------------------------------------

DOG, CAT = ("dog", 0, 16, 8, 48, 24), ("cat", 1, 0, 0, 32, 32)
IMAGES = {"a": [DOG, CAT], "b": [("dog", 0, 5, 5, 5, 5)]}
LISTS = {"trainval": ["a"], "test": ["b", "a"]}


@pytest.mark.parametrize("name", ["voc.tar", "voc.tar.xz", "voc.tar.gz", "voc.zip"])
def test_reads_archives(tmp_path, name):
    from object_detection.data import load

    path = voc.write(tmp_path / name, voc.data_set(IMAGES, LISTS))
    classes, train, test = load(path, "trainval", "test")
    assert classes == ["cat", "dog"]
    assert train[0].labels.tolist() == [2, 1]
    assert train[0].boxes.tolist() == [[0.25, 0.25, 0.75, 0.75], [0, 0, 1, 0.5]]
    assert train[0].difficult.tolist() == [False, True]
    assert train[0].jpeg == voc.jpeg([DOG, CAT])
    # A box without area is left out, its image stays.
    assert [image.boxes.shape for image in test] == [(0, 4), (2, 4)]


def test_joins_the_sets_of_several_years(tmp_path):
    from object_detection.data import load

    files = voc.data_set(IMAGES, LISTS)
    files |= voc.data_set({"a": [CAT]}, {"trainval": ["a"]}, "x/VOC2012/")
    _, train, test = load(voc.write(tmp_path / "voc.tar", files), "trainval", "test")
    assert [image.labels.tolist() for image in train] == [[2, 1], [1]]
    assert len(test) == 2


WITHOUT_SIZE = voc.annotation([DOG]).replace(b"<size>", b"<x>").replace(b"/size", b"/x")


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
            {"Annotations/a.xml": voc.annotation([DOG], width=0)}, "a.xml", id="size 0"
        ),
    ],
)
def test_bad_data(tmp_path, changes, message):
    from object_detection.data import load

    path = tmp_path / "voc.tar.gz"
    if isinstance(changes, dict):
        files = voc.data_set(IMAGES, LISTS, "")
        for name, content in changes.items():
            del files[name]
            files |= {name: content} if content is not None else {}
        voc.write(path, files)
    elif changes is not None:
        voc.write(path, voc.data_set(IMAGES, LISTS))
        whole = path.read_bytes()
        path.write_bytes(whole[: len(whole) // 2] if changes == "cut" else b"text")
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        load(str(path), "trainval", "test")


# --- batches.py ------------------------------------------------------------


def default_boxes_of(side):
    from object_detection.boxes import default_boxes
    from object_detection.ssd import map_sizes

    maps = map_sizes(side)
    return tf.constant(default_boxes(maps, [0.3] * (len(maps) + 1), [[2]] * len(maps)))


def target(boxes, labels):
    """Returns what SSD is to find."""
    from object_detection.matching import match

    return match(boxes, labels, default_boxes_of(32))


@pytest.mark.slow
def test_batches_are_the_same_for_a_seed(images_of_squares):
    from object_detection.batches import training_batches

    def first(seed):
        batches = training_batches(images_of_squares, 32, target, batch=4, seed=seed)
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
def test_boxes_stay_with_their_objects(images_of_squares, change):
    from object_detection import batches

    seen = 0
    for i in range(24):
        row = images_of_squares[i % 6]
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


def test_held_out_images_are_whole_and_in_order(images_of_squares):
    from object_detection.batches import held_out_batches

    batches = list(held_out_batches(images_of_squares, 32, target, batch=4))
    assert [len(x) for x, _ in batches] == [4, 2]
    first = images_of_squares[4]
    expected = target(tf.constant(first.boxes), first.labels)
    np.testing.assert_array_equal(batches[1][1][0], expected)
    # Black, less the mean of the pixels of ImageNet.
    darkest = batches[0][0].numpy().min(axis=(0, 1, 2))
    np.testing.assert_allclose(darkest, [-0.970, -0.916, -0.815], atol=0.001)
