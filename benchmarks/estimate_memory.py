"""How far is `keras_mp.estimate_memory` from the memory that training takes?

`python benchmarks/estimate_memory.py` prints a Markdown table for five models, each in
FP32, in mixed precision as Keras has it, and with weights in FP16 by keras_mp, without
XLA. The estimate is made in a process of its own. The measured peak is what another
process grows by while it builds the model and takes three steps, over a tiny model that
has done the same. The C library hands freed memory back at once in it: as it comes, it
also keeps what is free between blocks. A ratio more than 10% from 1 is bold.
"""

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ.setdefault("KERAS_BACKEND", "tensorflow")
# Read by the C library as the measured processes start.
os.environ.setdefault("MALLOC_MMAP_THRESHOLD_", "65536")
os.environ.setdefault("MALLOC_TRIM_THRESHOLD_", "65536")

import argparse
import functools
import re
from pathlib import Path

import keras
import numpy as np
from growth import tiny_gpt2
from keras import layers
from machine import alone, machine, marked, peak
from training_models import gpt2
from variants import compiled, make_step

import keras_mp

COMPARED = ("FP32", "Keras, mixed_float16", "ours, float16")


def mlp(width=6144, batch=256):
    """Four Dense layers as wide."""
    x = inputs = layers.Input((width,))
    for _ in range(4):
        x = layers.Dense(width, "relu")(x)
    return classifying(keras.Model(inputs, layers.Dense(10)(x)), batch)


def resnet(size=112, batch=32, width=64):
    """A convolution and three stages of two residual blocks, with their norms."""

    def convolved(x, filters, stride=1):
        x = layers.Conv2D(filters, 3, stride, "same", use_bias=False)(x)
        return layers.BatchNormalization()(x)

    inputs = layers.Input((size, size, 3))
    x = layers.ReLU()(convolved(inputs, width))
    for stage in range(3):
        filters = width << stage
        for stride in (1 if stage == 0 else 2, 1):
            y = layers.ReLU()(convolved(x, filters, stride))
            y = convolved(y, filters)
            if x.shape[1:] != y.shape[1:]:
                x = layers.Conv2D(filters, 1, stride, use_bias=False)(x)
            x = layers.ReLU()(layers.Add()([x, y]))
    outputs = layers.Dense(10)(layers.GlobalAveragePooling2D()(x))
    return classifying(keras.Model(inputs, outputs), batch)


def encoder(tokens=256, batch=16, blocks=3, width=1024):
    """A Transformer encoder on vectors, with dropout."""
    x = inputs = layers.Input((tokens, width))
    for _ in range(blocks):
        y = layers.MultiHeadAttention(8, width // 8)(x, x)
        x = layers.LayerNormalization()(x + layers.Dropout(0.1)(y))
        y = layers.Dense(width)(layers.Dense(4 * width, "relu")(x))
        x = layers.LayerNormalization()(x + layers.Dropout(0.1)(y))
    outputs = layers.Dense(10)(layers.GlobalAveragePooling1D()(x))
    return classifying(keras.Model(inputs, outputs), batch)


def lstm(steps=32, batch=64, width=1024):
    """Two LSTM layers, and a classification of the last step."""
    inputs = layers.Input((steps, width))
    x = layers.LSTM(width, return_sequences=True)(inputs)
    x = layers.LSTM(width)(x)
    return classifying(keras.Model(inputs, layers.Dense(10)(x)), batch)


def classifying(model, batch):
    """Returns the model, Adam, the loss of 10 classes, and random inputs."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(batch, *model.input_shape[1:])).astype("float32")
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    return model, keras.optimizers.Adam(), loss, (x, rng.integers(0, 10, batch))


MODELS = {
    "MLP": mlp,
    "ResNet": resnet,
    "Transformer encoder": encoder,
    "GPT-2, 50,257 words": functools.partial(
        gpt2, tokens=256, batch=8, blocks=2, width=512, words=50_257
    ),
    "LSTM": lstm,
}


def estimate(name, variant):
    """Returns the MiB of weights, masters and state; of a step; and of all."""
    model, batch = compiled(MODELS[name], variant)
    use = keras_mp.estimate_memory(model, None, *batch)
    return [size / 2**20 for size in (use.total - use.step, use.step, use.total)]


def measure(name, variant):
    """Returns the MiB that this process grows by at its peak."""
    make_step(tiny_gpt2, variant)()
    before = resident()
    Path("/proc/self/clear_refs").write_text("5")  # the peak is what is held now
    step = make_step(MODELS[name], variant)
    for _ in range(3):
        step()
    return peak() - before


def resident():
    """Returns the MiB of memory that this process holds now, on Linux."""
    status = Path("/proc/self/status").read_text()
    return int(re.search(r"VmRSS:\s+(\d+)", status)[1]) / 1024


def row(name, variant, estimated, measured):
    """Returns a row of the table."""
    ratio = estimated[-1] / measured
    sizes = [f"{size:,.0f}" for size in (*estimated, measured)]
    cells = [name, variant, *sizes, marked(ratio, abs(ratio - 1) <= 0.1)]
    return f"| {' | '.join(cells)} |"


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("names", nargs="*", default=MODELS, metavar="NAME")
    names = parser.parse_args().names
    print(f"{machine()}; MiB\n")
    columns = ["model", "variant", "weights, masters, state", "step", "estimated"]
    print(f"| {' | '.join([*columns, 'measured', 'ratio'])} |")
    print("|---|---|" + "---:|" * 5)
    for name in names:
        for variant in COMPARED:
            both = [alone(f, name, variant) for f in (estimate, measure)]
            print(row(name, variant, *both), flush=True)


if __name__ == "__main__":
    main()
