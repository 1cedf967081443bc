"""Keras on JAX: the same `wrap` in `fit`, in FP32, FP16 and bfloat16.

    KERAS_BACKEND=jax python examples/on_jax.py

Trains a small network on the handwritten digits of scikit-learn. It needs no
TensorFlow. Prints the loss and the accuracy on held-out digits.
"""

import argparse

import keras
from keras import layers
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

import keras_mp

BATCH = 64


def make_data():
    """Returns images and labels to train on and to evaluate; pixels from 0 to 1."""
    images, labels = load_digits(return_X_y=True)
    images = (images / 16).astype("float32")
    return train_test_split(images, labels, test_size=357, random_state=0)


def make_model():
    return keras.Sequential(
        [
            keras.Input((64,)),
            layers.Dense(128, "relu"),
            layers.Dense(128, "relu"),
            # The logits are FP32, so that the loss is not rounded to 16 bits.
            layers.Dense(10, dtype="float32"),
        ]
    )


def make_optimizer(policy):
    """Returns Adam as each policy needs it: the recipe."""
    adam = keras.optimizers.Adam(1e-3)
    if policy == "float16":
        return keras_mp.wrap(adam)
    if policy == "bfloat16":
        return keras_mp.wrap(adam, loss_scale=1)  # bfloat16 needs no scaling
    return adam


def train(policy, start, epochs):
    """Returns the loss and the accuracy on held-out digits after training."""
    keras.utils.set_random_seed(0)
    keras.config.set_dtype_policy(policy)
    x, x_test, y, y_test = make_data()
    model = make_model()
    model.set_weights(start)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(make_optimizer(policy), loss, metrics=["accuracy"])
    model.fit(x, y, BATCH, epochs, verbose=0)
    return model.evaluate(x_test, y_test, verbose=0)


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--epochs", type=int, default=20)
    epochs = parser.parse_args(argv).epochs
    keras.utils.set_random_seed(0)
    start = make_model().get_weights()  # in 16 bits Keras draws others
    print(f"{'on ' + keras.backend.backend():16}{'loss':>10}{'accuracy':>10}")
    for policy in ("float32", "float16", "bfloat16"):
        loss, accuracy = train(policy, start, epochs)
        print(f"{policy:16}{loss:10.4f}{accuracy:10.4f}", flush=True)


if __name__ == "__main__":
    main()
