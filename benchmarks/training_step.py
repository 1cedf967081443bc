"""How long is a training step of whole models, and how much memory does it take?

`python benchmarks/training_step.py` prints a Markdown table: the translator of
examples/translation, ResNet-50 and MobileNetV2 on small images and a small Transformer,
each in FP32, in mixed precision as Keras has it, and in ours. A step is
`train_on_batch` of the compiled model, its time the median of many; in each round the
variants step one after the other, so that what else the machine does slows all of them.
The memory is what a process of one variant alone grows by at its peak. A ratio of ours
to FP32 is bold above its goal: 1.0, and for bfloat16 0.65 where the kernels have
instructions for it. Names as arguments choose models; `--xla` compiles the steps.
"""

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ.setdefault("KERAS_BACKEND", "tensorflow")

import argparse
import re
import subprocess
import sys
from pathlib import Path

import keras
import numpy as np
from keras import layers
from machine import machine, marked, medians

import keras_mp
from keras_mp.ops.kernels.dispatch import multiplies_bfloat16

sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))

from experiments.flags import parse
from translation import step_time, train

# The dtype policy, and whether layers and optimizer are ours.
VARIANTS = {
    "FP32": ("float32", False),
    "Keras, mixed_float16": ("mixed_float16", False),
    "Keras, mixed_bfloat16": ("mixed_bfloat16", False),
    "ours, mixed_float16": ("mixed_float16", True),
    "ours, float16": ("float16", True),
    "ours, mixed_bfloat16": ("mixed_bfloat16", True),
    "ours, bfloat16": ("bfloat16", True),
}


def translator():
    args = parse(train.HERE, ["--preset=demo", "--precision=fp32"], train.CHOICES)
    [batch], *sizes = step_time.make_batches(args, 1)
    model = train.make_model(args, "sgd", *sizes)
    return model, train.make_optimizer(args), None, batch


def resnet():
    return of_images(keras.applications.ResNet50)


def mobilenet():
    return of_images(keras.applications.MobileNetV2)


def of_images(make_model):
    model = make_model(weights=None, input_shape=(64, 64, 3), classes=10)
    rng = np.random.default_rng(0)
    images, labels = rng.normal(size=(8, 64, 64, 3)), rng.integers(0, 10, 8)
    optimizer = keras.optimizers.SGD(0.01, momentum=0.9)
    return model, optimizer, "sparse_categorical_crossentropy", (images, labels)


def transformer(blocks=4, width=256, words=2000):
    x = inputs = layers.Input((128,))
    x = layers.Embedding(words, width)(x)
    for _ in range(blocks):
        attended = layers.MultiHeadAttention(4, width // 4)(x, x, use_causal_mask=True)
        x = layers.LayerNormalization()(layers.Add()([x, attended]))
        inner = layers.Dense(4 * width, "gelu")(x)
        x = layers.LayerNormalization()(layers.Add()([x, layers.Dense(width)(inner)]))
    model = keras.Model(inputs, layers.Dense(words)(x))
    tokens = np.random.default_rng(0).integers(0, words, (8, 129))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    return model, keras.optimizers.Adam(), loss, (tokens[:, :-1], tokens[:, 1:])


MODELS = {
    "translator": translator,
    "ResNet-50": resnet,
    "MobileNetV2": mobilenet,
    "Transformer": transformer,
}


def make_step(name, variant, xla):
    """Returns a function without arguments: a training step."""
    policy, is_ours = VARIANTS[variant]
    keras.utils.set_random_seed(0)
    keras.config.set_dtype_policy(policy)
    model, optimizer, loss, batch = MODELS[name]()
    if is_ours:
        keras_mp.convert(model)
        optimizer = keras_mp.wrap(optimizer)
    else:
        keras_mp.to_keras(model)  # the translator comes with layers of ours
        if policy == "mixed_float16":
            optimizer = keras.optimizers.LossScaleOptimizer(optimizer)
    model.compile(optimizer, loss, jit_compile=xla)
    return lambda: model.train_on_batch(*batch)


def peak():
    """Returns the most MiB of memory that this process has held, on Linux."""
    # `ru_maxrss` would begin with what the parent process held.
    status = Path("/proc/self/status").read_text()
    return int(re.search(r"VmHWM:\s+(\d+)", status)[1]) / 1024


def growth(name, variant, xla):
    """Returns the MiB by which steps let a process of their own grow."""
    command = [sys.executable, __file__, name, "--alone", variant]
    output = subprocess.check_output(command + ["--xla"] * xla, text=True)
    return float(output.split()[-1])


def goal(variant):
    """Returns the ratio to the time in FP32 that a variant is to stay below."""
    policy, is_ours = VARIANTS[variant]
    if not is_ours:
        return float("inf")
    fast = "bfloat16" in policy and multiplies_bfloat16()
    return 0.65 if fast else 1.0


def print_rows(name, rounds, xla, measures_memory):
    steps = [make_step(name, variant, xla) for variant in VARIANTS]
    times = dict(zip(VARIANTS, medians(steps, rounds), strict=True))
    for variant, ms in times.items():
        ratio = ms / times["FP32"]
        cells = [name, variant, f"{ms:.0f}", marked(ratio, ratio <= goal(variant))]
        cells.append(f"{growth(name, variant, xla):.0f}" if measures_memory else "")
        print(f"| {' | '.join(cells)} |", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("names", nargs="*", default=MODELS, metavar="NAME")
    parser.add_argument("--rounds", type=int, default=15, help="default 15")
    parser.add_argument("--xla", action="store_true", help="compile with XLA")
    parser.add_argument("--no-memory", action="store_true", help="times alone")
    parser.add_argument("--alone", help="print the memory of this variant")
    arguments = parser.parse_args()
    if arguments.alone:
        before = peak()
        [name] = arguments.names
        step = make_step(name, arguments.alone, arguments.xla)
        for _ in range(3):
            step()
        print(peak() - before)
        return
    print(f"{machine()}; XLA: {arguments.xla}; median of {arguments.rounds} steps\n")
    print("| model | variant | step, ms | / FP32 | peak memory, MiB |")
    print("|---|---|---|---|---|")
    for name in arguments.names:
        print_rows(name, arguments.rounds, arguments.xla, not arguments.no_memory)


if __name__ == "__main__":
    main()
