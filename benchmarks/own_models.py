"""Models as users write them, for convert.py: layers and training steps of their own.

Each public function returns a model that is not compiled, and inputs for it. A model
with a training step of its own has `compile_with`, which takes what wraps an optimizer.
"""

import keras
import tensorflow as tf
from keras import layers


class TransformerBlock(layers.Layer):
    """Attention and two layers for each position, each added and normalized."""

    def __init__(self, width, heads, inner):
        super().__init__()
        self.attention = layers.MultiHeadAttention(heads, width // heads)
        self.inner = keras.Sequential(
            [layers.Dense(inner, "relu"), layers.Dense(width)]
        )
        self.norms = [layers.LayerNormalization(epsilon=1e-6) for _ in range(2)]

    def build(self, shape):
        self.attention.build(shape, shape)
        self.inner.build(shape)
        for norm in self.norms:
            norm.build(shape)

    def call(self, x):
        x = self.norms[0](x + self.attention(x, x))
        return self.norms[1](x + self.inner(x))


def transformer_block():
    tokens = tf.random.uniform((4, 128), 0, 1000, "int32", seed=1)
    inputs = keras.Input((128,), dtype="int32")
    x = layers.Embedding(1000, 256)(inputs)
    for _ in range(2):
        x = TransformerBlock(256, heads=4, inner=1024)(x)
    x = layers.GlobalAveragePooling1D()(x)
    return keras.Model(inputs, layers.Dense(2, "softmax")(x)), tokens


class Autoencoder(keras.Model):
    """Learns to return its inputs, in a training step of its own."""

    def __init__(self):
        super().__init__()
        self.encoder = keras.Sequential([*_shrink(64), *_shrink(128)])
        self.decoder = keras.Sequential([*_grow(64), *_grow(3)])

    def compile_with(self, wrap):
        self.compile(wrap(keras.optimizers.Adam()), jit_compile=False)

    def call(self, images, training=False):
        return self.decoder(self.encoder(images, training=training), training=training)

    def train_step(self, data):
        images, *_ = keras.utils.unpack_x_y_sample_weight(data)
        with tf.GradientTape() as tape:
            made = tf.cast(self(images, training=True), "float32")
            loss = tf.reduce_mean((made - images) ** 2)
            scaled = self.optimizer.scale_loss(loss)
        gradients = tape.gradient(scaled, self.trainable_variables)
        self.optimizer.apply(gradients, self.trainable_variables)
        return {"loss": loss}


def autoencoder():
    model = Autoencoder()
    images = tf.random.normal((16, 32, 32, 3), seed=1)
    model(images)
    return model, images


class GAN(keras.Model):
    """A generator of images, a judge of them, and an optimizer for each."""

    def __init__(self):
        super().__init__()
        self.generator = keras.Sequential(
            [layers.Dense(8 * 8 * 128), layers.Reshape((8, 8, 128)), *_grow(64)]
        )
        self.generator.add(layers.Conv2DTranspose(3, 4, 2, "same", activation="tanh"))
        self.judge = keras.Sequential(
            [*_shrink(64), *_shrink(128), layers.GlobalMaxPooling2D(), layers.Dense(1)]
        )

    def compile_with(self, wrap):
        self.compile(jit_compile=False)
        self.optimizers = {}
        for part in ("generator", "judge"):
            self.optimizers[part] = wrap(keras.optimizers.Adam(1e-4))
            self.optimizers[part].build(getattr(self, part).trainable_variables)

    def call(self, noise, training=False):
        return self.judge(self.generator(noise, training=training), training=training)

    def train_step(self, data):
        noise, *_ = keras.utils.unpack_x_y_sample_weight(data)
        shape = (tf.shape(noise)[0], 32, 32, 3)
        real = tf.random.normal(shape, dtype=self.compute_dtype)

        def judged(images):
            return tf.cast(self.judge(images, training=True), "float32")

        def of_judge():
            made = self.generator(noise, training=True)
            return tf.reduce_mean(
                tf.nn.softplus(judged(made)) + tf.nn.softplus(-judged(real))
            )

        def of_generator():
            made = self.generator(noise, training=True)
            return tf.reduce_mean(tf.nn.softplus(-judged(made)))

        return {
            "judge": self.improve("judge", of_judge),
            "generator": self.improve("generator", of_generator),
        }

    def improve(self, part, loss_of):
        """Takes a step of one of the two models; returns its loss."""
        optimizer = self.optimizers[part]
        weights = getattr(self, part).trainable_variables
        with tf.GradientTape() as tape:
            loss = loss_of()
            scaled = optimizer.scale_loss(loss)
        optimizer.apply(tape.gradient(scaled, weights), weights)
        return loss


def gan():
    model = GAN()
    noise = tf.random.normal((16, 64), seed=1)
    model(noise)
    return model, noise


def _shrink(filters):
    return [
        layers.Conv2D(filters, 4, 2, "same"),
        layers.BatchNormalization(),
        layers.LeakyReLU(0.2),
    ]


def _grow(filters):
    return [
        layers.Conv2DTranspose(filters, 4, 2, "same"),
        layers.BatchNormalization(),
        layers.LeakyReLU(0.2),
    ]
