"""Trains bigLSTM in the precision that you name.

    python train.py --preset demo --precision mixed

A preset is a JSON file in presets/, and every value in it is also a flag: --units 512,
--steps 2000. What each precision means is told in the README.
"""

import argparse
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import keras
import numpy as np
from experiments.run import Run
from keras import ops
from language_model.batches import held_out_batch, training_batches
from language_model.data import TOKENIZERS, Vocabulary, load_sentences, split
from language_model.model import build, count_weights
from language_model.optimizer import LSTMClippingAdagrad

import keras_mp

HERE = Path(__file__).resolve().parent
# The words over which the loss "share" is a mean, those of 51 workers.
SHARED_WORDS = 32_768


class Perplexity(keras.metrics.Mean):
    """exp(mean cross entropy of a word), the ends of sentences included."""

    def __init__(self) -> None:
        super().__init__("perplexity", dtype="float32")

    def update_state(
        self, targets: Any, entropy: Any, sample_weight: Any = None
    ) -> None:
        """Adds the cross entropies [batch, time], which the model has computed."""
        super().update_state(entropy)

    def result(self) -> Any:
        return ops.exp(super().result())


def sum_over_time(targets: Any, entropy: Any) -> Any:
    """Returns the cross entropy of each text, to be averaged over the batch."""
    return ops.sum(entropy, axis=-1)


def mean_over_time(targets: Any, entropy: Any) -> Any:
    """Returns the mean cross entropy of a word of each text."""
    return ops.mean(entropy, axis=-1)


def share(targets: Any, entropy: Any) -> Any:
    """Returns what each text adds to a mean over `SHARED_WORDS` words of many workers.

    Keras averages over the texts of this worker, where that mean takes their sum.
    """
    texts = ops.cast(ops.shape(entropy)[0], "float32")
    return sum_over_time(targets, entropy) * (texts / SHARED_WORDS)


LOSSES = {"sum": sum_over_time, "mean": mean_over_time, "share": share}
CHOICES = {"tokenizer": list(TOKENIZERS), "loss": list(LOSSES)}


def load(args: argparse.Namespace) -> tuple[np.ndarray, np.ndarray]:
    """Returns the training and the held-out text as ids [words]."""
    train, test = split(load_sentences(args.data), args.held_out, args.seed)
    tokenize = TOKENIZERS[args.tokenizer]
    vocabulary = Vocabulary(map(tokenize, train), args.words)
    return tuple(vocabulary.encode(map(tokenize, text)) for text in (train, test))


def check_memory(args: argparse.Namespace) -> None:
    """Refuses a model whose numbers do not fit into the memory of the machine.

    A weight has a master, except in FP32 and plain FP16, and a sum of Adagrad.
    """
    sizes = {"fp32": 4 + 4, "plain-fp16": 2 + 2}
    weights = count_weights(
        words=args.words, width=args.width, units=args.units, num_layers=args.layers
    )
    needed = sum(weights.values()) * sizes.get(args.precision, 2 + 4 + 4)
    found = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if needed > found:
        raise MemoryError(
            "Weights, masters and the sums of Adagrad must fit into memory. Received: "
            f"{weights}, which need {needed / 1e9:.1f} GB, on a machine of "
            f"{found / 1e9:.1f} GB. Take a larger machine, or fewer --words or --units."
        )


def make_model(
    args: argparse.Namespace, wrap_options: Mapping[str, Any] | None
) -> keras.Model:
    """Returns the compiled model that the flags describe.

    Args:
        args: the flags.
        wrap_options: as in `Run`.
    """
    model = build(
        words=args.words,
        width=args.width,
        units=args.units,
        num_layers=args.layers,
        dropout=args.dropout,
        sampled=args.sampled,
        batch=args.batch,
        carry=args.carry,
        seed=args.seed,
    )
    optimizer = LSTMClippingAdagrad(
        args.learning_rate,
        args.lstm_clipnorm,
        initial_accumulator_value=args.initial_accumulator,
        # Of the unit of the sums: a loss of another unit trains the same weights.
        epsilon=1e-7 * args.initial_accumulator,
    )
    if wrap_options is not None:
        optimizer = keras_mp.wrap(optimizer, **wrap_options)
    model.compile(
        optimizer=optimizer,
        loss=LOSSES[args.loss],
        metrics=[Perplexity()],
        jit_compile=False,
    )
    return model


def main(argv: Sequence[str] | None = None) -> dict[str, Any]:
    """Trains, evaluates, writes result.json and returns what it holds."""
    run = Run(HERE, argv, CHOICES)
    args = run.args
    check_memory(args)
    train, test = load(args)

    # The dtype policy decides how numbers are stored; a wrapped optimizer has FP32
    # masters and scales the loss.
    keras.config.set_dtype_policy(run.dtype_policy)
    model = make_model(args, run.wrap_options)
    print(f"{len(train)} training and {len(test)} held-out words, ", end="")
    print(f"{model.count_params()} weights")

    log = run.fit(
        model,
        training_batches(train, args.batch, args.unrolled),
        validation_data=held_out_batch(test, args.batch),
    )
    return run.finish({"held-out perplexity": log[-1]["val_perplexity"]})


if __name__ == "__main__":
    main()
