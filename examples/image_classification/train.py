"""Trains a network that classifies images in the precision that you name.

    python train.py --network alexnet --precision mixed

A preset is a JSON file in presets/, and every value in it is also a flag: --batch 32,
--steps 2000. In recipes/ are the values of it that a network has of its own.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import keras
from experiments.run import Run
from image_classification import data
from image_classification.model import NETWORKS, build

import keras_mp

HERE = Path(__file__).resolve().parent
# They are not decayed, as in the public recipes.
NOT_DECAYED = ["bias", "gamma", "beta"]


def with_recipe(argv: Sequence[str] | None) -> list[str]:
    """Puts the flags of the network's recipe before those given, which prevail."""
    argv = sys.argv[1:] if argv is None else list(argv)
    first = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    first.add_argument("--preset", default="demo")
    first.add_argument("--network", choices=NETWORKS, default="resnet-50")
    known, _ = first.parse_known_args(argv)
    recipes = HERE / "recipes" / f"{known.preset}.json"
    # Run names the presets there are.
    recipe = json.loads(recipes.read_text()) if recipes.is_file() else {}
    values = recipe.get(known.network, {}).items()
    return [f"--{name.replace('_', '-')}={value}" for name, value in values] + argv


def make_optimizer(args: argparse.Namespace) -> keras.optimizers.Optimizer:
    """Returns SGD with momentum, weight decay and a schedule of steps."""
    rate = keras.optimizers.schedules.ExponentialDecay(
        args.learning_rate, args.decay_every, args.decay_factor, staircase=True
    )
    # The public recipes add the decay to the gradient, and momentum to both; Keras
    # decays the weights by themselves.
    decay = args.weight_decay / (1 - args.momentum)
    sgd = keras.optimizers.SGD(rate, momentum=args.momentum, weight_decay=decay)
    sgd.exclude_from_weight_decay(var_names=NOT_DECAYED)
    return sgd


def main(argv: Sequence[str] | None = None) -> dict[str, Any]:
    """Trains, evaluates, writes result.json and returns what it holds."""
    run = Run(HERE, with_recipe(argv), choices={"network": list(NETWORKS)})
    args = run.args

    # Data.
    images = data.load(args.data)
    cut = {"canvas": args.canvas, "crop": args.crop, "resize": args.resize}
    train = data.training_batches(images, batch=args.batch, seed=args.seed, **cut)
    test = data.test_batches(images, batch=args.batch, count=args.test_images, **cut)

    # Model. The dtype policy decides how its numbers are stored; a wrapped optimizer
    # has FP32 masters and scales the loss.
    keras.config.set_dtype_policy(run.dtype_policy)
    optimizer = make_optimizer(args)
    if run.wrap_options is not None:
        optimizer = keras_mp.wrap(optimizer, **run.wrap_options)
    model = build(
        args.network,
        image_size=args.crop,
        classes=images.classes,
        width=args.width,
        small_images=args.small_images,
    )
    top_1 = keras.metrics.SparseCategoricalAccuracy(name="top_1", dtype="float32")
    model.compile(optimizer=optimizer, metrics=[top_1], jit_compile=False)
    print(f"{args.network}: {model.count_params()} weights")

    # Training.
    log = run.fit(model, train, validation_data=test)

    # Results, of the central crop alone, as the paper's.
    return run.finish({"top-1": 100 * log[-1]["val_top_1"]})


if __name__ == "__main__":
    main()
