"""A language model with every word of its text: Python's own source code.

Trains a small decoder on the standard library of the Python that runs this, in FP32
with Keras's loss, and in mixed precision with Keras's loss and with that of keras_mp,
which never holds the logits. Prints the perplexity of text that was not trained on, and
the milliseconds of a step.
"""

import argparse
import re
import sysconfig
import time
from pathlib import Path

import keras
import numpy as np
from keras import layers

import keras_mp

LENGTH, WIDTH, BATCH = 128, 128, 8


def read_words(files=None):
    """Returns the words of the standard library's modules, or of its first files."""
    paths = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))[:files]
    text = "\n".join(path.read_text(encoding="utf-8") for path in paths)
    return np.array(re.findall(r"\w+|[^\w\s]", text))


def read_data(files=None):
    """Returns batches to train on and to evaluate, `[:, LENGTH + 1]`, and the words."""
    vocabulary, ids = np.unique(read_words(files), return_inverse=True)
    rows = ids[: len(ids) // (LENGTH + 1) * (LENGTH + 1)].reshape(-1, LENGTH + 1)
    np.random.default_rng(0).shuffle(rows)
    held_out = max(BATCH, len(rows) // 50)
    return rows[held_out:], rows[:held_out], len(vocabulary)


def make_model(words, policy):
    keras.utils.set_random_seed(0)
    keras.config.set_dtype_policy(policy)
    inputs = keras.Input((LENGTH,), dtype="int32")
    embedding = layers.ReversibleEmbedding(words, WIDTH)
    x = embedding(inputs)
    for _ in range(2):
        y = layers.LayerNormalization()(x)
        y = layers.MultiHeadAttention(4, WIDTH // 4)(y, y, use_causal_mask=True)
        x = layers.Add()([x, y])
        y = layers.LayerNormalization()(x)
        y = layers.Dense(WIDTH)(layers.Dense(4 * WIDTH, "gelu")(y))
        x = layers.Add()([x, y])
    x = layers.LayerNormalization()(x)
    return keras.Model(inputs, embedding(x, reverse=True))


class StepTime(keras.callbacks.Callback):
    """Lists the seconds of each step."""

    def on_train_begin(self, logs=None):
        self.seconds = []

    def on_train_batch_begin(self, batch, logs=None):
        self.start = time.perf_counter()

    def on_train_batch_end(self, batch, logs=None):
        self.seconds.append(time.perf_counter() - self.start)


def train(policy, losses, data, steps):
    """Returns the held-out perplexity and the median milliseconds of a step."""
    rows, held_out, words = data
    model = make_model(words, policy)
    optimizer = keras.optimizers.Adam(1e-3)
    if policy != "float32":
        model = keras_mp.convert(model)
        optimizer = keras_mp.wrap(optimizer)
    # The line that changes: keras.losses, or keras_mp.losses.
    loss = losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer, loss)
    rows, timer = rows[: steps * BATCH], StepTime()
    model.fit(rows[:, :-1], rows[:, 1:], BATCH, callbacks=[timer], verbose=0)
    of_words = model.evaluate(held_out[:, :-1], held_out[:, 1:], BATCH, verbose=0)
    return float(np.exp(of_words)), 1e3 * float(np.median(timer.seconds))


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--policy", default="mixed_bfloat16")
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--files", type=int, help="of the library; default all")
    given = parser.parse_args(argv)
    data = read_data(given.files)
    logits = 4 * BATCH * LENGTH * data[2] / 2**20
    print(f"{data[2]:,} words; the logits of a batch take {logits:.0f} MiB in FP32")
    settings = {
        "FP32, Keras's loss": ("float32", keras.losses),
        f"{given.policy}, Keras's loss": (given.policy, keras.losses),
        f"{given.policy}, loss of keras_mp": (given.policy, keras_mp.losses),
    }
    print(f"{'':34}{'perplexity':>12}{'ms a step':>12}")
    for name, (policy, losses) in settings.items():
        perplexity, spent = train(policy, losses, data, given.steps)
        print(f"{name:34}{perplexity:12.2f}{spent:12.0f}", flush=True)


if __name__ == "__main__":
    main()
