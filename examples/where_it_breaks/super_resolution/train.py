"""Trains a network to enlarge images; its loss is a mean over all pixels.

    python examples/where_it_breaks/super_resolution/train.py --precision mixed

A preset is a JSON file in presets/, and every value in it is also a flag.
"""

import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import keras
import tensorflow as tf
from experiments.run import Run
from where_it_breaks.image_to_image import data
from where_it_breaks.numbers import inspected
from where_it_breaks.super_resolution.model import espcn

import keras_mp

HERE = Path(__file__).resolve().parent


def with_small_images(batches: tf.data.Dataset, factor: int) -> tf.data.Dataset:
    """Returns gray images, `factor` times smaller, and those that they were."""

    def pair(images: Any, _: Any) -> tuple[Any, Any]:
        gray = tf.image.rgb_to_grayscale(images)
        return tf.nn.avg_pool2d(gray, factor, factor, "VALID"), gray

    return batches.map(pair)


def main(argv: Sequence[str] | None = None) -> dict[str, Any]:
    run = Run(HERE, argv)
    args = run.args
    size = args.size * args.factor
    train, test = data.load(args.data)
    batches, held_out = (
        with_small_images(crops, args.factor)
        for crops in (
            data.random_crops(train, size, args.batch, args.seed),
            data.central_crops(test, size, args.test_batch),
        )
    )

    keras.config.set_dtype_policy(run.dtype_policy)  # how numbers are stored
    model = espcn(args.size, args.factor)
    optimizer = keras.optimizers.Adam(args.learning_rate)
    if run.wrap_options is not None:
        optimizer = keras_mp.wrap(optimizer, **run.wrap_options)
    # A mean over batch x height x width, by which each gradient is divided.
    model.compile(optimizer=optimizer, loss="mse", jit_compile=False)

    log = run.fit(model, batches, validation_data=held_out)
    numbers = inspected(model, *next(iter(batches)))
    # In decibels, of pixels from 0 to 1.
    ratio = -10 * math.log10(log[-1]["val_loss"])
    return run.finish({"PSNR": ratio, **numbers})


if __name__ == "__main__":
    main()
