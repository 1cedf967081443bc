"""An image classifier with tf.data: handwritten digits, in FP32 and in FP16.

The data is the 1,797 digits of scikit-learn. The pipeline shifts each image by up to
one pixel. Prints the loss and the accuracy on held-out digits for both precisions.
"""

import argparse

import keras
import tensorflow as tf
from keras import layers
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

import keras_mp

BATCH = 64


def shift(image, label):
    """Moves an image by up to one pixel in each direction."""
    padded = tf.pad(image, [[1, 1], [1, 1], [0, 0]])
    return tf.image.random_crop(padded, image.shape), label


def make_data():
    """Returns data sets to train on and to evaluate; pixels from 0 to 1, in FP32."""
    images, labels = load_digits(return_X_y=True)
    images = (images / 16).reshape(-1, 8, 8, 1).astype("float32")
    x, x_test, y, y_test = train_test_split(
        images, labels, test_size=357, random_state=0
    )
    train = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(len(x), seed=0).repeat()
    train = train.map(shift, tf.data.AUTOTUNE).batch(BATCH).prefetch(tf.data.AUTOTUNE)
    return train, tf.data.Dataset.from_tensor_slices((x_test, y_test)).batch(BATCH)


def make_model():
    return keras.Sequential(
        [
            keras.Input((8, 8, 1)),
            layers.Conv2D(32, 3, padding="same", activation="relu"),
            layers.Conv2D(32, 3, padding="same", activation="relu"),
            layers.MaxPooling2D(),
            layers.Conv2D(64, 3, padding="same", activation="relu"),
            layers.MaxPooling2D(),
            layers.Flatten(),
            layers.Dropout(0.3),
            # The logits are FP32, so that the loss is not rounded to FP16.
            layers.Dense(10, dtype="float32"),
        ]
    )


def train(policy, start, steps):
    """Returns the loss and the accuracy on held-out digits after training."""
    keras.utils.set_random_seed(0)
    keras.config.set_dtype_policy(policy)
    data, test = make_data()
    model = make_model()
    model.set_weights(start)
    optimizer = keras.optimizers.Adam(2e-3)
    # The recipe: these lines, and the dtype policy "float16".
    if policy == "float16":
        model = keras_mp.convert(model)  # Keras's FP16 convolution is slow on a CPU
        optimizer = keras_mp.wrap(optimizer)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer, loss, metrics=["accuracy"])
    # tf.data has shuffled already.
    model.fit(data, steps_per_epoch=steps, shuffle=False, verbose=0)
    return model.evaluate(test, verbose=0)


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--steps", type=int, default=300)
    steps = parser.parse_args(argv).steps
    keras.utils.set_random_seed(0)
    start = make_model().get_weights()  # in 16 bits Keras draws others
    print(f"{'':16}{'loss':>10}{'accuracy':>10}")
    for policy in ("float32", "float16"):
        loss, accuracy = train(policy, start, steps)
        print(f"{policy:16}{loss:10.4f}{accuracy:10.4f}", flush=True)


if __name__ == "__main__":
    main()
