"""Labelled images: where they come from, how they are cut, batches of them."""

import importlib
import io
import lzma
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

# So many images are shuffled at a time.
SHUFFLED = 10_000
ARRAYS = ("jpeg", "offsets", "label", "is_train", "classes")
IMAGE_FILES = (".jpeg", ".jpg", ".png")


@dataclass(frozen=True)
class Images:
    """Training and test images.

    Attributes:
        train: `tf.data.Dataset` of (stored image, label).
        test: the same.
        decode: maps a stored image to pixels, uint8 [height, width, 3].
        classes: the number of labels.
    """

    train: tf.data.Dataset
    test: tf.data.Dataset
    decode: Callable[[Any], Any]
    classes: int


def load(source: str) -> Images:
    """Finds the images.

    Args:
        source: `"cifar10"`, which Keras downloads; a file of JPEG images, .npz or
            .npz.xz; a folder with train/CLASS/* and val/CLASS/*; or `"tfds:NAME"` of
            tensorflow-datasets, such as tfds:imagenet2012.
    """
    if source == "cifar10":
        return _cifar10()
    if source.startswith("tfds:"):
        return _tfds(source.removeprefix("tfds:"))
    path = Path(source)
    if path.is_dir():
        return _folder(path)
    if path.is_file():
        return _jpeg_file(path)
    raise FileNotFoundError(
        "`--data` must be 'cifar10', 'tfds:NAME', a folder or a file. Received: "
        f"--data {path}, which does not exist. Check the path."
    )


def training_batches(
    images: Images,
    *,
    batch: int,
    canvas: int,
    crop: int,
    resize: bool,
    seed: int,
) -> tf.data.Dataset:
    """Returns endless batches of random crops, half of them flipped.

    Args:
        images: what `load` returns.
        batch: Integer. Images of a batch.
        canvas: Integer. Height and width that an image gets before it is cut.
        crop: Integer. Height and width of what is cut from it.
        resize: Whether it gets them by interpolation, or else by black borders.
        seed: Integer. The same one gives the same batches.
    """

    def augment(index: Any, example: Any) -> Any:
        stored, label = example
        image = _on_canvas(images.decode(stored), canvas, resize)
        # The numbers that are drawn for an image depend on nothing but its place.
        cut, flip = tf.unstack(
            tf.random.experimental.stateless_split((seed, tf.cast(index, "int32")), 2)
        )
        image = tf.image.stateless_random_crop(image, (crop, crop, 3), cut)
        return tf.image.stateless_random_flip_left_right(image, flip), label

    return (
        images.train.shuffle(SHUFFLED, seed=seed)
        .repeat()
        .enumerate()
        .map(augment, num_parallel_calls=tf.data.AUTOTUNE)
        .batch(batch, drop_remainder=True)
        .prefetch(tf.data.AUTOTUNE)
    )


def test_batches(
    images: Images, *, batch: int, canvas: int, crop: int, resize: bool, count: int
) -> tf.data.Dataset:
    """Returns batches of the central crops of the first so many test images."""

    def cut(stored: Any, label: Any) -> Any:
        image = _on_canvas(images.decode(stored), canvas, resize)
        return tf.image.resize_with_crop_or_pad(image, crop, crop), label

    return (
        images.test.take(count)
        .map(cut, num_parallel_calls=tf.data.AUTOTUNE)
        .batch(batch)
        .prefetch(tf.data.AUTOTUNE)
    )


def _on_canvas(image: Any, size: int, resize: bool) -> Any:
    if not resize:
        return tf.image.resize_with_crop_or_pad(image, size, size)
    image = tf.image.resize(image, (size, size), antialias=True)
    return tf.cast(tf.clip_by_value(tf.round(image), 0, 255), "uint8")


def _decode(file: Any) -> Any:
    # PNG, too.
    return tf.io.decode_jpeg(file, channels=3)


def _cifar10() -> Images:
    train, test = keras.datasets.cifar10.load_data()
    parts = [
        tf.data.Dataset.from_tensor_slices((pixels, labels[:, 0].astype("int32")))
        for pixels, labels in (train, test)
    ]
    return Images(*parts, decode=tf.identity, classes=10)


def _jpeg_file(path: Path) -> Images:
    arrays = _read_arrays(path)
    stored, offsets = arrays["jpeg"].tobytes(), arrays["offsets"].tolist()
    labels = arrays["label"].astype("int32")
    if len(offsets) != len(labels) + 1 or offsets[-1] != len(stored):
        raise ValueError(
            "`offsets` must hold the start of every image, and the end of the last. "
            f"Received: {path}, with {len(labels)} labels, {len(offsets)} offsets up "
            f"to {offsets[-1]}, and {len(stored)} bytes. Fetch it again."
        )
    jpeg = np.array([stored[a:b] for a, b in pairwise(offsets)], object)
    is_train = arrays["is_train"]
    parts = [
        tf.data.Dataset.from_tensor_slices((tf.constant(jpeg[chosen]), labels[chosen]))
        for chosen in (is_train, ~is_train)
    ]
    return Images(*parts, decode=_decode, classes=len(arrays["classes"]))


def _read_arrays(path: Path) -> dict[str, np.ndarray]:
    try:
        content = path.read_bytes()
        if path.suffix == ".xz":
            content = lzma.decompress(content)
        arrays = dict(np.load(io.BytesIO(content)))
    except (EOFError, lzma.LZMAError, ValueError, zipfile.BadZipFile) as error:
        raise ValueError(
            "A file of images must be .npz or .npz.xz, and whole. Received: "
            f"{path}: {error}. Fetch it again."
        ) from error
    missing = [name for name in ARRAYS if name not in arrays]
    if missing:
        raise ValueError(
            f"A file of images must hold the arrays {', '.join(ARRAYS)}. Received: "
            f"{path}, without {', '.join(missing)}. Give another file."
        )
    return arrays


def _folder(path: Path) -> Images:
    classes = sorted(part.name for part in path.glob("train/*/"))
    parts = [_listed(path / part, classes) for part in ("train", "val")]

    def decode(name: Any) -> Any:
        return _decode(tf.io.read_file(name))

    return Images(*parts, decode=decode, classes=len(classes))


def _listed(folder: Path, classes: list[str]) -> tf.data.Dataset:
    """Returns names and labels in an order without meaning, always the same."""
    found = [
        (str(file), label)
        for label, name in enumerate(classes)
        for file in sorted((folder / name).glob("*"))
        if file.suffix.lower() in IMAGE_FILES
    ]
    if not found:
        raise ValueError(
            "A folder of images must hold train/CLASS/* and val/CLASS/*. Received: "
            f"{folder}, in which no class of train has an image. Move the images to "
            "folders that have the names of their classes."
        )
    np.random.default_rng(0).shuffle(found)
    names, labels = zip(*found, strict=True)
    labels = np.array(labels, "int32")
    return tf.data.Dataset.from_tensor_slices((list(names), labels))


def _tfds(name: str) -> Images:
    try:
        tfds = importlib.import_module("tensorflow_datasets")
    except ImportError as error:
        raise ImportError(
            "`--data tfds:NAME` needs the package tensorflow-datasets. Received: "
            f"--data tfds:{name}. Run pip install tensorflow-datasets."
        ) from error
    builder = tfds.builder(name)
    builder.download_and_prepare()
    splits = builder.info.splits
    parts = builder.as_dataset(
        split=["train", "validation" if "validation" in splits else "test"],
        decoders={"image": tfds.decode.SkipDecoding()},
        as_supervised=True,
    )
    classes = builder.info.features["label"].num_classes
    return Images(*parts, decode=_decode, classes=classes)
