"""A loss of NaN from the first step: attention whose logits pass 65,504.

python examples/diagnosing/attention.py
"""

import keras
import numpy as np

import keras_mp

WORDS, LENGTH, WIDTH = 1000, 32, 64


def model_of(layers):
    """A small Transformer without normalization, from `keras.layers` or ours."""
    keras.utils.set_random_seed(0)
    tokens = keras.Input((LENGTH,), dtype="int32")
    x = keras.layers.Embedding(
        WORDS, WIDTH, embeddings_initializer=keras.initializers.RandomNormal(stddev=60)
    )(tokens)
    x = x + layers.MultiHeadAttention(2, 64, name="attention")(x, x)
    x = layers.GlobalAveragePooling1D()(x)
    return keras.Model(tokens, layers.Dense(1, dtype="float32")(x))


def data(count=256):
    random = np.random.default_rng(0)
    tokens = random.integers(0, WORDS, (count, LENGTH))
    return tokens, (tokens[:, :1] % 2).astype("float32")


def train(layers):
    """Trains for three epochs; returns the model and its losses."""
    keras.config.set_dtype_policy("mixed_float16")
    tokens, labels = data()
    model = model_of(layers)
    model.compile(optimizer=keras_mp.wrap("adam"), loss="mse")
    history = model.fit(tokens, labels, epochs=3, verbose=0)
    return model, history.history["loss"]


def main():
    tokens, labels = data()
    model, losses = train(keras.layers)
    print("keras.layers   ", losses)
    print(keras_mp.find_overflow(model, tokens[:32], labels[:32]))
    _, losses = train(keras_mp.layers)
    print("keras_mp.layers", losses)


if __name__ == "__main__":
    main()
