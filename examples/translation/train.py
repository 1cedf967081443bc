"""Trains an English-French translator in the precision that you name.

    python train.py --preset demo --precision mixed

A preset is a JSON file in presets/, and every value in it is also a flag: --units 512,
--steps 2000, --no-lowercase. What each precision means is told in the README.
"""

import argparse
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import keras
from experiments.files import write_json
from experiments.log import Row
from experiments.run import Run
from translation.batches import encode, held_out_batches, training_batches
from translation.data import load_pairs, prepare, split
from translation.decoding import translate
from translation.evaluation import bleu
from translation.model import Translator
from translation.schedules import DecayOnWorse, luong234
from translation.strategies import (
    STRATEGIES,
    check_all_begin_at,
    fit,
    make_strategy,
    worker_index,
)
from translation.vocabulary import Vocabulary, detokenize

import keras_mp

HERE = Path(__file__).resolve().parent
CHOICES = {
    "overlong": ["drop", "truncate"],
    "attention": ["luong", "additive"],
    "loss": ["sum", "mean"],
    "decay": ["none", "luong234", "on_worse"],
    "strategy": list(STRATEGIES),
}
# So many translations are kept in result.json; translations.json has all.
SAMPLE = 10


def make_run(argv: Sequence[str] | None = None) -> Run:
    """Reads the flags and opens the folder of the run."""
    # What several workers began, one process can end.
    return Run(HERE, argv, CHOICES, may_change=["strategy"])


def make_optimizer(args: argparse.Namespace) -> keras.optimizers.Optimizer:
    """Returns SGD with the schedule and the clipping that the flags name."""
    rate = args.learning_rate
    if args.decay == "luong234":
        rate = luong234(rate, args.steps)
    return keras.optimizers.SGD(
        rate,
        momentum=args.momentum,
        nesterov=args.momentum > 0,
        global_clipnorm=args.clip_norm,
    )


def make_model(
    args: argparse.Namespace, optimizer: Any, source_size: int, target_size: int
) -> Translator:
    """Returns the compiled model for so many source and target words."""
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
    # XLA would compile again for every shape of a batch.
    model.compile(optimizer=optimizer, jit_compile=False)
    # Here, in the scope of the strategy: its replicas cannot create variables, and
    # where the first step does, the second one is traced again.
    model.optimizer.build(model.trainable_variables)
    return model


def make_callbacks(
    args: argparse.Namespace, log: Sequence[Row]
) -> list[keras.callbacks.Callback]:
    """Returns the schedule that follows the loss, where the flags name it."""
    if args.decay != "on_worse":
        return []
    return [DecayOnWorse(losses=[row["loss"] for row in log])]


def main(argv: Sequence[str] | None = None) -> dict[str, Any]:
    """Trains, evaluates, writes result.json and returns what it holds.

    Of several workers the first one does the latter three.
    """
    run = make_run(argv)
    args = run.args
    strategy = make_strategy(args.strategy, args.batch)
    worker = worker_index(strategy)
    if worker:
        # All go on from what the first one has saved, and write into their own folders.
        run.out = args.out / f"worker{worker}"
        run.out.mkdir(parents=True, exist_ok=True)

    # Data. The split does not depend on --seed, so that runs can be compared.
    max_source, max_target = args.buckets[-1]
    pairs = load_pairs(args.data)
    tokens = prepare(pairs, max_source, max_target, args.overlong, args.lowercase)
    train, test = split(tokens, args.held_out, seed=0)
    source = Vocabulary((english for english, _ in train), args.source_vocab)
    target = Vocabulary((french for _, french in train), args.target_vocab)
    examples = encode(train, source, target, args.reverse)
    batches = training_batches(examples, args.buckets, args.batch, args.seed)
    held_out = encode(test, source, target, args.reverse)
    held_out = held_out_batches(held_out, args.batch)

    # Model. The dtype policy decides how its numbers are stored; a wrapped optimizer
    # has FP32 masters and scales the loss.
    with strategy.scope():
        keras.config.set_dtype_policy(run.dtype_policy)
        optimizer = make_optimizer(args)
        if run.wrap_options is not None:
            optimizer = keras_mp.wrap(optimizer, **run.wrap_options)
        model = make_model(args, optimizer, len(source), len(target))
    print(f"{len(train)} training and {len(test)} held-out pairs, ", end="")
    print(f"{len(source)} and {len(target)} words, {model.count_params()} weights")

    # Training.
    log = run.restore(model)
    check_all_begin_at(len(log), strategy)
    log = run.fit(
        model,
        batches,
        validation_data=held_out,
        callbacks=make_callbacks(args, log),
        fit=None if args.strategy == "none" else partial(fit, model),
    )
    if worker:
        return {}

    # Results.
    sources = held_out.map(lambda inputs, _: inputs[0])
    english, french = (
        [detokenize(s) for s in side] for side in zip(*test, strict=True)
    )
    sentences = {"english": english, "french": french}
    measures = {"held-out perplexity": log[-1]["val_perplexity"]}
    for name, beam in {"greedy": 1, f"beam {args.beam}": args.beam}.items():
        ids = translate(model, sources, max_target + 1, beam)
        found = [detokenize(target.decode(sentence)) for sentence in ids]
        measures[f"BLEU {name}"] = bleu(english, french, found)
        sentences[name] = found
    write_json(run.out / "translations.json", sentences)
    sample = {side: found[:SAMPLE] for side, found in sentences.items()}
    return run.finish(measures, translations=sample)


if __name__ == "__main__":
    main()
