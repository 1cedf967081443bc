"""Trains ResNet-9 on CIFAR-10 until it is about as good as it gets at this size.

    python examples/image_classification/converged/train.py --precision mixed

A preset is a JSON file in presets/, and every value in it is also a flag.
"""

import sys
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import keras
from experiments.run import Run
from image_classification.converged.model import resnet9
from image_classification.data import load, test_batches, training_batches
from image_classification.train import NOT_DECAYED

import keras_mp

HERE = Path(__file__).resolve().parent
# Four black pixels on each side of an image of 32.
PIXELS = {"canvas": 40, "crop": 32, "resize": False}


def one_cycle(args: Namespace) -> keras.optimizers.schedules.LearningRateSchedule:
    """Returns a rate that rises for `warm_up` steps, and falls to 0 until the last."""
    return keras.optimizers.schedules.CosineDecay(
        0.0,
        args.steps - args.warm_up,
        warmup_target=args.learning_rate,
        warmup_steps=args.warm_up,
    )


def main(argv: Sequence[str] | None = None) -> dict[str, Any]:
    """Trains, evaluates, writes result.json and returns what it holds."""
    run = Run(HERE, argv)
    args = run.args
    images = load(args.data)
    train = training_batches(images, batch=args.batch, seed=args.seed, **PIXELS)
    test = test_batches(images, batch=500, count=args.test_images, **PIXELS)

    # The dtype policy decides how numbers are stored; a wrapped optimizer has FP32
    # masters and scales the loss.
    keras.config.set_dtype_policy(run.dtype_policy)
    # As train.py of the other networks: a weight shrinks as in the public recipes.
    decay = args.weight_decay / (1 - args.momentum)
    optimizer = keras.optimizers.SGD(
        one_cycle(args), momentum=args.momentum, nesterov=True, weight_decay=decay
    )
    optimizer.exclude_from_weight_decay(var_names=NOT_DECAYED)
    if run.wrap_options is not None:
        optimizer = keras_mp.wrap(optimizer, **run.wrap_options)
    model = resnet9(images.classes, args.width)
    top_1 = keras.metrics.SparseCategoricalAccuracy(name="top_1", dtype="float32")
    model.compile(optimizer=optimizer, metrics=[top_1], jit_compile=False)
    print(f"{model.count_params()} weights")

    log = run.fit(model, train, validation_data=test)
    return run.finish({"top-1": 100 * log[-1]["val_top_1"]})


if __name__ == "__main__":
    main()
