"""What does a plan cost: how long is a training step, and how much does it hold?

`python benchmarks/plan.py` prints a Markdown table: a small Llama and a small T5 of
keras-hub and a convolutional network, each with a residual stream that reaches 40,000
in two channels, in FP32, in FP16, with the plan that `plan_precision` makes, and with
`Float16MatmulPolicy`. A step is `train_on_batch` of the compiled model outside of
XLA, its time the median of many; in each round the variants step one after the other,
so that what else the machine does slows all of them. Held are the bytes between the
forward and the backward pass of a graph, as held_bytes.py counts them. Names as
arguments choose models.
"""

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ.setdefault("KERAS_BACKEND", "tensorflow")

import argparse

import keras
import numpy as np
import tensorflow as tf
from held_bytes import held_tensors, total
from keras import layers
from machine import machine, medians

import keras_mp

# FP16 still holds it, so that its steps are not skipped; with the margin it is planned.
# But a T5 of keras-hub is NaN in FP16 without a plan, from its mask of -1e9.
OUTLIER = 4e4
WORDS, WIDTH, LENGTH, BATCH = 2000, 256, 128, 8
SIZES = {"vocabulary_size": WORDS, "hidden_dim": WIDTH, "intermediate_dim": 4 * WIDTH}
PRODUCTS = keras_mp.Float16MatmulPolicy()
SCALED = keras_mp.Float16MatmulPolicy(scaled=True)
# The dtype policy, and whether a plan is applied.
VARIANTS = {
    "FP32": ("float32", False),
    "float16": ("float16", False),
    "float16, plan": ("float16", True),
    "Float16MatmulPolicy": (PRODUCTS, False),
    "Float16MatmulPolicy, scaled": (SCALED, False),
}


def llama():
    from keras_hub.models import LlamaBackbone, LlamaCausalLM

    heads = {"num_query_heads": 4, "num_key_value_heads": 2}
    backbone = LlamaBackbone(num_layers=4, **heads, **SIZES)
    put_outliers(backbone.token_embedding.embeddings)
    x, y = words()
    return LlamaCausalLM(backbone, preprocessor=None), x, y


def t5():
    from keras_hub.models import T5Backbone

    backbone = T5Backbone(num_layers=2, num_heads=4, dropout=0.0, **SIZES)
    put_outliers(backbone.token_embedding.embeddings)
    x, y = words()
    parts = ("encoder", "decoder")
    x = {f"{part}_{name}": value for part in parts for name, value in x.items()}
    hidden = backbone.output["decoder_sequence_output"]
    return keras.Model(backbone.input, layers.Dense(WORDS)(hidden)), x, y


def cnn(channels=64, blocks=4):
    """Residual blocks of two convolutions, each after a normalization."""
    inputs = layers.Input((32, 32, 3))
    stem = layers.Conv2D(channels, 3, padding="same")
    x = stem(inputs)
    for _ in range(blocks):
        y = x
        for _ in range(2):
            y = layers.ReLU()(layers.BatchNormalization()(y))
            y = layers.Conv2D(channels, 3, padding="same", use_bias=False)(y)
        x = layers.Add()([x, y])
    x = layers.GlobalAveragePooling2D()(layers.BatchNormalization()(x))
    put_outliers(stem.bias)
    rng = np.random.default_rng(0)
    images = rng.normal(size=(16, 32, 32, 3)).astype("float32")
    return keras.Model(inputs, layers.Dense(10)(x)), images, rng.integers(0, 10, 16)


MODELS = {"Llama": llama, "T5": t5, "CNN": cnn}


def put_outliers(variable):
    """Gives the first two channels constants far from zero."""
    values = variable.numpy()
    values[..., :2] = OUTLIER, -OUTLIER
    variable.assign(values)


def words():
    """Returns inputs and targets: words, and the word after each."""
    rng = np.random.default_rng(0)
    found = rng.integers(0, WORDS, (BATCH, LENGTH + 1)).astype("int32")
    mask = np.ones((BATCH, LENGTH), "int32")
    return {"token_ids": found[:, :-1], "padding_mask": mask}, found[:, 1:]


def made(name, variant):
    """Returns a compiled model, its plan or None, and a batch."""
    policy, is_planned = VARIANTS[variant]
    keras.utils.set_random_seed(0)
    keras.config.set_dtype_policy(policy)
    model, x, y = MODELS[name]()
    is_fp32 = policy == "float32"
    optimizer = keras.optimizers.Adam(1e-4)
    model.compile(
        optimizer=optimizer if is_fp32 else keras_mp.wrap(optimizer),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        weighted_metrics=[],
        jit_compile=False,
    )
    plan = keras_mp.plan_precision(model, x, y) if is_planned else None
    if plan:
        plan.apply(model)
    elif not is_fp32:
        keras_mp.convert(model)
    return model, plan, (x, y)


def held_mib(model, x):
    """Returns the MiB that the model holds between forward and backward pass."""
    specs = keras.tree.map_structure(lambda a: tf.TensorSpec(a.shape, a.dtype), x)
    return total(held_tensors(model, specs, "graph")) / 2**20


def rows(name, rounds):
    """Yields the cells of each variant of a model."""
    found = {variant: made(name, variant) for variant in VARIANTS}
    held = {
        variant: held_mib(model, x) for variant, (model, _, (x, _)) in found.items()
    }
    steps = [
        lambda model=model, batch=batch: model.train_on_batch(*batch)
        for model, _, batch in found.values()
    ]
    times = dict(zip(VARIANTS, medians(steps, rounds), strict=True))
    for variant, (_, plan, _) in found.items():
        ms, mib = times[variant], held[variant]
        yield [
            *(name, variant),
            *(f"{ms:.0f}", f"{ms / times['FP32']:.2f}"),
            *(f"{mib:.1f}", f"{mib / held['FP32']:.2f}"),
            f"{len(plan.layers)}, {plan.float16_share:.3f}" if plan else "",
        ]


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("names", nargs="*", default=MODELS, metavar="NAME")
    parser.add_argument("--rounds", type=int, default=15, help="default 15")
    arguments = parser.parse_args()
    print(f"{machine()}; median of {arguments.rounds} steps\n")
    columns = ["model", "variant", "step, ms", "/ FP32", "held, MiB", "/ FP32"]
    columns += ["layers planned, FP16 share"]
    print(f"| {' | '.join(columns)} |")
    print("|" + "---|" * len(columns))
    for name in arguments.names:
        for cells in rows(name, arguments.rounds):
            print(f"| {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
