"""Trains DeepSpeech 2 on AN4 in the precision that you name.

    python train.py --preset demo --precision mixed --data FILE

A preset is a JSON file in presets/, and every value in it is also a flag: --units 512,
--steps 2000. What each precision means is told in the README.
"""

import argparse
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import jiwer
import keras
from experiments.run import Run
from experiments.sgd import SGD
from speech_recognition.batches import CLASSES, test_batches, training_batches
from speech_recognition.data import FEATURES, check_lengths, load
from speech_recognition.decoding import transcribe
from speech_recognition.gradients import (
    gradients_over_training,
    keep_weights,
    weight_gradients,
)
from speech_recognition.model import deep_speech_2

import keras_mp

HERE = Path(__file__).resolve().parent
# So many utterances, with what was heard, are kept in result.json.
SAMPLE = 10


def make_optimizer(args: argparse.Namespace) -> SGD:
    """Returns Nesterov SGD, whose rate is divided by `anneal` every `anneal_steps`."""
    rate = keras.optimizers.schedules.ExponentialDecay(
        args.learning_rate, args.anneal_steps, 1 / args.anneal, staircase=True
    )
    return SGD(
        rate, momentum=args.momentum, nesterov=True, global_clipnorm=args.clip_norm
    )


def main(argv: Sequence[str] | None = None) -> dict[str, Any]:
    """Trains, evaluates, writes result.json and returns what it holds."""
    run = Run(HERE, argv, {"features": list(FEATURES)})
    args = run.args

    # Data: the sets of AN4 as they are, whatever the seed.
    train, test = load(args.data, args.features)
    check_lengths([*train, *test], math.prod(c[2] for c in args.convolutions))
    batches = training_batches(train, args.batch, args.buckets, args.seed)
    held_out = test_batches(test, args.batch)

    # Model. Two lines decide how its numbers are stored and updated.
    keras.config.set_dtype_policy(run.dtype_policy)
    model = deep_speech_2(
        train[0].features.shape[1],
        CLASSES,
        convolutions=args.convolutions,
        units=args.units,
        layers=args.layers,
        context=args.context,
    )
    optimizer = make_optimizer(args)
    if run.wrap_options is not None:
        optimizer = keras_mp.wrap(optimizer, **run.wrap_options)
    # XLA would compile again for every shape of a batch.
    model.compile(optimizer=optimizer, loss=keras.losses.CTC(), jit_compile=False)
    print(f"{len(train)} training and {len(test)} test utterances, ", end="")
    print(f"{model.count_params()} weights")

    # Training. In FP32 the weights on the way are kept, for the paper's figure 2b.
    is_fp32 = args.precision == "fp32"
    weights = run.out / "weights"
    callbacks = [keep_weights(weights)] if is_fp32 else []
    log = run.fit(model, batches, validation_data=held_out, callbacks=callbacks)

    # Results.
    said = [utterance.text for utterance in test]
    heard = transcribe(model, held_out)
    measures = {
        "CER (%)": 100 * jiwer.cer(said, heard),
        "held-out CTC loss": log[-1]["val_loss"],
    }
    sample = {"said": said[:SAMPLE], "heard": heard[:SAMPLE]}
    batch = next(iter(batches))
    more: dict[str, Any] = {"weight_gradients": weight_gradients(model, *batch)}
    if is_fp32:
        more["gradients_over_training"] = gradients_over_training(
            model, weights, len(log), *batch
        )
    return run.finish(measures, transcripts=sample, **more)


if __name__ == "__main__":
    main()
