"""How long do our layers take on this machine, beside those of Keras?

`python benchmarks/layers.py` prints a Markdown table: a layer's forward pass, and its
forward and backward pass, in a graph and compiled by XLA, under each policy of 16 bits.
A cell has the median of our milliseconds and, in parentheses, the time of Keras's layer
over ours: under the same policy, and under float32. In each round the layers run one
after the other, so that what else the machine does slows all of them. The first ratio
is bold where it is below 0.95. Names as arguments choose layers, and `--policies` some
of the policies.
"""

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ.setdefault("KERAS_BACKEND", "tensorflow")

import argparse
from itertools import product

import keras
import numpy as np
import tensorflow as tf
from machine import machine, marked, medians

import keras_mp

# TensorFlow has no QR decomposition in bfloat16, which the default initializer needs.
RECURRENT = {
    "units": 256,
    "return_sequences": True,
    "recurrent_initializer": "glorot_uniform",
}
# Name, arguments, shape of the inputs: those of ResNet-50, of MobileNetV3, of a base
# Transformer and of small recurrent models.
CASES = (
    ("Dense", {"units": 2048, "activation": "relu"}, (2048, 512)),
    (
        "EinsumDense",
        {"equation": "abc,cde->abde", "output_shape": (None, 8, 64), "bias_axes": "de"},
        (16, 128, 512),
    ),
    ("MultiHeadAttention", {"num_heads": 8, "key_dim": 64}, (8, 128, 512)),
    (
        "GroupQueryAttention",
        {"head_dim": 64, "num_query_heads": 8, "num_key_value_heads": 2},
        (8, 128, 512),
    ),
    ("LSTM", RECURRENT, (64, 16, 256)),
    ("GRU", RECURRENT, (64, 16, 256)),
    ("Conv1D", {"filters": 128, "kernel_size": 5}, (8, 512, 128)),
    ("Conv2D", {"filters": 64, "kernel_size": 3}, (8, 56, 56, 64)),
    ("Conv2D", {"filters": 256, "kernel_size": 1}, (8, 28, 28, 256)),
    ("Conv2DTranspose", {"filters": 64, "kernel_size": 3}, (4, 28, 28, 64)),
    ("Conv3D", {"filters": 32, "kernel_size": 3}, (2, 16, 28, 28, 32)),
    ("DepthwiseConv2D", {"kernel_size": 3}, (8, 56, 56, 64)),
    ("DepthwiseConv2D", {"kernel_size": 5, "strides": 2}, (8, 28, 28, 120)),
    ("SeparableConv2D", {"filters": 64, "kernel_size": 3}, (8, 28, 28, 64)),
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
POLICIES = ("mixed_float16", "float16", "mixed_bfloat16", "bfloat16")
# Whether XLA compiles it, and what runs.
MODES = tuple(product((False, True), ("forward", "both")))
# Layers that compute something else in training.
TRAINING = {"BatchNormalization": {"training": True}}
# Layers that are called with a query and a value.
ATTENTIONS = ("MultiHeadAttention", "GroupQueryAttention")
GOAL = 0.95


def make_step(package, policy, case, jit, what):
    """A function of no arguments that runs one pass, or both."""
    name, options, shape = case
    layer = getattr(package, name)(dtype=policy, **options)
    training = TRAINING.get(name, {})
    rng = np.random.default_rng(0)
    x = tf.constant(rng.normal(size=shape), layer.compute_dtype)

    def run_layer(x):
        return layer(*[x] * (2 if name in ATTENTIONS else 1), **training)

    y = run_layer(x)
    slope = tf.constant(rng.normal(size=y.shape), y.dtype)

    @tf.function(jit_compile=jit)
    def forward(x):
        return run_layer(x)

    @tf.function(jit_compile=jit)
    def both(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = run_layer(x)
        return y, tape.gradient(y, [x, *layer.trainable_variables], slope)

    step = forward if what == "forward" else both

    def run():
        step(x)
        tf.test.experimental.sync_devices()

    return run


def cell(fp32, theirs, ours):
    """Returns the milliseconds of ours, and the ratios of the others to them."""
    ratio = theirs / ours
    return f"{ours:.2f} ({marked(ratio, ratio >= GOAL)}, {fp32 / ours:.2f})"


def rows(case, policies, rounds):
    """Yields the cells of a layer, for each policy."""
    runs = [(keras.layers, "float32")]
    runs += product((keras.layers, keras_mp.layers), policies)
    cells = []
    for mode in MODES:
        steps = [make_step(*run, case, *mode) for run in runs]
        fp32, *times = medians(steps, rounds)
        half = len(policies)
        pairs = zip(times[:half], times[half:], strict=True)
        cells.append([cell(fp32, *pair) for pair in pairs])
    return zip(policies, *cells, strict=True)


def told(case):
    """Returns a layer with its arguments, and the shape of its inputs."""
    name, options, shape = case
    arguments = ", ".join(f"{key}={value}" for key, value in options.items())
    return f"{name}({arguments})", "x".join(map(str, shape))


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    names = dict.fromkeys(name for name, *_ in CASES)
    parser.add_argument("names", nargs="*", default=names, metavar="NAME")
    parser.add_argument(
        "--policies", nargs="+", choices=POLICIES, default=POLICIES, metavar="POLICY"
    )
    parser.add_argument("--rounds", type=int, default=21, help="default 21")
    arguments = parser.parse_args()
    print(f"{machine()}; median of {arguments.rounds} runs, ms of ours ", end="")
    print("(Keras / ours, Keras in FP32 / ours)\n")
    passes = ["forward", "both", "XLA: forward", "XLA: both"]
    columns = ["layer", "inputs", "policy", *passes]
    print(f"| {' | '.join(columns)} |")
    print("|" + "---|" * len(columns))
    for case in CASES:
        if case[0] not in arguments.names:
            continue
        for cells in rows(case, arguments.policies, arguments.rounds):
            print(f"| {' | '.join([*told(case), *cells])} |", flush=True)


if __name__ == "__main__":
    main()
