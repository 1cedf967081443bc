"""Trains Multibox SSD in the precision that you name.

    python train.py --preset demo --precision mixed

A preset is a JSON file in presets/, and every value in it is also a flag: --width 0.5,
--steps 2000. What each precision means is told in the README.
"""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import keras
import tensorflow as tf
from experiments.run import Run
from experiments.sgd import SGD
from object_detection.batches import held_out_batches, training_batches
from object_detection.boxes import default_boxes
from object_detection.data import load
from object_detection.evaluation import average_precisions, detect
from object_detection.gradients import measure
from object_detection.loss import MultiboxLoss
from object_detection.model import load_imagenet, map_sizes, ssd

HERE = Path(__file__).resolve().parent


def main(argv: Sequence[str] | None = None) -> dict[str, Any]:
    """Trains, evaluates, writes result.json and returns what it holds."""
    run = Run(HERE, argv)
    args = run.args

    # Data.
    classes, train, test = load(args.data, args.train_list, args.test_list)
    defaults = tf.constant(
        default_boxes(map_sizes(args.side), args.scales, args.ratios)
    )
    batches = training_batches(train, args.side, defaults, args.batch, args.seed)
    held_out = held_out_batches(test, args.side, defaults, args.batch)

    # Model. Two lines decide how its numbers are stored and updated.
    keras.config.set_dtype_policy(run.dtype_policy)
    rate = keras.optimizers.schedules.CosineDecay(
        0.0,
        args.steps - args.warm_up,
        warmup_target=args.learning_rate,
        warmup_steps=args.warm_up,
    )
    optimizer = run.wrap(
        SGD(
            rate,
            momentum=args.momentum,
            weight_decay=args.weight_decay,
            global_clipnorm=args.clip_norm,
        )
    )
    model = ssd(
        args.side, len(classes), args.ratios, args.width, args.batch_normalization
    )
    if args.pretrained:
        load_imagenet(model)
    model.compile(optimizer=optimizer, loss=MultiboxLoss(), jit_compile=False)
    print(
        f"{len(train)} training and {len(test)} held-out images of {classes}, ", end=""
    )
    print(f"{len(defaults)} default boxes, {model.count_params()} weights")

    # Training.
    run.fit(model, batches, validation_data=held_out)

    # Results.
    found = detect(model, held_out, defaults)
    precisions = average_precisions(test, found, classes)
    measures = {"mAP": sum(precisions.values()) / len(classes)}
    measures |= {f"AP {name}": value for name, value in precisions.items()}
    more = {}
    if args.precision == "fp32":
        more["gradients"] = measure(model, *next(iter(batches)))
    return run.finish(measures, **more)


if __name__ == "__main__":
    main()
