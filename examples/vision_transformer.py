"""A small vision transformer on handwritten digits, in FP32 and in bfloat16.

The 8 x 8 digits of scikit-learn are cut into 16 patches of 2 x 2 pixels. Prints the
loss and the accuracy on held-out digits for both precisions.
"""

import argparse

import keras
from keras import layers
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

import keras_mp

PATCH, WIDTH, HEADS, BLOCKS, BATCH = 2, 64, 4, 3, 64


def make_data():
    """Returns images and labels to train on and to evaluate; pixels from 0 to 1."""
    images, labels = load_digits(return_X_y=True)
    images = (images / 16).reshape(-1, 8, 8, 1).astype("float32")
    return train_test_split(images, labels, test_size=357, random_state=0)


class Positions(layers.Layer):
    """Adds a trainable vector to each patch."""

    def build(self, shape):
        self.positions = self.add_weight(shape=shape[1:], initializer="random_normal")

    def call(self, x):
        return x + self.positions


def make_model():
    inputs = keras.Input((8, 8, 1))
    x = layers.Conv2D(WIDTH, PATCH, strides=PATCH)(inputs)
    x = layers.Reshape((-1, WIDTH))(x)
    x = Positions()(x)
    for _ in range(BLOCKS):
        y = layers.LayerNormalization()(x)
        y = layers.MultiHeadAttention(HEADS, WIDTH // HEADS)(y, y)
        x = layers.Add()([x, y])
        y = layers.LayerNormalization()(x)
        y = layers.Dense(4 * WIDTH, "gelu")(y)
        x = layers.Add()([x, layers.Dense(WIDTH)(y)])
    x = layers.LayerNormalization()(x)
    x = layers.GlobalAveragePooling1D()(x)
    # The logits are FP32, so that the loss is not rounded to bfloat16.
    return keras.Model(inputs, layers.Dense(10, dtype="float32")(x))


def train(policy, start, epochs):
    """Returns the loss and the accuracy on held-out digits after training."""
    keras.utils.set_random_seed(0)
    keras.config.set_dtype_policy(policy)
    x, x_test, y, y_test = make_data()
    model = make_model()
    model.set_weights(start)
    steps = epochs * -(-len(x) // BATCH)
    learning_rate = keras.optimizers.schedules.CosineDecay(2e-3, steps)
    optimizer = keras.optimizers.AdamW(learning_rate, weight_decay=1e-2)
    # The recipe: these lines, and the dtype policy "bfloat16".
    if policy == "bfloat16":
        model = keras_mp.convert(model)  # softmax, norms and sums in FP32
        optimizer = keras_mp.wrap(optimizer, loss_scale=1)  # bfloat16 needs no scaling
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer, loss, metrics=["accuracy"])
    model.fit(x, y, BATCH, epochs, verbose=0)
    return model.evaluate(x_test, y_test, verbose=0)


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--epochs", type=int, default=12)
    epochs = parser.parse_args(argv).epochs
    keras.utils.set_random_seed(0)
    start = make_model().get_weights()  # in 16 bits Keras draws others
    print(f"{'':16}{'loss':>10}{'accuracy':>10}")
    for policy in ("float32", "bfloat16"):
        loss, accuracy = train(policy, start, epochs)
        print(f"{policy:16}{loss:10.4f}{accuracy:10.4f}", flush=True)


if __name__ == "__main__":
    main()
