"""How long does the first step take, and how much of it do the layers of keras_mp add?

`python benchmarks/compile_time.py` prints a Markdown table: seconds of the first step,
forward and backward, of 1, 2, 4 and 8 layers one after the other, and of some models,
with the layers of Keras and with those of keras_mp, compiled by XLA and in a graph.
Each step is a function of its own, of a model of its own. The time is that of all
processors together in user mode, which what else the machine does changes least, and
beside it the time on the wall; of several rounds the least.
"""

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ.setdefault("KERAS_BACKEND", "tensorflow")

import argparse
import gc
import time

import keras
import tensorflow as tf
from machine import machine

import keras_mp

SEQUENCES, IMAGES = (32, 64), (16, 16, 32)
# Name, arguments, shape of the inputs without the batch.
LAYERS = (
    ("LayerNormalization", {}, SEQUENCES),
    ("RMSNormalization", {}, SEQUENCES),
    ("UnitNormalization", {}, SEQUENCES),
    ("BatchNormalization", {}, IMAGES),
    ("GroupNormalization", {"groups": 8}, IMAGES),
    ("Softmax", {}, SEQUENCES),
    ("AveragePooling2D", {"pool_size": 3, "strides": 1, "padding": "same"}, IMAGES),
    ("Dense", {"units": 64}, SEQUENCES),
    ("Conv2D", {"filters": 32, "kernel_size": 3, "padding": "same"}, IMAGES),
    ("MultiHeadAttention", {"num_heads": 2, "key_dim": 32}, SEQUENCES),
)
DEPTHS = (1, 2, 4, 8)
BATCH = 8


def stack(name, options, shape, depth):
    x = inputs = keras.Input(shape)
    for _ in range(depth):
        layer = getattr(keras.layers, name)(**options)
        x = layer(x, x) if name == "MultiHeadAttention" else layer(x)
    return keras.Model(inputs, x)


def residual():
    x = inputs = keras.Input(SEQUENCES)
    for _ in range(4):
        x = keras.layers.LayerNormalization()(x + keras.layers.Dense(64)(x))
    return keras.Model(inputs, x)


def transformer():
    x = inputs = keras.Input(SEQUENCES)
    for _ in range(3):
        attended = keras.layers.MultiHeadAttention(2, 32)(x, x)
        x = keras.layers.LayerNormalization()(x + attended)
        hidden = keras.layers.Dense(256, "relu")(x)
        x = keras.layers.LayerNormalization()(x + keras.layers.Dense(64)(hidden))
    return keras.Model(inputs, x)


def mobile_net(name):
    return getattr(keras.applications, name)(
        weights=None, input_shape=(64, 64, 3), classes=10
    )


MODELS = {
    "4 residual blocks of Dense": residual,
    "Transformer of 3 blocks": transformer,
    "MobileNetV2": lambda: mobile_net("MobileNetV2"),
    "MobileNetV3Small": lambda: mobile_net("MobileNetV3Small"),
}
PACKAGES = {"Keras": lambda model: model, "keras_mp": keras_mp.convert}


def cases(only, depths):
    """Yields a name, a depth and a function that makes the model of Keras."""
    for name, options, shape in LAYERS:
        if only in name:
            for depth in depths:
                yield (
                    name,
                    depth,
                    lambda n=name, o=options, s=shape, d=depth: stack(n, o, s, d),
                )
    for name, make in MODELS.items():
        if only in name:
            yield name, "", make


def first_step(package, make, jit):
    """Seconds of all processors, and on the wall, of the first forward and backward."""
    keras.utils.clear_session()  # which forgets the policy, too
    keras.config.set_dtype_policy("mixed_float16")
    model = PACKAGES[package](make())

    @tf.function(jit_compile=jit)
    def step(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = tf.cast(model(x, training=True), "float32")
            z = tf.reduce_sum(y * y)
        return tape.gradient(z, [x, *model.trainable_variables])

    x = tf.random.normal((BATCH, *model.input_shape[1:]))
    gc.collect()
    wall, user = time.perf_counter(), os.times().user
    step(x)
    tf.test.experimental.sync_devices()
    return os.times().user - user, time.perf_counter() - wall


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--only", default="", help="layers and models with this in it")
    parser.add_argument("--depths", type=int, nargs="+", default=DEPTHS)
    parser.add_argument("--rounds", type=int, default=3, help="default 3")
    arguments = parser.parse_args()
    print(
        f"{machine()}; seconds of all processors in user mode (and on the wall), the "
        f"least of {arguments.rounds} rounds\n"
    )
    runs = [(name, jit) for jit in (True, False) for name in PACKAGES]
    columns = [f"{name}, {'XLA' if jit else 'graph'}" for name, jit in runs]
    columns += ["ours / Keras, XLA", "graph"]
    print(f"| | depth | {' | '.join(columns)} |")
    print("|" + "---|" * (len(columns) + 2))
    # What TensorFlow does once in a process is not counted.
    for jit in (True, False):
        first_step("Keras", MODELS["4 residual blocks of Dense"], jit)
    for name, depth, make in cases(arguments.only, arguments.depths):
        rounds = [
            [first_step(package, make, jit) for package, jit in runs]
            for _ in range(arguments.rounds)
        ]
        times = [min(of_run) for of_run in zip(*rounds, strict=True)]
        cells = [name, str(depth)]
        cells += [f"{user:.2f} ({wall:.2f})" for user, wall in times]
        for theirs, ours in (times[:2], times[2:]):
            cells.append(f"{ours[0] / theirs[0]:.2f}")
        print(f"| {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
