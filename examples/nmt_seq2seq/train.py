"""Trains an English-French translator in the precision that you name.

    python train.py --preset demo --precision mixed

A preset is a JSON file in presets/, and every value in it is also a flag: --units 512,
--steps 2000, --no-lowercase. What each precision means is told in the README.
"""

import argparse
import csv
import json
import resource
import shutil
import sys
import time
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import keras
import numpy as np
from batches import encode, held_out_batches, training_batches
from data import load_pairs, prepare, split
from decoding import translate
from evaluation import bleu
from files import write_whole
from model import Translator
from schedules import DecayOnWorse, luong234
from strategies import (
    STRATEGIES,
    check_all_begin_at,
    fit,
    make_strategy,
    worker_index,
)
from vocabulary import Vocabulary, detokenize

import keras_mp

HERE = Path(__file__).parent
PRESETS = sorted(path.stem for path in (HERE / "presets").glob("*.json"))
PRECISIONS = ["fp32", "mixed", "mixed-no-scaling", "fp16-no-master"]
CHOICES = {
    "overlong": ["drop", "truncate"],
    "attention": ["luong", "additive"],
    "loss": ["sum", "mean"],
    "decay": ["none", "luong234", "on_worse"],
}


def parse_args(argv: list[str] | None = None) -> argparse.Namespace:
    """Reads the flags; what they leave open comes from the preset."""
    first = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    first.add_argument("--preset", choices=PRESETS, default="demo")
    preset, _ = first.parse_known_args(argv)
    parser = argparse.ArgumentParser(parents=[first], allow_abbrev=False)
    parser.add_argument("--precision", choices=PRECISIONS, default="mixed")
    parser.add_argument(
        "--loss-scale", default="dynamic", help="'dynamic' or a number, for mixed"
    )
    parser.add_argument("--strategy", choices=STRATEGIES, default="none")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("build/nmt"))
    parser.add_argument("--resume", action="store_true")
    bar = 1 if sys.stdout.isatty() else 2
    parser.add_argument("--verbose", type=int, default=bar, help="as in Model.fit")
    values = json.loads((HERE / f"presets/{preset.preset}.json").read_text())
    for name, value in values.items():
        flag = "--" + name.replace("_", "-")
        if isinstance(value, bool):
            action = argparse.BooleanOptionalAction
            parser.add_argument(flag, action=action, default=value)
        else:
            kind = json.loads if isinstance(value, list) else type(value)
            choices = CHOICES.get(name)
            parser.add_argument(flag, type=kind, choices=choices, default=value)
    return parser.parse_args(argv)


def make_optimizer(args: argparse.Namespace) -> keras.optimizers.Optimizer:
    """Returns SGD, wrapped as the precision asks."""
    rate = args.learning_rate
    if args.decay == "luong234":
        rate = luong234(rate, args.steps)
    sgd = keras.optimizers.SGD(
        rate,
        momentum=args.momentum,
        nesterov=args.momentum > 0,
        global_clipnorm=args.clip_norm,
    )
    if args.precision == "mixed":
        scale = args.loss_scale
        scale = scale if scale == "dynamic" else float(scale)
        return keras_mp.wrap(sgd, loss_scale=scale)
    if args.precision == "mixed-no-scaling":
        return keras_mp.wrap(sgd, loss_scale=1.0)
    return sgd


def make_model(
    args: argparse.Namespace, source_size: int, target_size: int
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
    model.compile(optimizer=make_optimizer(args), jit_compile=False)
    # Here, in the scope of the strategy: its replicas cannot create variables, and
    # where the first step does, the second one is traced again.
    model.optimizer.build(model.trainable_variables)
    return model


class StepTimer(keras.callbacks.Callback):
    """Takes the time of every training step."""

    def on_train_begin(self, logs: Any = None) -> None:
        self.seconds: list[float] = []

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        self.start = time.perf_counter()

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.seconds.append(time.perf_counter() - self.start)


def make_callbacks(
    args: argparse.Namespace, log: list[dict[str, float]]
) -> list[keras.callbacks.Callback]:
    """Returns what runs beside the training; an epoch is `eval_every` steps."""
    callbacks: list[keras.callbacks.Callback] = []
    if args.precision.startswith("mixed"):
        callbacks.append(keras_mp.LossScaleCallback())
    if args.decay == "on_worse":
        callbacks.append(DecayOnWorse(losses=[row["loss"] for row in log]))
    return [
        *callbacks,
        keras.callbacks.CSVLogger(args.out / "log.csv", append=args.resume),
    ]


def read_log(path: Path, rows: int | None = None) -> list[dict[str, float]]:
    """Returns the first rows of a log, one an epoch; none where there is no log."""
    if not path.is_file():
        return []
    with path.open() as file:
        found = islice(csv.DictReader(file), rows)
        return [{k: float(v) for k, v in row.items()} for row in found]


def cut_log(path: Path, rows: int) -> None:
    """Removes the rows after so many: those of epochs that are trained again."""
    if path.is_file():
        lines = path.read_text().splitlines(keepends=True)[: 1 + rows]
        write_whole(path, lambda part: part.write_text("".join(lines)))


def main(argv: list[str] | None = None) -> dict[str, Any]:
    """Trains, evaluates, writes result.json and returns what it holds.

    Of several workers the first one does the latter three.
    """
    args = parse_args(argv)
    strategy = make_strategy(args.strategy, args.batch)
    # Of several workers, all go on from what the first one has saved.
    first, worker = args.out, worker_index(strategy)
    args.out = args.out / f"worker{worker}" if worker else args.out
    args.out.mkdir(parents=True, exist_ok=True)
    keras.utils.set_random_seed(args.seed)
    # The one line that decides how weights, activations and gradients are stored.
    keras.config.set_dtype_policy("float32" if args.precision == "fp32" else "float16")

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

    # Model.
    with strategy.scope():
        model = make_model(args, len(source), len(target))
    print(f"{len(train)} training and {len(test)} held-out pairs, ", end="")
    print(f"{len(source)} and {len(target)} words, {model.count_params()} weights")

    # Training. To resume: the weights with the optimizer's state, the log and the data
    # from where they stopped.
    done = 0
    if args.resume:
        done = keras_mp.Checkpoints(first / "checkpoints").restore(model)
        check_all_begin_at(done, strategy)
    else:
        shutil.rmtree(args.out / "checkpoints", ignore_errors=True)
    checkpoints = keras_mp.Checkpoints(args.out / "checkpoints")
    cut_log(args.out / "log.csv", done)
    callbacks = make_callbacks(args, read_log(first / "log.csv", done))
    timer = StepTimer()
    keras_fit = partial(model.fit, shuffle=False)  # the data set shuffles itself
    run = keras_fit if args.strategy == "none" else partial(fit, model)
    run(
        batches.skip(done * args.eval_every),
        validation_data=held_out,
        epochs=args.steps // args.eval_every,
        initial_epoch=done,
        steps_per_epoch=args.eval_every,
        # Checkpoints last: a row of the log is written before its checkpoint.
        callbacks=[timer, *callbacks, checkpoints],
        verbose=args.verbose,
    )
    if worker:
        return {}

    # The most memory that the process has held so far, in MB.
    peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024

    # Results.
    sources = held_out.map(lambda inputs, _: inputs[0])
    found = {}
    for name, beam in {"greedy": 1, "beam": args.beam}.items():
        ids = translate(model, sources, max_target + 1, beam)
        found[name] = [detokenize(target.decode(sentence)) for sentence in ids]
    english, french = (
        [detokenize(s) for s in side] for side in zip(*test, strict=True)
    )
    scores = {name: bleu(english, french, f) for name, f in found.items()}
    log = read_log(args.out / "log.csv")
    result = {
        "args": vars(args) | {"out": str(args.out)},
        "train_perplexity": [row["perplexity"] for row in log],
        "held_out_perplexity": [row["val_perplexity"] for row in log],
        "bleu": scores,
        "step_seconds": float(np.median(timer.seconds or [np.nan])),
        "peak_mb": peak_mb,
        "loss_scale": log[-1].get("loss_scale"),
        "skipped_steps": log[-1].get("skipped_steps"),
        "english": english,
        "french": french,
        "translations": found,
    }
    text = json.dumps(result, indent=1)
    write_whole(args.out / "result.json", lambda part: part.write_text(text))
    print(f"held-out perplexity {log[-1]['val_perplexity']:.2f}, BLEU {scores}")
    return result


if __name__ == "__main__":
    main()
