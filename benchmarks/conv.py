"""How long do FP16 convolutions take on this machine, beside those of Keras?

`python benchmarks/conv.py` prints a Markdown table: forward and backward pass of one
layer in a graph, the median of many runs. In each round the layers run one after the
other, so that what else the machine does slows all of them.
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

# Name, arguments of the layer, shape of the inputs: about a millisecond and more.
CASES = (
    ("Conv1D", {"filters": 128, "kernel_size": 5}, (8, 512, 128)),
    ("Conv2D", {"filters": 64, "kernel_size": 3}, (8, 56, 56, 64)),
    ("Conv2D", {"filters": 256, "kernel_size": 1}, (8, 28, 28, 256)),
    ("Conv3D", {"filters": 32, "kernel_size": 3}, (2, 16, 28, 28, 32)),
    ("Conv2DTranspose", {"filters": 64, "kernel_size": 3}, (4, 28, 28, 64)),
    ("SeparableConv2D", {"filters": 64, "kernel_size": 3}, (8, 28, 28, 64)),
    ("DepthwiseConv2D", {"kernel_size": 3}, (8, 28, 28, 64)),
)
RUNS = {
    "Keras FP32": (keras.layers, "float32"),
    "Keras FP16": (keras.layers, "mixed_float16"),
    "keras_mp FP16": (keras_mp.layers, "mixed_float16"),
}


def make_step(package, policy, name, options, shape, jit):
    """A function of no arguments that computes outputs and all gradients."""
    layer = getattr(package, name)(dtype=policy, padding="same", **options)
    x = np.random.default_rng(0).uniform(-1, 1, shape)
    x = tf.constant(x, layer.compute_dtype)
    layer(x)

    @tf.function(jit_compile=jit)
    def step(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = layer(x)
        return tape.gradient(y, [x, *layer.trainable_variables], tf.ones_like(y))

    def run():
        for gradient in step(x):
            gradient.numpy()  # waits for a GPU

    return run


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=15, help="default 15")
    parser.add_argument("--jit", action="store_true", help="compile with XLA")
    arguments = parser.parse_args()
    print(f"{machine()}; XLA: {arguments.jit}; median of {arguments.rounds} runs, ms\n")
    print(f"| layer | inputs | {' | '.join(RUNS)} | ours / FP32 | ours / FP16 |")
    print("|---|---|" + "---|" * (len(RUNS) + 2))
    for name, options, shape in CASES:
        steps = [
            make_step(package, policy, name, options, shape, arguments.jit)
            for package, policy in RUNS.values()
        ]
        fp32, fp16, ours = medians(steps, arguments.rounds)
        size = options["kernel_size"]
        cells = [f"{name}, {size} wide", "x".join(map(str, shape))]
        cells += [f"{ms:.1f}" for ms in (fp32, fp16, ours)]
        cells += [f"{ours / fp32:.2f}", f"{ours / fp16:.2f}"]
        print(f"| {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
