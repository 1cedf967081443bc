"""Pre-trains a classifier of CIFAR-10, or fine-tunes it at a small learning rate.

    python examples/where_it_breaks/fine_tuning/train.py \
        --preset pretraining --precision fp32
    python examples/where_it_breaks/fine_tuning/train.py --precision mixed

A preset is a JSON file in presets/, and every value in it is also a flag.
"""

import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import keras
from experiments.run import Run
from image_classification.data import Images, load, test_batches, training_batches
from where_it_breaks.fine_tuning.model import classifier
from where_it_breaks.fine_tuning.rounded import RoundWeights
from where_it_breaks.numbers import inspected, share_unmoved, weights_of

import keras_mp

HERE = Path(__file__).resolve().parent
WEIGHTS = "model.weights.h5"
SIZE = 32


def only(images: Images, part: Sequence[int]) -> Images:
    """Returns the images whose training images are those from one index to another."""
    first, last = part
    count = len(images.train)
    if not 0 <= first < last <= count:
        raise ValueError(
            "--images must be two indices of training images, as in [0, 1000]. "
            f"Received: {list(part)}, of {count} images. Choose smaller ones."
        )
    return replace(images, train=images.train.skip(first).take(last - first))


def load_start(model: keras.Model, start: str) -> None:
    """Loads the weights of a pre-trained model, if there is one to start from."""
    if not start:
        return
    path = Path(start)
    if not path.is_file():
        raise ValueError(
            "--start must name the weights of a pre-trained model. Received: "
            f"{start}, which does not exist. Make them with train.py --preset "
            f"pretraining --precision fp32, which writes {WEIGHTS} into its --out."
        )
    model.load_weights(path)


def main(argv: Sequence[str] | None = None) -> dict[str, Any]:
    run = Run(HERE, argv, choices={"optimizer": ["adam", "sgd"]})
    args = run.args
    if args.round_weights and args.precision != "fp32":
        raise ValueError(
            "--round-weights is for FP32 weights. Received: --precision "
            f"{args.precision}. Choose --precision fp32, or leave it out."
        )
    images = only(load(args.data), args.images)
    pixels = {"canvas": SIZE, "crop": SIZE, "resize": False}
    batches = training_batches(images, batch=args.batch, seed=args.seed, **pixels)
    test = test_batches(images, batch=args.test_batch, count=args.test_images, **pixels)

    keras.config.set_dtype_policy(run.dtype_policy)  # how numbers are stored
    model = classifier(args.width, images.classes)
    load_start(model, args.start)
    optimizer = {
        "adam": keras.optimizers.Adam(args.learning_rate),
        "sgd": keras.optimizers.SGD(args.learning_rate, momentum=0.9),
    }[args.optimizer]
    if run.wrap_options is not None:
        optimizer = keras_mp.wrap(optimizer, **run.wrap_options)
    model.compile(
        optimizer=optimizer,
        # Keras casts the logits to FP32 before it computes a loss.
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
        jit_compile=False,
    )

    numbers = inspected(model, *next(iter(batches)))
    before = weights_of(model)
    callbacks = [RoundWeights()] if args.round_weights else []
    log = run.fit(model, batches, test, callbacks)
    model.save_weights(run.out / WEIGHTS)
    return run.finish(
        {
            "loss": log[-1]["val_loss"],
            "accuracy": log[-1]["val_accuracy"],
            "unmoved": share_unmoved(before, weights_of(model)),
            **numbers,
        }
    )


if __name__ == "__main__":
    main()
