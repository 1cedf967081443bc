"""CIFAR-10, downloaded by Keras or from a file of JPEG images."""

import io
import lzma
import zipfile
from itertools import pairwise
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

Examples = tuple[np.ndarray, np.ndarray]


def load(data: str) -> tuple[Examples, Examples]:
    """Returns the training and the test examples: images, uint8, and labels.

    Args:
        data: "" for `keras.datasets.cifar10`, or the path of an .npz.xz file with
            `jpeg`, all images after each other as bytes; `offsets`, where each begins,
            and the end of the last one; `label`; and `is_train`.
    """
    if not data:
        train, test = keras.datasets.cifar10.load_data()
        return (train[0], train[1][:, 0]), (test[0], test[1][:, 0])
    path = Path(data)
    if not path.is_file():
        raise ValueError(
            f"--data must name a file with CIFAR-10. Received: {data}, which does not "
            "exist. Check the path, or leave --data out to download it."
        )
    try:
        with lzma.open(path) as file, np.load(io.BytesIO(file.read())) as arrays:
            content, offsets = arrays["jpeg"].tobytes(), arrays["offsets"]
            labels, is_train = arrays["label"], arrays["is_train"].astype(bool)
        images = np.stack(
            [
                tf.io.decode_jpeg(content[begin:end], channels=3).numpy()
                for begin, end in pairwise(offsets)
            ]
        )
        train = images[is_train], labels[is_train]
        test = images[~is_train], labels[~is_train]
    except (
        *(EOFError, IndexError, KeyError, OSError, ValueError),
        *(lzma.LZMAError, zipfile.BadZipFile, tf.errors.InvalidArgumentError),
    ) as error:
        raise ValueError(
            "--data must be an .npz.xz file with the arrays jpeg, offsets, label and "
            f"is_train. Received: {path}, which cannot be read ({error}). Leave --data "
            "out to download CIFAR-10."
        ) from error
    return train, test
