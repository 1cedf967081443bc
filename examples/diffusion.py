"""A small diffusion model of handwritten digits, in FP32 and in FP16.

A convolutional network learns to remove noise from the 8 x 8 digits of scikit-learn.
Its weights are averaged over the steps, in FP32. Prints the error on held-out digits,
and the Fréchet distance of 500 generated digits to them. Draws digits made in FP16.
"""

import argparse

import keras
import numpy as np
import tensorflow as tf
from keras import layers
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

import keras_mp

WIDTH, BATCH = 32, 64


def add_noise(image):
    """Returns a noisy image and its time in [0, 1], and the velocity to predict."""
    time = tf.random.uniform([1])
    signal, noise = tf.cos(np.pi / 2 * time), tf.sin(np.pi / 2 * time)
    random = tf.random.normal(image.shape)
    return (signal * image + noise * random, time), signal * random - noise * image


def make_data():
    """Returns images to train on and held-out images; pixels from -1 to 1."""
    images = (load_digits().images[..., None] / 8 - 1).astype("float32")
    return train_test_split(images, test_size=357, random_state=0)


def block(x, time, width):
    y = layers.Conv2D(width, 3, padding="same")(x)
    y = layers.Add()([y, layers.Dense(width)(time)])
    y = layers.Activation("silu")(layers.GroupNormalization(8)(y))
    y = layers.Conv2D(width, 3, padding="same")(y)
    return layers.Add()([y, layers.Conv2D(width, 1)(x)])


def make_model():
    image, time = keras.Input((8, 8, 1)), keras.Input((1,))
    embedded = layers.Dense(WIDTH, "silu")(layers.Dense(WIDTH, "silu")(time))
    embedded = layers.Reshape((1, 1, WIDTH))(embedded)
    fine = block(image, embedded, WIDTH)
    coarse = block(layers.AveragePooling2D(2)(fine), embedded, 2 * WIDTH)
    coarse = block(coarse, embedded, 2 * WIDTH)
    x = layers.Concatenate()([layers.UpSampling2D()(coarse), fine])
    x = block(x, embedded, WIDTH)
    # The velocity is FP32, so that the loss is not rounded to FP16.
    return keras.Model([image, time], layers.Conv2D(1, 1, dtype="float32")(x))


def generate(model, count, steps=20):
    """Returns images that the model makes from noise."""
    x = np.random.default_rng(0).normal(size=(count, 8, 8, 1)).astype("float32")
    for now, then in zip(range(steps, 0, -1), range(steps - 1, -1, -1), strict=True):
        angle, next_angle = np.pi / 2 * now / steps, np.pi / 2 * then / steps
        time = np.full((count, 1), now / steps, "float32")
        velocity = model.predict([x, time], batch_size=count, verbose=0)
        image = np.cos(angle) * x - np.sin(angle) * velocity
        noise = np.sin(angle) * x + np.cos(angle) * velocity
        x = np.cos(next_angle) * image + np.sin(next_angle) * noise
    return np.clip(x, -1, 1)


def frechet_distance(images, others):
    """Returns the distance of normal distributions with these means and covariances."""
    a, b = images.reshape(-1, 64), others.reshape(-1, 64)
    of_a, of_b = np.cov(a, rowvar=False), np.cov(b, rowvar=False)
    root = np.sqrt(np.maximum(np.linalg.eigvals(of_a @ of_b).real, 0)).sum()
    means = np.sum((a.mean(axis=0) - b.mean(axis=0)) ** 2)
    return means + np.trace(of_a) + np.trace(of_b) - 2 * root


def train(policy, start, steps):
    """Returns the mean squared error on held-out images, and generated images."""
    keras.utils.set_random_seed(0)
    keras.config.set_dtype_policy(policy)
    x, held_out = make_data()
    data = tf.data.Dataset.from_tensor_slices(x).shuffle(len(x)).repeat()
    test = tf.data.Dataset.from_tensor_slices(np.repeat(held_out, 4, axis=0))
    test = test.map(add_noise).batch(BATCH)
    model = make_model()
    model.set_weights(start)
    # The average of the weights replaces them when the training ends.
    optimizer = keras.optimizers.Adam(2e-3, use_ema=True, ema_momentum=0.98)
    # The recipe: these lines, and the dtype policy "float16".
    if policy == "float16":
        model = keras_mp.convert(model)  # Keras's FP16 convolution is slow on a CPU
        optimizer = keras_mp.wrap(optimizer)
    model.compile(optimizer, "mse")
    data = data.map(add_noise).batch(BATCH).prefetch(tf.data.AUTOTUNE)
    model.fit(data, steps_per_epoch=steps, shuffle=False, verbose=0)
    keras.utils.set_random_seed(1)  # the same noise for both precisions
    error = model.evaluate(test, verbose=0)
    images = generate(model, 500)
    return error, frechet_distance(images, held_out), images


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--steps", type=int, default=400)
    steps = parser.parse_args(argv).steps
    keras.utils.set_random_seed(0)
    start = make_model().get_weights()  # in 16 bits Keras draws others
    print(f"{'':16}{'error':>10}{'distance':>10}")
    for policy in ("float32", "float16"):
        error, distance, images = train(policy, start, steps)
        print(f"{policy:16}{error:10.4f}{distance:10.2f}", flush=True)
    for row in np.concatenate(images[:8, :, :, 0], axis=1):
        print("".join(" .:-=+*#%@"[int(4.99 * (pixel + 1))] * 2 for pixel in row))


if __name__ == "__main__":
    main()
