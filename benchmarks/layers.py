"""How long do the FP32-reduction layers take on this machine, beside those of Keras?

`python benchmarks/layers.py` prints a Markdown table: a layer's forward pass, and its
forward and backward pass, in a graph and compiled by XLA, the median of many runs. In
each round the layers run one after the other, so that what else the machine does slows
all of them.
"""

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ.setdefault("KERAS_BACKEND", "tensorflow")

import argparse

import keras
import numpy as np
import tensorflow as tf
from machine import machine, medians

import keras_mp

# Name, arguments, shape of the inputs: those of ResNet-50 and of a base Transformer.
CASES = (
    ("BatchNormalization", {}, (16, 56, 56, 64)),
    ("BatchNormalization", {}, (16, 14, 14, 1024)),
    ("BatchNormalization", {}, (4096, 1024)),
    ("BatchNormalization", {"axis": 1}, (16, 64, 56, 56)),
    ("LayerNormalization", {}, (16, 128, 512)),
    ("LayerNormalization", {}, (8, 512, 1024)),
    ("RMSNormalization", {}, (16, 128, 512)),
    ("GroupNormalization", {"groups": 32}, (8, 56, 56, 64)),
    ("UnitNormalization", {}, (4096, 512)),
    ("Softmax", {}, (8, 8, 128, 128)),
    ("Softmax", {}, (128, 32000)),
    ("GlobalAveragePooling2D", {}, (64, 7, 7, 2048)),
    ("GlobalAveragePooling1D", {}, (32, 512, 512)),
    ("AveragePooling2D", {"pool_size": 2}, (16, 56, 56, 128)),
)
RUNS = {
    "Keras FP32": (keras.layers, "float32"),
    "Keras FP16": (keras.layers, "mixed_float16"),
    "keras_mp": (keras_mp.layers, "mixed_float16"),
}
PASSES = ("forward", "both")
# Layers that compute something else in training.
TRAINING = {"BatchNormalization": {"training": True}}


def make_step(package, policy, case, what, jit):
    """A function of no arguments that runs one pass, or both."""
    name, options, shape = case
    layer = getattr(package, name)(dtype=policy, **options)
    training = TRAINING.get(name, {})
    rng = np.random.default_rng(0)
    x = tf.constant(rng.normal(size=shape), layer.compute_dtype)
    y = layer(x, **training)
    slope = tf.constant(rng.normal(size=y.shape), y.dtype)

    @tf.function(jit_compile=jit)
    def forward(x):
        return layer(x, **training)

    @tf.function(jit_compile=jit)
    def both(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = layer(x, **training)
        return y, tape.gradient(y, [x, *layer.trainable_variables], slope)

    step = forward if what == "forward" else both

    def run():
        step(x)
        tf.test.experimental.sync_devices()

    return run


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=21, help="default 21")
    parser.add_argument("--only", default="", help="layers whose name has this")
    arguments = parser.parse_args()
    print(f"{machine()}; median of {arguments.rounds} runs, ms\n")
    columns = ["layer", "inputs", "XLA", "pass", *RUNS, "FP32 / ours", "FP16 / ours"]
    print(f"| {' | '.join(columns)} |")
    print("|" + "---|" * len(columns))
    for case in CASES:
        name, options, shape = case
        if arguments.only not in name:
            continue
        for jit in (False, True):
            for what in PASSES:
                steps = [make_step(*run, case, what, jit) for run in RUNS.values()]
                times = medians(steps, arguments.rounds)
                told = ", ".join(f"{key}={value}" for key, value in options.items())
                cells = [f"{name}({told})", "x".join(map(str, shape))]
                cells += ["yes" if jit else "no", what]
                cells += [f"{ms:.2f}" for ms in times]
                cells += [f"{ms / times[-1]:.2f}" for ms in times[:-1]]
                print(f"| {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
