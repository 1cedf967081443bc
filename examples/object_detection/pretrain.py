"""Trains the backbone to classify CIFAR-10, in FP32, for the preset pretrained_demo.

python examples/object_detection/pretrain.py
"""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import keras
import tensorflow as tf
from experiments.run import Run
from image_classification.converged.train import one_cycle
from image_classification.data import load, test_batches, training_batches
from object_detection.backbone import WEIGHTS, backbone
from object_detection.batches import normalized

HERE = Path(__file__).resolve().parent
PIXELS = {"canvas": 40, "crop": 32, "resize": False}


def main(argv: Sequence[str] | None = None) -> dict[str, Any]:
    """Trains, writes the weights and result.json, and returns what that holds."""
    flags = sys.argv[1:] if argv is None else argv
    run = Run(HERE, ["--preset", "pretraining", "--precision", "fp32", *flags])
    args = run.args
    images = load(args.data)
    train = training_batches(images, batch=args.batch, seed=args.seed, **PIXELS)
    test = test_batches(images, batch=500, count=args.test_images, **PIXELS)
    train, test = (
        part.map(lambda image, label: (normalized(tf.cast(image, "float32")), label))
        for part in (train, test)
    )
    trained = backbone(args.width, args.batch_normalization)
    x = keras.layers.GlobalAveragePooling2D()(trained.output)
    model = keras.Model(trained.input, keras.layers.Dense(images.classes)(x))
    model.compile(
        optimizer=keras.optimizers.SGD(
            one_cycle(args), momentum=args.momentum, nesterov=True
        ),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
        jit_compile=False,
    )
    log = run.fit(model, train, validation_data=test)
    trained.save_weights(run.out / WEIGHTS)
    return run.finish({"accuracy": log[-1]["val_accuracy"]})


if __name__ == "__main__":
    main()
