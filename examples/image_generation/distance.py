"""FID: how far generated images are from real ones, in the features of a classifier."""

from pathlib import Path

import keras
import numpy as np
from image_generation.cifar10 import Examples
from image_generation.data import scaled
from image_generation.model import discriminator

# The channels of the first convolution of the judge.
WIDTH = 32


def frechet_distance(one: np.ndarray, other: np.ndarray) -> float:
    """Returns the distance of two sets of features, taken as normally distributed.

    |m1 - m2|^2 + trace(C1 + C2 - 2 (C1 C2)^(1/2)), of means m and covariances C.

    Args:
        one, other: arrays of the shape (examples, features).

    Reference: Heusel et al., GANs Trained by a Two Time-Scale Update Rule, 2017.
    """
    one, other = one.astype("float64"), other.astype("float64")
    means = one.mean(axis=0) - other.mean(axis=0)
    covariances = np.cov(one, rowvar=False), np.cov(other, rowvar=False)
    # C1 C2 has the eigenvalues of the symmetric C1^(1/2) C2 C1^(1/2).
    values, vectors = np.linalg.eigh(covariances[0])
    root = vectors * np.sqrt(values.clip(0)) @ vectors.T
    products = np.linalg.eigvalsh(root @ covariances[1] @ root).clip(0)
    traces = np.trace(covariances[0]) + np.trace(covariances[1])
    return float(means @ means + traces - 2 * np.sqrt(products).sum())


class Judge:
    """A classifier of real images, by whose features images are compared.

    It has the convolutions of a discriminator, is trained in FP32 with one seed, and
    kept in a file, so that all runs have the same one.

    Args:
        train, test: images, uint8, and labels.
        path: the file of its weights, which is made if it is not there.
        epochs: how long it is trained.

    Attributes:
        accuracy: float, of `test`.
    """

    def __init__(
        self, train: Examples, test: Examples, path: Path, epochs: int
    ) -> None:
        keras.config.set_dtype_policy("float32")
        keras.utils.set_random_seed(0)
        images, labels = train
        classes = int(labels.max()) + 1
        model = discriminator(images.shape[1], WIDTH, outputs=classes)
        model.compile(
            optimizer=keras.optimizers.Adam(1e-3),
            loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            metrics=["accuracy"],
            jit_compile=False,
        )
        if path.is_file():
            model.load_weights(path)
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            model.fit(scaled(images), labels, batch_size=128, epochs=epochs, verbose=2)
            model.save_weights(path)
        images, labels = test
        _, self.accuracy = model.evaluate(
            scaled(images), labels, batch_size=500, verbose=0
        )
        self.features = keras.Model(model.inputs, model.layers[-2].output)

    def distance(self, real: np.ndarray, generated: np.ndarray) -> float:
        """Returns the FID of generated images; both are from -1 to 1."""
        found = [
            self.features.predict(images, batch_size=500, verbose=0)
            for images in (real, generated)
        ]
        return frechet_distance(*found)
