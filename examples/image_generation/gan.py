"""The training of a GAN: two optimizers, one loss scale."""

from typing import Any

import keras
import tensorflow as tf
from keras import ops


class GAN(keras.Model):
    """A generator and a discriminator that learn from each other.

    Args:
        generator: `keras.Model` from noise to images.
        discriminator: `keras.Model` from images to a logit.
    """

    def __init__(self, generator: keras.Model, discriminator: keras.Model) -> None:
        super().__init__()
        self.generator = generator
        self.discriminator = discriminator
        self.noise = keras.random.SeedGenerator()
        self.generator_loss = keras.metrics.Mean("generator_loss")
        self.discriminator_loss = keras.metrics.Mean("discriminator_loss")
        self.built = True

    def compile(self, optimizer: Any, discriminator_optimizer: Any) -> None:
        """Takes the generator's optimizer, and the discriminator's."""
        super().compile(optimizer, jit_compile=False)
        self.discriminator_optimizer = discriminator_optimizer
        optimizer.build(self.generator.trainable_variables)
        discriminator_optimizer.build(self.discriminator.trainable_variables)

    @property
    def variables(self) -> list[Any]:
        """What a checkpoint holds beside the variables of `optimizer`."""
        return [*super().variables, *self.discriminator_optimizer.variables]

    def train_step(self, images: tf.Tensor) -> dict[str, Any]:
        """Trains each of the two against the other one, once."""
        shape = (ops.shape(images)[0], *self.generator.input_shape[1:])
        noise = keras.random.normal(shape, dtype="float32", seed=self.noise)
        with tf.GradientTape() as tape:
            fakes = self.generator(noise, training=True)
            with tape.stop_recording():
                self.train_discriminator(images, fakes)
            loss = cross_entropy(1, self.discriminator(fakes, training=True))
            scaled = self.optimizer.scale_loss(loss)
        weights = self.generator.trainable_variables
        self.optimizer.apply(tape.gradient(scaled, weights), weights)
        self.generator_loss.update_state(loss)
        return {metric.name: metric.result() for metric in self.metrics}

    def train_discriminator(self, images: tf.Tensor, fakes: tf.Tensor) -> None:
        """Trains the discriminator to tell images from what was generated."""
        optimizer = self.discriminator_optimizer
        with tf.GradientTape() as tape:
            real = cross_entropy(1, self.discriminator(images, training=True))
            fake = cross_entropy(0, self.discriminator(fakes, training=True))
            scaled = optimizer.scale_loss(real + fake)
        weights = self.discriminator.trainable_variables
        optimizer.apply(tape.gradient(scaled, weights), weights)
        self.discriminator_loss.update_state(real + fake)


def cross_entropy(label: int, logits: tf.Tensor) -> tf.Tensor:
    """Returns the mean cross entropy, in FP32, of logits that should say `label`."""
    logits = ops.cast(logits, "float32")
    labels = ops.full_like(logits, label)
    return ops.mean(ops.binary_crossentropy(labels, logits, from_logits=True))
