"""Images and the boxes of their objects, in the layout of Pascal VOC."""

import tarfile
import zipfile
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from lzma import LZMAError
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
from experiments.files import downloaded

_GITHUB = "https://github.com/Shenggan/BCCD_Dataset/archive"
_OXFORD = "http://host.robots.ox.ac.uk/pascal/VOC"
# What is downloaded under a name. Of BCCD it is the last commit.
SOURCES = {
    "bccd": [f"{_GITHUB}/d272fb14cdff6e473fafeeeba32aba5f560e9e43.zip"],
    "voc": [
        f"{_OXFORD}/voc2007/VOCtrainval_06-Nov-2007.tar",
        f"{_OXFORD}/voc2007/VOCtest_06-Nov-2007.tar",
        f"{_OXFORD}/voc2012/VOCtrainval_11-May-2012.tar",
    ],
}
_BROKEN = (tarfile.TarError, zipfile.BadZipFile, EOFError, LZMAError, zlib.error)
_FOLDERS = ("Annotations", "JPEGImages", "ImageSets/Main")

# By the path of a data set inside of an archive: its files, by the path in there.
Files = dict[str, dict[str, bytes]]


@dataclass(frozen=True)
class Image:
    """An image and its objects.

    Attributes:
        jpeg: the file.
        boxes: FP32 [objects, 4], (top, left, bottom, right) in shares of the image.
        labels: integers [objects], from 1 on; `classes[label - 1]` is the name.
        difficult: bool [objects], those that an evaluation passes over.
    """

    jpeg: bytes
    boxes: np.ndarray
    labels: np.ndarray
    difficult: np.ndarray


def load(
    source: str, train_list: str, test_list: str
) -> tuple[list[str], list[Image], list[Image]]:
    """Reads the images of two lists.

    Args:
        source: a file of a data set in the layout of Pascal VOC (.tar, .tar.gz,
            .tar.xz, .zip); or a key of `SOURCES`, which is downloaded. It may hold
            several sets, as those of 2007 and 2012, which are joined.
        train_list: name of a list in ImageSets/Main, such as `"trainval"`.
        test_list: name of the other.

    Returns:
        The names of the classes, in alphabetical order, the images to train on, and
        those to test on.
    """
    paths = [downloaded(url) for url in SOURCES.get(source, [])] or [Path(source)]
    files: Files = {}
    for path in paths:
        for name, content in _files(path):
            for folder in _FOLDERS:
                root, found, file = name.rpartition(f"{folder}/")
                if found and file and "/" not in file:
                    files.setdefault(root, {})[f"{folder}/{file}"] = content
    annotations = [
        [_annotation(*item) for item in _listed(files, name, source)]
        for name in (train_list, test_list)
    ]
    names = sorted({name for part in annotations for _, row in part for name in row[0]})
    train, test = ([_image(*item, names) for item in part] for part in annotations)
    return names, train, test


Objects = tuple[list[str], list[list[float]], list[bool]]


def _listed(files: Files, name: str, source: str) -> Iterator[tuple[str, bytes, bytes]]:
    """Yields name, annotation and image of what the lists of all sets name."""
    lists = [
        (found, found[f"ImageSets/Main/{name}.txt"].decode().split())
        for found in files.values()
        if f"ImageSets/Main/{name}.txt" in found
    ]
    if not any(listed for _, listed in lists):
        known = sorted(
            {Path(path).stem for found in files.values() for path in found}
            & {"train", "val", "trainval", "test"}
        )
        raise ValueError(
            f"--data must have images in ImageSets/Main/{name}.txt. Received: "
            f"{source}, with the lists {known}. Give a data set in the layout "
            "of Pascal VOC, or name another list."
        )
    for found, listed in lists:
        for image in listed:
            paths = f"Annotations/{image}.xml", f"JPEGImages/{image}.jpg"
            missing = [path for path in paths if path not in found]
            if missing:
                raise ValueError(
                    f"Every image of a list must be there. Received: {source}, list "
                    f"{name!r}, without {missing}. Fetch the data again."
                )
            yield image, found[paths[0]], found[paths[1]]


def _annotation(image: str, annotation: bytes, jpeg: bytes) -> tuple[bytes, Objects]:
    """Returns the image, and names, boxes and difficulty of its objects.

    Boxes without area are left out: BCCD has two of 4,888.
    """
    names, boxes, difficult = [], [], []
    try:
        root = ElementTree.fromstring(annotation)
        size = [float(root.findtext(f"size/{k}", "")) for k in ("height", "width")]
        for item in root.iter("object"):
            ends = [
                float(item.findtext(f"bndbox/{end}", ""))
                for end in ("ymin", "xmin", "ymax", "xmax")
            ]
            if ends[0] < ends[2] and ends[1] < ends[3]:
                names.append(item.findtext("name", ""))
                boxes.append(
                    [end / side for end, side in zip(ends, size * 2, strict=True)]
                )
                difficult.append(item.findtext("difficult") == "1")
    except (ElementTree.ParseError, ValueError, ZeroDivisionError) as error:
        raise ValueError(
            "An annotation must be XML with the size of the image and a bndbox for "
            f"every object. Received: Annotations/{image}.xml: {error}. Correct it, or "
            "fetch the data again."
        ) from error
    return jpeg, (names, boxes, difficult)


def _image(jpeg: bytes, objects: Objects, classes: list[str]) -> Image:
    names, boxes, difficult = objects
    return Image(
        jpeg,
        np.reshape(np.array(boxes, "float32"), (-1, 4)),
        np.array([1 + classes.index(name) for name in names], "int32"),
        np.array(difficult, "bool"),
    )


def _files(path: Path) -> Iterator[tuple[str, bytes]]:
    """Yields the files of an archive that belong to a data set."""
    if not path.is_file():
        raise FileNotFoundError(
            f"--data must be a file or of {list(SOURCES)}. Received: --data {path}, "
            "which is not a file. Check the path."
        )
    try:
        yield from (_zip(path) if zipfile.is_zipfile(path) else _tar(path))
    except _BROKEN as error:
        reason = " ".join(str(error).split())
        raise ValueError(
            "--data must be a whole .tar, .tar.gz, .tar.xz or .zip file. Received: "
            f"{path}: {reason}. Fetch it again."
        ) from error


def _zip(path: Path) -> Iterable[tuple[str, bytes]]:
    with zipfile.ZipFile(path) as archive:
        for name in filter(_belongs, archive.namelist()):
            yield name, archive.read(name)


def _tar(path: Path) -> Iterable[tuple[str, bytes]]:
    with tarfile.open(path) as archive:
        for member in archive:
            if member.isfile() and _belongs(member.name):
                file = archive.extractfile(member)
                if file is not None:
                    yield member.name, file.read()


def _belongs(name: str) -> bool:
    return name.endswith((".xml", ".jpg", ".txt"))
