"""What do rematerialization, mixed precision and both together save?

`python benchmarks/rematerialization.py` prints a Markdown table: six blocks of two
Dense layers on 16 x 256 tokens, trained in FP32 and in mixed precision by keras_mp,
with and without `keras.remat` around each block. For each the milliseconds of a
training step, and the MiB by which its process grows from the built model to the peak
of its steps, without XLA and with it.
"""

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ.setdefault("KERAS_BACKEND", "tensorflow")

import argparse

import keras
import numpy as np
from keras import layers
from machine import alone, machine, medians, peak

import keras_mp

TOKENS, WIDTH, BATCH, BLOCKS = 256, 256, 16, 6


class Block(layers.Layer):
    """Adds what two Dense layers compute; the wide result is kept or computed again."""

    def __init__(self, recomputes, **options):
        super().__init__(**options)
        self.recomputes = recomputes
        self.norm = layers.LayerNormalization()
        self.wide = layers.Dense(8 * WIDTH, "gelu")
        self.narrow = layers.Dense(WIDTH)

    def build(self, shape):
        self.norm.build(shape)
        self.wide.build(shape)
        self.narrow.build((*shape[:-1], 8 * WIDTH))
        self.built = True

    def body(self, x):
        return x + self.narrow(self.wide(self.norm(x)))

    def call(self, x):
        return keras.remat(self.body)(x) if self.recomputes else self.body(x)

    def compute_output_shape(self, shape):
        return shape


def measure(policy, recomputes, jit, rounds):
    """Returns the milliseconds of a step, and the MiB of its peak beyond the model."""
    keras.utils.set_random_seed(0)
    keras.config.set_dtype_policy(policy)
    x = inputs = keras.Input((TOKENS, WIDTH))
    for _ in range(BLOCKS):
        x = Block(recomputes)(x)
    outputs = layers.Dense(4, dtype="float32")(layers.GlobalAveragePooling1D()(x))
    model = keras.Model(inputs, outputs)
    optimizer = keras.optimizers.SGD(1e-2)
    if policy != "float32":
        model, optimizer = keras_mp.convert(model), keras_mp.wrap(optimizer)
    model.compile(optimizer, "mse", jit_compile=jit)
    batch = np.random.default_rng(0).normal(size=(BATCH, TOKENS, WIDTH))
    labels = np.ones((BATCH, 4))
    before = peak()
    (spent,) = medians([lambda: model.train_on_batch(batch, labels)], rounds)
    return spent, peak() - before


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--policy", default="mixed_bfloat16")
    given = parser.parse_args()
    print(f"{machine()}\n")
    print("| XLA | policy | remat | step, ms | MiB | MiB / FP32 |")
    print("| --- | --- | --- | ---: | ---: | ---: |")
    for jit in (False, True):
        of_fp32 = None
        for policy in ("float32", given.policy):
            for recomputes in (False, True):
                spent, held = alone(measure, policy, recomputes, jit, given.rounds)
                of_fp32 = of_fp32 or held
                cells = ["yes" if jit else "no", policy, "yes" if recomputes else "no"]
                numbers = [f"{spent:,.0f}", f"{held:,.0f}", f"{held / of_fp32:.2f}"]
                print(f"| {' | '.join(cells + numbers)} |", flush=True)


if __name__ == "__main__":
    main()
