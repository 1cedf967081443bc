"""Images of blood cells (BCCD), cut into square crops."""

import tarfile
from pathlib import Path

import tensorflow as tf
from experiments.files import downloaded

COMMIT = "ec96fe4104e9bb329f0d263db95cf1edd8c09909"
URL = (
    "https://github.com/Shenggan/BCCD_Dataset/archive/"
    f"{COMMIT}/BCCD_Dataset-{COMMIT}.tar.gz"
)


def load(data: str) -> tuple[list[bytes], list[bytes]]:
    """Returns the training and the test images, as JPEG files.

    Args:
        data: path of an archive of the BCCD dataset, compressed or not, or "" for one
            that is downloaded.
    """
    path = Path(data) if data else downloaded(URL)
    if not path.is_file():
        raise ValueError(
            f"--data must name an archive of BCCD. Received: {data}, which does not "
            "exist. Check the path, or leave --data out to download it."
        )
    try:
        with tarfile.open(path) as archive:
            files = {
                member.name.rpartition("BCCD/")[2]: archive.extractfile(member).read()
                for member in archive
                if member.isfile() and member.name.endswith((".jpg", ".txt"))
            }
    except (tarfile.TarError, EOFError, OSError, ValueError) as error:
        raise _bad(path, f"an archive that cannot be read ({error})") from error
    train, test = (_images(path, files, split) for split in ("trainval", "test"))
    return train, test


def _images(path: Path, files: dict[str, bytes], split: str) -> list[bytes]:
    """Returns the images that a list of the archive names."""
    names = files.get(f"ImageSets/Main/{split}.txt", b"").decode().split()
    if not names:
        raise _bad(path, f"an archive without names in ImageSets/Main/{split}.txt")
    images = []
    for name in names:
        image = files.get(f"JPEGImages/{name}.jpg")
        if image is None:
            raise _bad(path, f"an archive without JPEGImages/{name}.jpg")
        try:
            tf.io.extract_jpeg_shape(image)
        except tf.errors.InvalidArgumentError as error:
            raise _bad(path, f"a broken JPEGImages/{name}.jpg") from error
        images.append(image)
    return images


def _bad(path: Path, reason: str) -> ValueError:
    return ValueError(
        "--data must name an archive of BCCD, with BCCD/JPEGImages and "
        f"BCCD/ImageSets/Main. Received: {path}, {reason}. Leave --data out to "
        "download it."
    )


def random_crops(
    images: list[bytes], size: int, batch: int, seed: int
) -> tf.data.Dataset:
    """Returns endless batches of random crops; each is its own target."""
    shuffled = _pixels(images).cache().shuffle(len(images), seed).repeat()
    seeds = tf.data.Dataset.random(seed).batch(2, drop_remainder=True)
    crops = tf.data.Dataset.zip(shuffled, seeds).map(
        lambda image, seed: tf.image.stateless_random_crop(image, (size, size, 3), seed)
    )
    return _batches(crops, batch)


def central_crops(images: list[bytes], size: int, batch: int) -> tf.data.Dataset:
    """Returns the centres of all images, each of them its own target."""
    crops = _pixels(images).map(
        lambda image: tf.image.resize_with_crop_or_pad(image, size, size)
    )
    return _batches(crops, batch).cache()


def _pixels(images: list[bytes]) -> tf.data.Dataset:
    files = tf.data.Dataset.from_tensor_slices(images)
    return files.map(lambda image: tf.io.decode_jpeg(image, channels=3))


def _batches(crops: tf.data.Dataset, batch: int) -> tf.data.Dataset:
    """Returns batches with numbers from 0 to 1."""
    scaled = crops.batch(batch).map(lambda x: tf.cast(x, tf.float32) / 255)
    return scaled.map(lambda x: (x, x)).prefetch(1)
