"""FID: how far generated images are from real ones, in the features of a classifier."""

from pathlib import Path

import keras
import numpy as np
import tensorflow as tf
from image_generation.model import discriminator

# The channels of the first convolution.
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
    first, second = np.cov(one, rowvar=False), np.cov(other, rowvar=False)
    # C1 C2 has the eigenvalues of the symmetric matrix C1^(1/2) C2 C1^(1/2).
    values, vectors = np.linalg.eigh(first)
    root = vectors * np.sqrt(values.clip(0)) @ vectors.T
    products = np.linalg.eigvalsh(root @ second @ root).clip(0)
    trace = np.trace(first) + np.trace(second) - 2 * np.sqrt(products).sum()
    return float(means @ means + trace)


class Judge:
    """A classifier of real images, in whose features images are compared.

    It has the convolutions of a discriminator, and computes in FP32.

    Args:
        size: of the images.
        classes: the number of their labels.
    """

    def __init__(self, size: int, classes: int) -> None:
        keras.config.set_dtype_policy("float32")
        keras.utils.set_random_seed(0)
        self.model = discriminator(size, WIDTH, outputs=classes)
        self.model.compile(
            optimizer=keras.optimizers.Adam(1e-3),
            loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            metrics=["accuracy"],
            jit_compile=False,
        )
        # The inputs of the last layer, after batch normalization.
        self.features = keras.Model(self.model.inputs, self.model.layers[-2].output)

    def train_or_load(self, path: Path, batches: tf.data.Dataset, steps: int) -> None:
        """Trains it once and keeps its weights, so that all runs have the same judge.

        Args:
            path: of the file of its weights.
            batches: endless, of images from -1 to 1 and labels.
            steps: how long it is trained.
        """
        if path.is_file():
            # The file has the state of the optimizer, too.
            self.model.optimizer.build(self.model.trainable_variables)
            self.model.load_weights(path)
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        self.model.fit(batches, steps_per_epoch=steps, shuffle=False, verbose=2)
        self.model.save_weights(path)

    def accuracy(self, batches: tf.data.Dataset) -> float:
        """Returns the share of the images whose label it finds."""
        return self.model.evaluate(batches, verbose=0, return_dict=True)["accuracy"]

    def distance(self, one: tf.data.Dataset, other: tf.data.Dataset) -> float:
        """Returns the FID of two sets of images, batches with numbers from -1 to 1."""
        found = (self.features.predict(images, verbose=0) for images in (one, other))
        return frechet_distance(*found)
