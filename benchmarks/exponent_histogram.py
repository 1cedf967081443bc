"""How long does the histogram of exponents of a tensor take, and how long must it?

`python benchmarks/exponent_histogram.py` prints a Markdown table. In one process and in
turns: a sum of as many bytes of FP32 numbers, which stands for reading the memory once;
`tf.math.bincount` of the exponent bits, the nearest that TensorFlow has; the op under
XLA, which compiles its formula; and the op with its kernel, or, with
KERAS_MP_OPS=reference, in plain TensorFlow. A figure is the median of the rounds.
"""

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ.setdefault("KERAS_BACKEND", "tensorflow")

import argparse

import numpy as np
import tensorflow as tf
from machine import machine, marked, medians

import keras_mp

SIZES = (10_000, 1_000_000, 10_000_000)
DTYPES = ("float32", "float16", "bfloat16")
NUMBERS = {
    "normal": lambda size: np.random.default_rng(0).normal(size=size),
    "zeros": np.zeros,
    "one exponent": lambda size: np.full(size, 1.5),
}
# At least this much faster than what TensorFlow has.
GOAL = 4.0
# XLA and bincount take up to a second for the largest tensors.
SLOW_ROUNDS = 3


def bincount(x):
    """Returns the counts of the 256 exponents of FP32."""
    bits = tf.bitcast(tf.cast(x, tf.float32), tf.int32)
    exponents = tf.bitwise.right_shift(tf.bitwise.bitwise_and(bits, 0x7FFFFFFF), 23)
    return tf.math.bincount(tf.reshape(exponents, [-1]), minlength=256)


def repeated(function, x, calls):
    def run():
        for _ in range(calls):
            function(x).numpy()

    return run


def compare(size, dtype, kind, rounds):
    """Returns milliseconds: of a read, of bincount, under XLA, of the op."""
    x = tf.constant(NUMBERS[kind](size), dtype)
    read = tf.ones(size * x.dtype.size // 4)
    calls = max(1, 100_000 // size)
    op = keras_mp.ops.exponent_histogram
    compiled = tf.function(op, jit_compile=True)
    fast = [(tf.reduce_sum, read), (op, x)]
    slow = [(tf.function(bincount), x), (compiled, x)]
    reading, ours, *others = (
        milliseconds / calls
        for cases, count in ((fast, rounds), (slow, min(rounds, SLOW_ROUNDS)))
        for milliseconds in medians([repeated(f, y, calls) for f, y in cases], count)
    )
    return reading, *others, ours


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=15, help="default 15")
    rounds = parser.parse_args().rounds
    print(f"{machine()}. Milliseconds, and GB/s of the tensor that is read.\n")
    print(
        "| dtype | numbers | elements | read | bincount | XLA | exponent_histogram "
        "| read, GB/s | exponent_histogram, GB/s | bincount / exponent_histogram |"
    )
    print("|---|---|---|---|---|---|---|---|---|---|")
    for dtype in DTYPES:
        for kind in NUMBERS:
            for size in SIZES:
                times = compare(size, dtype, kind, rounds)
                read, plain, _, ours = times
                megabytes = size * tf.as_dtype(dtype).size / 1e6
                cells = [dtype, kind, f"{size:,}", *(f"{t:.3f}" for t in times)]
                cells += [f"{megabytes / t:.1f}" for t in (read, ours)]
                cells.append(marked(plain / ours, plain / ours >= GOAL))
                print("| " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
