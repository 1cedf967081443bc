"""Trains a DCGAN, and measures how far its images are from real ones.

    python examples/image_generation/train.py --precision mixed
    python examples/image_generation/train.py --preset paper --data FOLDER_OF_FACES

A preset is a JSON file in presets/, and every value in it is also a flag.
"""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import keras
import numpy as np
from experiments.files import write_whole
from experiments.run import Run
from image_generation.cifar10 import load
from image_generation.data import batches_of_folder, batches_of_images, scaled
from image_generation.distance import Judge
from image_generation.gan import GAN
from image_generation.model import discriminator, generator

import keras_mp

HERE = Path(__file__).resolve().parent
# So many images are kept of every run, from the same noise.
SAMPLE = 64


def optimizers(run: Run) -> tuple[Any, Any]:
    """Returns those of the generator and of the discriminator."""
    first, second = (
        keras.optimizers.Adam(run.args.learning_rate, beta_1=0.5) for _ in range(2)
    )
    first = run.wrap(first)
    if isinstance(first, keras_mp.FP32MasterOptimizer):
        # One loss scale for both: they take their steps together.
        second = keras_mp.wrap(second, loss_scale=first)
    return first, second


def generate(model: GAN, count: int) -> np.ndarray:
    """Returns images, from -1 to 1, of noise that is the same in every run."""
    shape = (count, *model.generator.input_shape[1:])
    noise = np.random.default_rng(0).standard_normal(shape, "float32")
    return model.generator.predict(noise, batch_size=250, verbose=0).astype("float32")


def keep_sample(images: np.ndarray, path: Path) -> None:
    """Writes images, not chosen, as numbers from 0 to 255."""
    sample = np.round((images[:SAMPLE] + 1) * 127.5).astype("uint8")
    write_whole(path, lambda part: np.save(part.open("wb"), sample))


def main(argv: Sequence[str] | None = None) -> dict[str, Any]:
    run = Run(HERE, argv)
    args = run.args
    if args.judged:
        train, test = load(args.data)
        batches = batches_of_images(train[0], args.batch, args.seed)
    else:
        batches = batches_of_folder(args.data, args.size, args.batch, args.seed)

    keras.config.set_dtype_policy(run.dtype_policy)  # how numbers are stored
    model = GAN(
        generator(args.size, args.width, args.noise),
        discriminator(args.size, args.width),
    )
    model.compile(*optimizers(run))  # keras_mp.wrap

    run.fit(model, batches)
    images = generate(model, max(args.judged, SAMPLE))
    keep_sample(images, run.out / "sample.npy")
    if not args.judged:
        return run.finish({})
    judge = Judge(train, test, Path(args.judge), args.judge_epochs)
    real = scaled(test[0][: args.judged]).numpy()
    return run.finish(
        {
            "FID": judge.distance(real, images),
            "FID of training images": judge.distance(
                real, scaled(train[0][: args.judged]).numpy()
            ),
            "accuracy of the judge": judge.accuracy,
        }
    )


if __name__ == "__main__":
    main()
