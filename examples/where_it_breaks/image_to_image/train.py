"""Trains an autoencoder of blood-cell images, whose loss is a mean over all pixels.

    python examples/where_it_breaks/image_to_image/train.py --precision mixed

A preset is a JSON file in presets/, and every value in it is also a flag.
"""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import keras
from experiments.run import Run
from where_it_breaks.image_to_image import data
from where_it_breaks.image_to_image.model import autoencoder
from where_it_breaks.numbers import inspected

import keras_mp

HERE = Path(__file__).resolve().parent


def main(argv: Sequence[str] | None = None) -> dict[str, Any]:
    run = Run(HERE, argv)
    args = run.args
    train, test = data.load(args.data)
    batches = data.random_crops(train, args.size, args.batch, args.seed)
    held_out = data.central_crops(test, args.size, args.test_batch)

    keras.config.set_dtype_policy(run.dtype_policy)  # how numbers are stored
    model = autoencoder(args.size, args.width)
    optimizer = keras.optimizers.Adam(args.learning_rate)
    if run.wrap_options is not None:
        optimizer = keras_mp.wrap(optimizer, **run.wrap_options)
    # A mean over batch x height x width x channels, by which each gradient is divided.
    model.compile(optimizer=optimizer, loss="mse", jit_compile=False)

    log = run.fit(model, batches, validation_data=held_out)
    numbers = inspected(model, *next(iter(batches)))
    return run.finish({"error": log[-1]["val_loss"], **numbers})


if __name__ == "__main__":
    main()
