"""How long is a training step, and what do the layers of keras_mp save?

    python step_time.py --steps 60 --units 512

Prints a Markdown table: the median step in FP32, and in FP16 with FP32 masters and loss
scaling, with the layers of Keras and with those of keras_mp. In each round the models
train one after the other on the same batch, so that what else the machine does slows
all of them. Flags that are not listed here are those of train.py.
"""

import argparse
import itertools
import os
import statistics
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import keras
import tensorflow as tf
from experiments.flags import parse
from experiments.precision import PRECISIONS
from translation import batches, data, decoder, encoder, train
from translation.model import Translator
from translation.vocabulary import Vocabulary

import keras_mp

RUNS = {
    "FP32": ("fp32", keras_mp.layers),
    "FP16, Keras layers": ("mixed", keras.layers),
    "FP16, keras_mp layers": ("mixed", keras_mp.layers),
}


def make_batches(args: argparse.Namespace, count: int) -> tuple[list[Any], int, int]:
    """Returns `count` batches padded to the longest, and the vocabularies' sizes."""
    max_source, max_target = args.buckets[-1]
    pairs = data.load_pairs(args.data)
    tokens = data.prepare(pairs, max_source, max_target, args.overlong, args.lowercase)
    source = Vocabulary((english for english, _ in tokens), args.source_vocab)
    target = Vocabulary((french for _, french in tokens), args.target_vocab)
    examples = batches.encode(tokens, source, target, args.reverse)
    dataset = batches.training_batches(examples, args.buckets[-1:], args.batch, seed=0)
    return list(itertools.islice(dataset, count)), len(source), len(target)


def make_model(args: argparse.Namespace, package: Any, *sizes: int) -> Translator:
    """Returns the compiled model, with the LSTMs and Denses of `package`."""
    keras.utils.set_random_seed(0)
    precision = PRECISIONS[args.precision]
    keras.config.set_dtype_policy(precision.dtype_policy)
    optimizer = train.make_optimizer(args)
    if precision.wrap_options is not None:
        optimizer = keras_mp.wrap(optimizer, **precision.wrap_options)
    layers = SimpleNamespace(layers=package)
    with (
        mock.patch.object(encoder, "keras_mp", layers),
        mock.patch.object(decoder, "keras_mp", layers),
    ):
        return train.make_model(args, optimizer, *sizes)


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=30)
    options, flags = parser.parse_known_args(argv)
    models = {}
    for name, (precision, package) in RUNS.items():
        args = parse(train.HERE, ["--precision", precision, *flags], train.CHOICES)
        if not models:
            steps, *sizes = make_batches(args, options.steps + 1)
        models[name] = make_model(args, package, *sizes)
    times = {name: [] for name in models}
    for batch in steps:
        for name, model in models.items():
            start = time.perf_counter()
            model.train_on_batch(*batch)
            times[name].append(time.perf_counter() - start)
    # The first step traces.
    medians = {name: statistics.median(t[1:]) for name, t in times.items()}
    devices = tf.config.list_physical_devices("GPU") or f"{os.cpu_count()} CPU cores"
    print(f"{devices}; batch {args.batch}, {args.units} units, ", end="")
    print(f"median of {options.steps} steps.\n")
    print("| | step, ms | / FP32 |\n|---|---|---|")
    for name, seconds in medians.items():
        ratio = seconds / medians["FP32"]
        print(f"| {name} | {seconds * 1e3:.0f} | {ratio:.2f} |")


if __name__ == "__main__":
    main()
