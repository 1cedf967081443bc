"""What do the logits of many words cost, and what does a loss without them save?

`python benchmarks/large_vocabularies.py` prints a Markdown table: milliseconds of a
training step of a small language model, and the MiB by which its process grows from the
built model and optimizer to the peak of its steps, without XLA and with it. Each number
is that of a process of its own. In a table the loss of Keras is that of a model of
Keras in FP32 and in mixed precision, and of a converted model; the loss of keras_mp is
that of the converted model.
"""

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ.setdefault("KERAS_BACKEND", "tensorflow")

import argparse

import keras
import numpy as np
from machine import alone, machine, medians, peak

import keras_mp

VOCABULARIES = (2_000, 50_257, 262_144)
# Name, whether the policy is mixed, whether the model is converted, the losses.
SETTINGS = (
    ("Keras, FP32", False, False, keras.losses),
    ("Keras, mixed", True, False, keras.losses),
    ("keras_mp, Keras's loss", True, True, keras.losses),
    ("keras_mp", True, True, keras_mp.losses),
)
LENGTH, WIDTH, KNOWN_WORDS = 256, 256, 4_096


def language_model(words):
    """A block as in a Transformer, without attention, and a head of so many words."""
    ids = keras.Input((LENGTH,), dtype="int32")
    x = keras.layers.Embedding(KNOWN_WORDS, WIDTH)(ids)
    hidden = keras.layers.Dense(4 * WIDTH, "relu")(x)
    x = keras.layers.LayerNormalization()(x + keras.layers.Dense(WIDTH)(hidden))
    return keras.Model(ids, keras.layers.Dense(words)(x))


def measure(setting, policy, words, texts, jit, rounds):
    """Returns the milliseconds of a step, and the MiB of its peak beyond the model."""
    _, is_mixed, is_converted, losses = SETTINGS[setting]
    keras.utils.set_random_seed(0)
    keras.config.set_dtype_policy(policy if is_mixed else "float32")
    model = language_model(words)
    if is_converted:
        model = keras_mp.convert(model)
    optimizer = keras.optimizers.Adam(1e-3)
    if is_converted:
        optimizer = keras_mp.wrap(optimizer)
    loss = losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer, loss, jit_compile=jit)
    optimizer.build(model.trainable_variables)
    generator = np.random.default_rng(0)
    ids = generator.integers(0, KNOWN_WORDS, (texts, LENGTH), "int32")
    labels = generator.integers(0, words, (texts, LENGTH), "int32")
    before = peak()
    (spent,) = medians([lambda: model.train_on_batch(ids, labels)], rounds)
    return spent, peak() - before


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--policy", default="mixed_bfloat16")
    parser.add_argument("--words", type=int, nargs="*", default=VOCABULARIES)
    parser.add_argument("--texts", type=int, default=4)
    arguments = parser.parse_args()
    print("# Large vocabularies\n")
    print(f"{machine()}\n")
    tokens = f"{arguments.texts} x {LENGTH} tokens"
    print(f"{tokens}, width {WIDTH}, Adam, {arguments.policy}.\n")
    print("| words | XLA | setting | step, ms | ms / FP32 | MiB | MiB / FP32 |")
    print("| ---: | --- | --- | ---: | ---: | ---: | ---: |")
    for words in arguments.words:
        for jit in (False, True):
            wide = None
            for index, (name, *_) in enumerate(SETTINGS):
                found = alone(
                    measure,
                    index,
                    arguments.policy,
                    words,
                    arguments.texts,
                    jit,
                    arguments.rounds,
                )
                wide = wide or found
                cells = [f"{words:,}", "yes" if jit else "no", name]
                for here, there in zip(found, wide, strict=True):
                    cells += [f"{here:,.0f}", f"{here / there:.2f}"]
                print(f"| {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
