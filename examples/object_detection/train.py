"""Trains a detector of objects in the precision that you name.

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
from experiments.run import Run
from experiments.sgd import SGD
from object_detection import faster_rcnn, ssd
from object_detection.backbone import load_backbone, load_imagenet
from object_detection.batches import held_out_batches, training_batches
from object_detection.data import load
from object_detection.evaluation import average_precisions, detect
from object_detection.gradients import measure

import keras_mp

HERE = Path(__file__).resolve().parent
NETWORKS = {"ssd": ssd.detector, "faster-rcnn": faster_rcnn.detector}


def main(argv: Sequence[str] | None = None) -> dict[str, Any]:
    """Trains, evaluates, writes result.json and returns what it holds."""
    run = Run(HERE, argv, choices={"network": list(NETWORKS)})
    args = run.args

    # Data.
    classes, train, test = load(args.data, args.train_list, args.test_list)
    objects = max(len(image.labels) for image in train + test)

    # Model. The dtype policy decides how its numbers are stored; a wrapped optimizer
    # has FP32 masters and scales the loss.
    keras.config.set_dtype_policy(run.dtype_policy)
    rate = keras.optimizers.schedules.CosineDecay(
        0.0,
        args.steps - args.warm_up,
        warmup_target=args.learning_rate,
        warmup_steps=args.warm_up,
    )
    optimizer = SGD(
        rate,
        momentum=args.momentum,
        weight_decay=args.weight_decay,
        global_clipnorm=args.clip_norm,
    )
    if run.wrap_options is not None:
        optimizer = keras_mp.wrap(optimizer, **run.wrap_options)
    detector = NETWORKS[args.network](args, len(classes), objects)
    model = detector.model
    if args.pretrained:
        load_imagenet(model)
    if "start" in args:
        load_backbone(model, args.start, args.width, args.batch_normalization)
    model.compile(optimizer=optimizer, loss=detector.loss, jit_compile=False)
    print(f"{len(train)} training and {len(test)} held-out images of {classes}")

    # Training.
    batches = training_batches(train, args.side, detector.target, args.batch, args.seed)
    held_out = held_out_batches(test, args.side, detector.target, args.batch)
    run.fit(model, batches, validation_data=held_out)

    # Results.
    found = detect(detector, held_out)
    precisions = average_precisions(test, found, classes)
    measures = {"mAP": sum(precisions.values()) / len(classes)}
    measures |= {f"AP {name}": value for name, value in precisions.items()}
    more = {}
    if args.precision == "fp32":
        more["gradients"] = measure(model, *next(iter(batches)))
    return run.finish(measures, **more)


if __name__ == "__main__":
    main()
