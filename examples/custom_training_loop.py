"""A custom training loop for a language model of characters, in FP32 and in FP16.

The text is the help of Python's keywords and types, which is in its standard library.
The loop scales the loss, unscales the gradients and logs their norm. Prints the
perplexity of held-out text for both precisions.
"""

import argparse
from pydoc_data.topics import topics

import keras
import numpy as np
import tensorflow as tf
from keras import layers

import keras_mp

LENGTH, WIDTH, BATCH = 48, 128, 64


def make_data():
    """Returns rows of characters to train on and held-out ones, `[:, LENGTH + 1]`."""
    text = "\n".join(topics.values()).encode("ascii", "ignore")
    ids = np.frombuffer(text, "uint8").astype("int32")
    rows = ids[: len(ids) // (LENGTH + 1) * (LENGTH + 1)].reshape(-1, LENGTH + 1)
    np.random.default_rng(0).shuffle(rows)
    return rows[1024:], rows[:1024]


def make_model():
    return keras.Sequential(
        [
            keras.Input((LENGTH,), dtype="int32"),
            layers.Embedding(128, WIDTH),
            layers.GRU(WIDTH, return_sequences=True),
            # The logits are FP32, so that the loss is not rounded to FP16.
            layers.Dense(128, dtype="float32"),
        ]
    )


loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def make_step(model, optimizer):
    """Returns a function that trains on a batch, and returns the loss and the norm."""
    weights = model.trainable_variables

    @tf.function
    def step(rows):
        with tf.GradientTape() as tape:
            loss = loss_of(rows[:, 1:], model(rows[:, :-1], training=True))
            # The recipe: scale the loss, and unscale the gradients to look at them.
            scaled = optimizer.scale_loss(loss)
        gradients = tape.gradient(scaled, weights)
        gradients = optimizer.unscale_gradients(gradients, weights)
        norm = tf.linalg.global_norm(gradients)
        # After an overflow the norm is infinite or NaN, and `apply` skips the step.
        optimizer.apply(gradients, weights)
        return loss, norm

    return step


def train(policy, start, steps):
    """Returns the perplexity of held-out text after training."""
    keras.utils.set_random_seed(0)
    keras.config.set_dtype_policy(policy)
    rows, held_out = make_data()
    model = make_model()
    model.set_weights(start)
    # The optimizer clips unscaled gradients, as in FP32.
    adam = keras.optimizers.Adam(5e-3, global_clipnorm=1.0)
    if policy == "float16":
        model = keras_mp.convert(model)  # Keras's FP16 layers are slow on a CPU
        optimizer = keras_mp.wrap(adam)
    else:
        # So that both precisions run one loop: FP32 needs no scale, and no masters.
        optimizer = keras_mp.wrap(adam, loss_scale=1)
    optimizer.build(model.trainable_variables)
    step = make_step(model, optimizer)
    data = tf.data.Dataset.from_tensor_slices(rows).shuffle(len(rows), seed=0).repeat()
    for number, batch in enumerate(data.batch(BATCH).take(steps)):
        loss, norm = step(batch)
        if number % 50 == 0:
            told = f"loss {float(loss):.3f}, norm {float(norm):.3f}"
            scale = float(optimizer.loss_scale)
            print(f"{policy}, step {number}: {told}, loss scale {scale:g}", flush=True)
    logits = model.predict(held_out[:, :-1], batch_size=256, verbose=0)
    return float(np.exp(loss_of(held_out[:, 1:], logits)))


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--steps", type=int, default=200)
    steps = parser.parse_args(argv).steps
    keras.utils.set_random_seed(0)
    start = make_model().get_weights()  # in 16 bits Keras draws others
    policies = ("float32", "float16")
    found = {policy: train(policy, start, steps) for policy in policies}
    print(f"{'':16}{'perplexity':>12}")
    for policy, perplexity in found.items():
        print(f"{policy:16}{perplexity:12.3f}")


if __name__ == "__main__":
    main()
