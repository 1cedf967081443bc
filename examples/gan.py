"""A small GAN of handwritten digits, in FP32 and FP16: two optimizers, one loss scale.

The images are the 8 x 8 digits of scikit-learn. Prints the Fréchet distance of 500
generated images to held-out digits, for both precisions.
"""

import argparse

import keras
import numpy as np
import tensorflow as tf
from keras import layers
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

import keras_mp

NOISE, BATCH = 32, 64


def make_data():
    """Returns images to train on and held-out images; pixels from -1 to 1."""
    images = (load_digits().images[..., None] / 8 - 1).astype("float32")
    return train_test_split(images, test_size=357, random_state=0)


class GAN(keras.Model):
    def __init__(self):
        super().__init__()
        self.generator = keras.Sequential(
            [
                keras.Input((NOISE,)),
                layers.Dense(4 * 4 * 64, "relu"),
                layers.Reshape((4, 4, 64)),
                layers.Conv2DTranspose(32, 4, 2, "same", activation="leaky_relu"),
                layers.Conv2D(1, 3, padding="same", activation="tanh"),
            ]
        )
        self.discriminator = keras.Sequential(
            [
                keras.Input((8, 8, 1)),
                layers.Conv2D(32, 3, padding="same", activation="leaky_relu"),
                layers.Conv2D(64, 4, 2, "same", activation="leaky_relu"),
                layers.Flatten(),
                layers.Dropout(0.3),
                # The logits are FP32, so that the loss is not rounded to FP16.
                layers.Dense(1, dtype="float32"),
            ]
        )

    def compile(self, g_optimizer, d_optimizer):
        super().compile()
        self.g_optimizer, self.d_optimizer = g_optimizer, d_optimizer
        g_optimizer.build(self.generator.trainable_variables)
        d_optimizer.build(self.discriminator.trainable_variables)

    def train_step(self, real):
        entropy = keras.losses.BinaryCrossentropy(from_logits=True)
        noise = tf.random.normal((tf.shape(real)[0], NOISE))
        with tf.GradientTape() as g_tape, tf.GradientTape() as d_tape:
            fakes = self.discriminator(self.generator(noise), training=True)
            reals = self.discriminator(real, training=True)
            g_loss = entropy(tf.ones_like(fakes), fakes)
            d_loss = entropy(tf.zeros_like(fakes), fakes)
            d_loss += entropy(0.9 * tf.ones_like(reals), reals)
            # Keras optimizers also have `scale_loss`: FP32 runs this same step.
            g_scaled = self.g_optimizer.scale_loss(g_loss)
            d_scaled = self.d_optimizer.scale_loss(d_loss)
        for tape, loss, optimizer, part in (
            (g_tape, g_scaled, self.g_optimizer, self.generator),
            (d_tape, d_scaled, self.d_optimizer, self.discriminator),
        ):
            gradients = tape.gradient(loss, part.trainable_variables)
            optimizer.apply(gradients, part.trainable_variables)
        return {"g_loss": g_loss, "d_loss": d_loss}


def frechet_distance(images, others):
    """Returns the distance of normal distributions with these means and covariances."""
    a, b = images.reshape(-1, 64), others.reshape(-1, 64)
    of_a, of_b = np.cov(a, rowvar=False), np.cov(b, rowvar=False)
    root = np.sqrt(np.maximum(np.linalg.eigvals(of_a @ of_b).real, 0)).sum()
    means = np.sum((a.mean(axis=0) - b.mean(axis=0)) ** 2)
    return means + np.trace(of_a) + np.trace(of_b) - 2 * root


def train(policy, start, epochs):
    """Returns the distance of generated images to held-out ones."""
    keras.utils.set_random_seed(0)
    keras.config.set_dtype_policy(policy)
    x, held_out = make_data()
    gan = GAN()
    gan.set_weights(start)
    g_optimizer, d_optimizer = (keras.optimizers.Adam(5e-4, 0.5) for _ in range(2))
    # The recipe: these lines, and the dtype policy "float16".
    if policy == "float16":
        keras_mp.convert(gan)  # Keras's FP16 convolution is slow on a CPU
        g_optimizer = keras_mp.wrap(g_optimizer)
        d_optimizer = keras_mp.wrap(d_optimizer, loss_scale=g_optimizer)
    gan.compile(g_optimizer, d_optimizer)
    gan.fit(x, batch_size=BATCH, epochs=epochs, verbose=0)
    noise = np.random.default_rng(0).normal(size=(500, NOISE)).astype("float32")
    images = gan.generator.predict(noise, verbose=0).astype("float32")
    return frechet_distance(images, held_out)


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--epochs", type=int, default=60)
    epochs = parser.parse_args(argv).epochs
    keras.utils.set_random_seed(0)
    start = GAN().get_weights()  # in 16 bits Keras draws others
    print(f"{'':16}{'distance':>10}")
    for policy in ("float32", "float16"):
        print(f"{policy:16}{train(policy, start, epochs):10.2f}", flush=True)


if __name__ == "__main__":
    main()
