"""Transfer learning with keras.applications, in FP32 and in mixed_float16.

MobileNet is pre-trained on the digits 0 to 4. From 200 images it then learns the digits
5 to 9: first its new last layer, with the rest frozen, then also its upper blocks, at a
smaller learning rate. `--weights imagenet` downloads Keras's weights and skips the
pre-training. Prints the share of wrong answers on held-out digits after both phases.
"""

import argparse
import functools
import tempfile
from pathlib import Path

import keras
import numpy as np
from keras import layers
from sklearn.datasets import load_digits

import keras_mp

SIDE, FEW, BATCH = 32, 200, 32
FIRST_UNFROZEN = "conv_dw_6"


@functools.cache
def make_data():
    """Returns images and labels: digits 0 to 4, and some and the rest of 5 to 9."""
    digits = load_digits()
    images = np.repeat(digits.images[..., None].astype("float32") / 8 - 1, 3, axis=-1)
    images = keras.ops.convert_to_numpy(keras.ops.image.resize(images, (SIDE, SIDE)))
    low, high = digits.target < 5, digits.target >= 5
    x, y = images[high], digits.target[high] - 5
    return (images[low], digits.target[low]), (x[:FEW], y[:FEW]), (x[FEW:], y[FEW:])


def make_model(weights):
    """Returns a classifier of five digits, and the MobileNet in it."""
    shape = (SIDE, SIDE, 3)
    base = keras.applications.MobileNet(
        shape, alpha=0.25, include_top=False, weights=weights, pooling="avg"
    )
    logits = layers.Dense(5, dtype="float32")  # not rounded to FP16 before the loss
    return keras.Sequential([keras.Input(shape), base, logits]), base


def compile_model(model, optimizer):
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    # XLA would compile each phase for longer than it trains.
    model.compile(optimizer, loss, metrics=["accuracy"], jit_compile=False)


def pretrain(path, epochs):
    """Trains in FP32 on the digits 0 to 4, and saves the weights of MobileNet."""
    keras.utils.set_random_seed(0)
    keras.config.set_dtype_policy("float32")
    model, base = make_model(None)
    for layer in base.layers:
        if isinstance(layer, layers.BatchNormalization):
            layer.momentum = 0.9  # instead of 0.99, which needs more steps
    compile_model(model, keras.optimizers.Adam(2e-3))
    model.fit(*make_data()[0], BATCH, epochs, verbose=0)
    base.save_weights(path)


def train(policy, weights, epochs):
    """Returns the errors after training the last layer, and after the upper blocks."""
    keras.utils.set_random_seed(0)
    keras.config.set_dtype_policy(policy)
    _, few, held_out = make_data()
    model, base = make_model(weights)
    if policy == "mixed_float16":
        model = keras_mp.convert(model)  # Keras's FP16 convolution is slow on a CPU

    def fit(learning_rate):
        # A new optimizer for each phase: it is built for what is trainable.
        optimizer = keras.optimizers.Adam(learning_rate)
        if policy == "mixed_float16":
            optimizer = keras_mp.wrap(optimizer)
        compile_model(model, optimizer)
        model.fit(*few, BATCH, epochs, verbose=0)
        return 1 - model.evaluate(*held_out, BATCH, verbose=0)[1]

    base.trainable = False
    frozen = fit(1e-2)
    base.trainable = True
    for layer in base.layers[: base.layers.index(base.get_layer(FIRST_UNFROZEN))]:
        layer.trainable = False
    for layer in base.layers:
        if isinstance(layer, layers.BatchNormalization):
            layer.trainable = False  # keeps the averages of the pre-training
    return frozen, fit(1e-3)


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--weights", help='"imagenet", or a file; default pre-training')
    given = parser.parse_args(argv)
    print(f"{'':16}{'last layer':>12}{'unfrozen':>12}")
    with tempfile.TemporaryDirectory() as folder:
        weights = given.weights or str(Path(folder) / "digits.weights.h5")
        if not given.weights:
            pretrain(weights, given.epochs)
        for policy in ("float32", "mixed_float16"):
            frozen, unfrozen = train(policy, weights, given.epochs)
            print(f"{policy:16}{frozen:12.4f}{unfrozen:12.4f}", flush=True)


if __name__ == "__main__":
    main()
