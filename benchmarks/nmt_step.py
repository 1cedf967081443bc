"""How long is a training step of examples/nmt_seq2seq, and what do its layers save?

`python benchmarks/nmt_step.py` prints a Markdown table: the median step of the preset
`demo` in FP32, and in FP16 with FP32 masters and loss scaling, with the layers of Keras
and with those of keras_mp. In each round the models train one after the other on the
same batch, so that what else the machine does slows all of them.
"""

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ.setdefault("KERAS_BACKEND", "tensorflow")

import argparse
import itertools
import statistics
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import keras

import keras_mp

EXAMPLE = Path(__file__).parents[1] / "examples" / "nmt_seq2seq"
sys.path.insert(0, str(EXAMPLE))

import batches
import data
import decoder
import encoder
import train
from gemm import processor
from model import Translator
from vocabulary import Vocabulary

RUNS = {
    "FP32": ("fp32", keras_mp.layers),
    "FP16, Keras layers": ("mixed", keras.layers),
    "FP16, keras_mp layers": ("mixed", keras_mp.layers),
}


def make_batches(args, count):
    """Returns `count` batches of the longest sentences, and the vocabularies' sizes."""
    max_source, max_target = args.buckets[-1]
    pairs = data.load_pairs(args.data)
    tokens = data.prepare(pairs, max_source, max_target, args.overlong, args.lowercase)
    source = Vocabulary((english for english, _ in tokens), args.source_vocab)
    target = Vocabulary((french for _, french in tokens), args.target_vocab)
    examples = batches.encode(tokens, source, target, args.reverse)
    dataset = batches.training_batches(examples, args.buckets, args.batch, seed=0)
    long = (b for b in dataset if b[0][0].shape[1] == max_source)
    return list(itertools.islice(long, count)), len(source), len(target)


def make_model(args, package, source_size, target_size):
    """Returns the compiled model, with the LSTMs and Denses of `package`."""
    keras.utils.set_random_seed(0)
    keras.config.set_dtype_policy("float32" if args.precision == "fp32" else "float16")
    layers = SimpleNamespace(layers=package)
    with (
        mock.patch.object(encoder, "keras_mp", layers),
        mock.patch.object(decoder, "keras_mp", layers),
    ):
        model = Translator(
            source_size,
            target_size,
            units=args.units,
            num_layers=args.layers,
            bidirectional=args.bidirectional,
            attention=args.attention,
            dropout=args.dropout,
            output_bias=args.output_bias,
            sampled_softmax=args.sampled_softmax,
            loss=args.loss,
        )
        model.build()
    model.compile(optimizer=train.make_optimizer(args), jit_compile=False)
    return model


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=30)
    options, flags = parser.parse_known_args()
    models = {}
    for name, (precision, package) in RUNS.items():
        args = train.parse_args(["--precision", precision, *flags])
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
    print(f"{processor()}, {os.cpu_count()} threads; preset {args.preset}, ", end="")
    print(f"batch {args.batch}, {args.units} units, median of {len(steps) - 1} steps.\n")
    print("| | step, ms | / FP32 |\n|---|---|---|")
    for name, seconds in medians.items():
        ratio = seconds / medians["FP32"]
        print(f"| {name} | {seconds * 1e3:.0f} | {ratio:.2f} |")


if __name__ == "__main__":
    main()
