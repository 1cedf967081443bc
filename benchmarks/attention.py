"""How long does attention take, and how many bytes, beside that of Keras?

`python benchmarks/attention.py` prints a Markdown table: `dot_product_attention` of
keras_mp.ops beside that of keras.ops, and `MultiHeadAttention` beside that of Keras,
with 8 heads of 64 and 2,048 tokens in all, in sequences of the given length; forward,
and forward and backward, in graphs. A ratio is the median, over the rounds, of the time
of ours over that of Keras's, which runs next to it: below 1 ours is faster. In FP32 the
layer is Keras's own. The bytes are what one step of the op, forward and backward, adds
at its peak to a process of its own that has its inputs, on Linux. With dropout, which
keras.ops has not, its op is what the layer of Keras computes. `--xla` has XLA compile
them; tokens as arguments choose rows.
"""

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ.setdefault("KERAS_BACKEND", "tensorflow")

import argparse
import functools
import re
import statistics
import subprocess
import sys
import time
from itertools import product
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf
from machine import machine, marked

import keras_mp

TOKENS = (64, 256, 1024, 2048)
DTYPES = ("float16", "bfloat16", "float32")
PACKAGES = {"keras_mp": keras_mp, "keras": keras}
HEADS, SIZE, ALL_TOKENS = 8, 64, 2048
DROPOUT, DROPPED_TOKENS = 0.1, (64, 2048)
# The most that ours may take of Keras's time, and of its bytes at 2,048 tokens.
MOST = {("float16", 2048): 0.5}
MOST_BYTES = {("float16", 2048): 0.2}


def normal(shape, dtype):
    # By NumPy, which leaves TensorFlow's allocator no memory to use again.
    x = np.random.default_rng(0).normal(size=shape)
    return tf.constant(x.astype(tf.as_dtype(dtype).as_numpy_dtype))


def op_step(package, dtype, tokens, dropout, what, xla, all_tokens=ALL_TOKENS):
    """A function of no arguments that runs the op on its inputs."""
    shape = (all_tokens // tokens, tokens, HEADS, SIZE)
    tensors = [normal(shape, dtype) for _ in range(3)]
    attend = package.ops.dot_product_attention
    if dropout:
        seeds = keras.random.SeedGenerator(0)
        ours = functools.partial(attend, dropout=dropout, seed=seeds)
        theirs = functools.partial(attend_with_dropout, dropout, seeds)
        attend = ours if package is keras_mp else theirs
    return step(attend, tensors, [], what, xla)


def attend_with_dropout(dropout, seeds, query, key, value):
    """What `keras.layers.MultiHeadAttention` computes with dropout."""
    scores = keras.ops.einsum("aecd,abcd->acbe", key, query * SIZE**-0.5)
    weights = keras.random.dropout(keras.ops.softmax(scores), dropout, seed=seeds)
    return keras.ops.einsum("acbe,aecd->abcd", weights, value)


def layer_step(package, dtype, tokens, dropout, what, xla):
    """The same for the layer, attending to its own input."""
    layer = package.layers.MultiHeadAttention(HEADS, SIZE, dropout=dropout, dtype=dtype)
    x = normal((ALL_TOKENS // tokens, tokens, HEADS * SIZE), dtype)
    layer.build(x.shape, x.shape)
    weights = layer.trainable_variables
    return step(lambda x: layer(x, x, training=True), [x], weights, what, xla)


def step(function, tensors, weights, what, xla):
    slope = normal(tensors[0].shape, tensors[0].dtype)

    @tf.function(jit_compile=xla)
    def forward(*tensors):
        return function(*tensors)

    @tf.function(jit_compile=xla)
    def both(*tensors):
        with tf.GradientTape() as tape:
            tape.watch(tensors)
            y = function(*tensors)
        return y, tape.gradient(y, [*tensors, *weights], slope)

    return lambda: (forward if what == "forward" else both)(*tensors)


def ratio(ours, theirs, rounds):
    """The median of the ratios of their times, and milliseconds of ours."""
    for run in (ours, theirs):
        run()
        run()
    times, ratios = [], []
    for _ in range(rounds):
        start = time.perf_counter()
        ours()
        between = time.perf_counter()
        theirs()
        times.append(between - start)
        ratios.append(times[-1] / (time.perf_counter() - between))
    return statistics.median(ratios), 1e3 * statistics.median(times)


def status(name):
    """Returns the MiB that /proc tells of this process."""
    text = Path("/proc/self/status").read_text()
    return int(re.search(rf"{name}:\s+(\d+)", text)[1]) / 1024


def print_growth(package, dtype, tokens, dropout, xla):
    """Prints the MiB that a step adds at its peak, after a small one has run."""
    op_step(package, dtype, 8, dropout, "both", xla, all_tokens=8)()
    run = op_step(package, dtype, tokens, dropout, "both", xla)
    Path("/proc/self/clear_refs").write_text("5")  # the peak is what is held now
    before = status("VmRSS")
    run()
    print(status("VmHWM") - before)


def growth(name, dtype, tokens, dropout, xla):
    command = [sys.executable, __file__, str(tokens), "--alone", name, dtype]
    command.append(str(dropout))
    output = subprocess.check_output(command + ["--xla"] * xla, text=True)
    return float(output.split()[-1])


def cells(dtype, tokens, dropout, rounds, xla):
    """Returns the cells of a row."""
    most = MOST.get((dtype, tokens), 1.0)
    found = []
    for make, what in product((op_step, layer_step), ("forward", "both")):
        if make is layer_step and dtype == "float32":
            found.append("")
            continue
        pair = [make(x, dtype, tokens, dropout, what, xla) for x in (keras_mp, keras)]
        one, milliseconds = ratio(*pair, rounds)
        found.append(f"{marked(one, one <= most)} ({milliseconds:.1f} ms)")
    ours, theirs = (growth(name, dtype, tokens, dropout, xla) for name in PACKAGES)
    share = ours / theirs
    met = share <= MOST_BYTES.get((dtype, tokens), 1.0)
    return [*found, f"{marked(share, met)} ({ours:.0f} and {theirs:.0f} MiB)"]


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("tokens", nargs="*", type=int, default=TOKENS)
    parser.add_argument("--rounds", type=int, default=15, help="default 15")
    parser.add_argument("--xla", action="store_true", help="compile with XLA")
    parser.add_argument(
        "--alone", nargs=3, help="print the bytes of a package, a dtype, a dropout"
    )
    arguments = parser.parse_args()
    if arguments.alone:
        name, dtype, dropout = arguments.alone
        package, tokens = PACKAGES[name], arguments.tokens[0]
        print_growth(package, dtype, tokens, float(dropout), arguments.xla)
        return
    print(f"{machine()}; XLA: {arguments.xla}; {arguments.rounds} rounds\n")
    columns = ["dtype", "tokens", "dropout", "op, forward", "op, both"]
    columns += ["layer, forward", "layer, both", "bytes of the op, both"]
    print(f"| {' | '.join(columns)} |")
    print("|" + "---|" * len(columns))
    for dropout, dtype, tokens in product((0.0, DROPOUT), DTYPES, arguments.tokens):
        if dropout and (dtype == "float32" or tokens not in DROPPED_TOKENS):
            continue
        row = cells(dtype, tokens, dropout, arguments.rounds, arguments.xla)
        print(f"| {dtype} | {tokens} | {dropout} | {' | '.join(row)} |", flush=True)


if __name__ == "__main__":
    main()
