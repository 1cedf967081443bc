"""What does a call of `fp16_gemm` cost where the product itself is short?

`python benchmarks/short_calls.py` prints three Markdown tables, of `tf.matmul` and
`fp16_gemm` in turn, in one process: microseconds of an eager call; of one product in a
graph that chains 100 of them; and milliseconds to trace 8 layers of Dense, forward and
backward. A figure is the median of the rounds.
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

EAGER_SIZES = [(64, 64, 64), (8, 64, 64)]  # M, N, K
GRAPH_SIZES = (8, 16, 64, 128)  # of a cube
DTYPES = ("float16", "bfloat16")
CHAINED = 100
DEPTH = 8


def theirs(a, b, bias=None, activation=None):
    c = tf.matmul(a, b if b.dtype == a.dtype else tf.cast(b, a.dtype))
    c = c if bias is None else tf.nn.bias_add(c, bias)
    return tf.nn.relu(c) if activation == "relu" else c


def ours(a, b, bias=None, activation=None):
    return keras_mp.ops.fp16_gemm(a, b, bias=bias, activation=activation)


def with_tape(product):
    def differentiated(a, b, *options):
        with tf.GradientTape() as tape:
            tape.watch([a, b])
            c = product(a, b, *options)
        return tape.gradient(c, [a, b])

    return differentiated


def many(function, arguments, calls):
    def run():
        for _ in range(calls):
            function(*arguments)

    return run


def chain(product):
    @tf.function
    def run(a, b):
        for _ in range(CHAINED):
            a = product(a, b)
        return a

    return run


def eager(rounds, calls=100):
    """Prints the microseconds of an eager call."""
    print("| M, N, K | dtype | call | tf.matmul | fp16_gemm | difference |")
    print("|---|---|---|---|---|---|")
    for m, n, k in EAGER_SIZES:
        for dtype in DTYPES:
            a, b = tf.ones([m, k], dtype), tf.ones([k, n], dtype)
            bias = tf.ones([n], dtype)
            cases = {
                "product": (a, b),
                "bias, relu": (a, b, bias, "relu"),
                "FP32 b": (a, tf.cast(b, "float32")),
            }
            for name, arguments in cases.items():
                for suffix, wrap in (("", lambda f: f), (", gradient", with_tape)):
                    steps = [many(wrap(f), arguments, calls) for f in (theirs, ours)]
                    one, other = (1e3 * t / calls for t in medians(steps, rounds))
                    figures = f"{one:.0f} | {other:.0f} | {other - one:.0f}"
                    print(f"| {m}, {n}, {k} | {dtype} | {name}{suffix} | {figures} |")


def graph(rounds, calls=10):
    """Prints the microseconds of one of many products in a graph."""
    print("\n| cube | dtype | tf.matmul | fp16_gemm | ratio |")
    print("|---|---|---|---|---|")
    for size in GRAPH_SIZES:
        # A rotation, so that no number overflows or vanishes.
        rotation = np.linalg.qr(np.random.default_rng(0).normal(size=(size, size)))[0]
        for dtype in DTYPES:
            b = tf.cast(rotation, dtype)
            steps = [many(chain(f), (b, b), calls) for f in (theirs, ours)]
            one, other = (1e3 * t / (calls * CHAINED) for t in medians(steps, rounds))
            print(f"| {size} | {dtype} | {one:.1f} | {other:.1f} | {other / one:.2f} |")


def tracing(rounds):
    """Prints the milliseconds to trace some layers, forward and backward."""
    print(f"\n| Dense x {DEPTH} | Keras | keras_mp | ratio |")
    print("|---|---|---|---|")
    for policy in ("mixed_float16", "float16"):
        keras.config.set_dtype_policy(policy)
        steps = []
        for module in (keras.layers, keras_mp.layers):
            inputs = keras.Input((32, 64))
            layers = [module.Dense(64, "relu") for _ in range(DEPTH)]
            model = keras.Model(inputs, keras.Sequential(layers)(inputs))
            steps.append(lambda model=model: trace(model))
        one, other = medians(steps, rounds)
        print(f"| {policy} | {one:.0f} | {other:.0f} | {other / one:.2f} |")


def trace(model):
    def step(x):
        with tf.GradientTape() as tape:
            y = tf.reduce_sum(tf.cast(model(x, training=True), "float32"))
        return tape.gradient(y, model.trainable_variables)

    tf.function(step).get_concrete_function(tf.TensorSpec([8, 32, 64], "float16"))


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=15, help="default 15")
    rounds = parser.parse_args().rounds
    info = keras_mp.ops.build_info()
    print(
        f"{machine()}; route {info['route']}, {info.get('cpu', 'no native kernel')}\n"
    )
    eager(rounds)
    graph(rounds)
    tracing(rounds)


if __name__ == "__main__":
    main()
