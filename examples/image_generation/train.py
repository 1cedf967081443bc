"""Trains a DCGAN, and measures how far its images are from real ones.

    python examples/image_generation/train.py --precision mixed
    python examples/image_generation/train.py --preset paper --data FOLDER

The folder has pictures of any size in train/faces, and some in val/faces.
A preset is a JSON file in presets/, and every value in it is also a flag.
"""

import sys
from argparse import Namespace
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import keras
import numpy as np
import tensorflow as tf
from experiments.files import write_whole
from experiments.run import Run
from image_classification.data import Images, load, test_batches, training_batches
from image_generation.gan import GAN
from image_generation.judge import Judge
from image_generation.model import discriminator, generator

import keras_mp

HERE = Path(__file__).resolve().parent
# So many images are kept of every run.
SAMPLE = 64


def optimizers(run: Run) -> tuple[Any, Any]:
    """Returns those of the generator and of the discriminator."""
    first, second = (
        keras.optimizers.Adam(run.args.learning_rate, beta_1=0.5) for _ in range(2)
    )
    if run.wrap_options is not None:
        first = keras_mp.wrap(first, **run.wrap_options)
        # One loss scale for both: they take their steps together.
        shared = {**run.wrap_options, "loss_scale": first}
        second = keras_mp.wrap(second, **shared)
    return first, second


def scaled(images: Any, labels: Any = None) -> Any:
    """Returns images with numbers from -1 to 1, and their labels, if they have some."""
    images = keras.ops.cast(images, "float32") / 127.5 - 1
    return images if labels is None else (images, labels)


def generate(model: GAN, count: int) -> np.ndarray:
    """Returns images, from 0 to 255, of noise that is the same in every run."""
    shape = (count, *model.generator.input_shape[1:])
    noise = np.random.default_rng(0).standard_normal(shape, "float32")
    images = model.generator.predict(noise, batch_size=250, verbose=0)
    return np.round((images.astype("float32") + 1) * 127.5).astype("uint8")


def keep(images: np.ndarray, path: Path) -> None:
    """Writes images for compare.py."""

    def write(part: Path) -> None:
        with part.open("wb") as file:  # np.savez would give a path another suffix
            np.savez(file, images=images)

    write_whole(path, write)


def judged(args: Namespace, images: Images, generated: np.ndarray) -> dict[str, float]:
    """Returns how far images are from real ones, which the generator has not seen."""
    pixels = {"canvas": args.size, "crop": args.size, "resize": args.resize}
    train = training_batches(images, batch=128, seed=0, **pixels).map(scaled)
    count = len(generated)
    test, seen = (
        test_batches(replace(images, test=part), batch=250, count=count, **pixels)
        for part in (images.test, images.train)
    )
    judge = Judge(args.size, images.classes)
    judge.train_or_load(Path(args.judge), train, args.judge_steps)
    real = test.map(scaled)
    fakes = tf.data.Dataset.from_tensor_slices(generated).batch(250).map(scaled)
    return {
        "FID": judge.distance(real, fakes),
        # What is not zero for want of more images.
        "FID of training images": judge.distance(real, seen.map(scaled)),
        "accuracy of the judge": judge.accuracy(real),
    }


def main(argv: Sequence[str] | None = None) -> dict[str, Any]:
    run = Run(HERE, argv)
    args = run.args
    images = load(args.data)
    pixels = {"canvas": args.size, "crop": args.size, "resize": args.resize}
    batches = training_batches(images, batch=args.batch, seed=args.seed, **pixels)

    keras.config.set_dtype_policy(run.dtype_policy)  # how numbers are stored
    model = GAN(
        generator(args.size, args.width, args.noise),
        discriminator(args.size, args.width),
    )
    model.compile(*optimizers(run))
    run.fit(model, batches.map(lambda x, label: scaled(x)))

    generated = generate(model, args.generated)
    keep(generated[:SAMPLE], run.out / "sample.npz")
    # Faces have no labels to train a judge with.
    return run.finish(judged(args, images, generated) if images.classes > 1 else {})


if __name__ == "__main__":
    main()
