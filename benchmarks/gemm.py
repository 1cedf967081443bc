"""How fast is `fp16_gemm` on this CPU, beside `tf.matmul` of the same dtypes?

`python benchmarks/gemm.py [--seconds 0.3]` prints a Markdown table. Each product runs
in all six ways, in turn, in one process; a figure is the median of the rounds. Each
call is one step of a loop in a graph, as in training. A ratio below its goal is bold:
0.9 of FP32, 1 of the 16-bit ones.
"""

import argparse
import math
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import tensorflow as tf
from machine import machine, marked

import keras_mp

SIZES = [  # M, N, K
    (512, 512, 512),
    (1024, 1024, 1024),
    (2048, 2048, 2048),
    (1, 4096, 1024),
    (32, 4096, 1024),
    (128, 4096, 2048),
    (64, 1024, 4096),
    (1760, 16, 1760),
    (1760, 128, 1760),
    (2560, 64, 2560),
    (4096, 32, 4096),
    (5124, 700, 2048),
    (35, 700, 2048),
    (16, 1760, 1760),
    (32, 4096, 4096),
    # Of the head of a decoder with 50,257 words: forward, and both gradients.
    (1024, 50257, 256),
    (1024, 256, 50257),
    (256, 50257, 1024),
]
LAYOUTS = {"NN": (False, False), "NT": (False, True), "TN": (True, False)}
OUTPUTS = ("FP32", "FP16", "bfloat16")
GOALS = (0.9, 1.0, 1.0)
THEIRS = ("tf FP32", "tf FP16", "tf bfloat16")
PEAK = Path(__file__).parents[1] / "build" / "custom_ops" / "fma_peak"


def repeated(product, a, b):
    """Returns a function that computes the product `times` times, for the timing."""

    @tf.function(reduce_retracing=True)
    def run(times):
        def step(i, _):
            return i + 1, product(a, b)[0, 0]

        zero = tf.zeros([], product(a, b).dtype)
        return tf.while_loop(
            lambda i, _: i < times, step, (0, zero), parallel_iterations=1
        )[1]

    return run


def measure(functions, seconds):
    """Returns the median seconds of one product, for each of the functions."""
    times = []
    for run in functions:
        run(tf.constant(1)).numpy()
        start = time.perf_counter()
        run(tf.constant(3)).numpy()
        one = (time.perf_counter() - start) / 3
        times.append(max(1, round(0.02 / one)))
    rounds = []
    end = time.perf_counter() + seconds * len(functions)
    while time.perf_counter() < end or len(rounds) < 5:
        row = []
        for run, count in zip(functions, times, strict=True):
            argument = tf.constant(count)
            start = time.perf_counter()
            run(argument).numpy()
            row.append((time.perf_counter() - start) / count)
        rounds.append(row)
    return np.median(rounds, axis=0)


def measure_size(m, n, k, transpose_a, transpose_b, seconds):
    rng = np.random.default_rng(0)
    a = tf.constant(rng.normal(size=(k, m) if transpose_a else (m, k)), tf.float32)
    b = tf.constant(rng.normal(size=(n, k) if transpose_b else (k, n)), tf.float32)

    def matmul(a, b):
        return tf.matmul(a, b, transpose_a, transpose_b)

    def ours(dtype):
        def product(a, b):
            return keras_mp.ops.fp16_gemm(
                a, b, transpose_a, transpose_b, output_dtype=dtype
            )

        return product

    half = tf.cast(a, tf.float16), tf.cast(b, tf.float16)
    brain = tf.cast(a, tf.bfloat16), tf.cast(b, tf.bfloat16)
    functions = [
        repeated(matmul, a, b),
        repeated(matmul, *half),
        repeated(matmul, *brain),
        repeated(ours("float32"), *half),
        repeated(ours("float16"), *half),
        repeated(ours("bfloat16"), *brain),
    ]
    return measure(functions, seconds)


def geometric_mean(values):
    return math.exp(sum(map(math.log, values)) / len(values))


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=0.3, help="for each figure")
    parser.add_argument("--only", default="", help='sizes that begin so: "512, 512"')
    args = parser.parse_args()
    threads = tf.config.threading.get_intra_op_parallelism_threads()
    cores = len(os.sched_getaffinity(0))
    print(f"{machine()}; {threads or cores} threads.")
    peak = None
    if PEAK.is_file():
        peak = float(subprocess.check_output([PEAK, str(threads or cores)]))
        print(f"\nPeak of FP32 multiply-adds: {peak:.0f} GFLOP/s.")
    print("\nGFLOP/s, and the ratio to `tf.matmul` of the same output dtype:\n")
    columns = [*THEIRS, *(f"{name} out" for name in OUTPUTS)]
    columns += [f"/ {name}" for name in THEIRS]
    print("| M, N, K | | " + " | ".join(columns) + " |")
    print("|---|---" + "|---" * len(columns) + "|")
    ratios = []
    for m, n, k in SIZES:
        if not f"{m}, {n}, {k}".startswith(args.only):
            continue
        for layout, (transpose_a, transpose_b) in LAYOUTS.items():
            times = measure_size(m, n, k, transpose_a, transpose_b, args.seconds)
            flops = 2 * m * n * k / times / 1e9
            ratios.append(times[:3] / times[3:])
            figures = " | ".join(f"{x:.0f}" for x in flops)
            compared = " | ".join(
                marked(x, met=x >= goal)
                for x, goal in zip(ratios[-1], GOALS, strict=True)
            )
            print(f"| {m}, {n}, {k} | {layout} | {figures} | {compared} |", flush=True)
            if (m, n, k) == (2048, 2048, 2048) and peak:
                share = f"{m}, {n}, {k} {layout}: {flops[3] / peak:.0%} of the peak"
                print(share, file=sys.stderr)
    for name, column in zip(OUTPUTS, zip(*ratios, strict=True), strict=True):
        print(f"\n{name} output: geometric mean {geometric_mean(column):.2f}, ", end="")
        print(f"smallest {min(column):.2f}.")


if __name__ == "__main__":
    main()
