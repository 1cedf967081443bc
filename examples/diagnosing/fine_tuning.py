"""Weights that do not move: a learning rate of 1e-5 on FP16 weights without masters.

python examples/diagnosing/fine_tuning.py
"""

import keras
import numpy as np
from images import denoiser, smooth_images, with_noise

import keras_mp

BATCH = 128


def pretrained():
    """Weights of a denoiser for weak noise, trained in FP32."""
    keras.utils.set_random_seed(0)
    keras.config.set_dtype_policy("float32")
    clean = smooth_images(512)
    model = denoiser()
    model.compile(optimizer="adam", loss="mse")
    model.fit(with_noise(clean, 0.1), clean, batch_size=BATCH, epochs=8, verbose=0)
    return model.get_weights()


def fine_tune(policy, optimizer, weights, epochs=10, count=512):
    """Trains on stronger noise; returns losses, the share that moved, and the model."""
    keras.utils.set_random_seed(0)
    keras.config.set_dtype_policy(policy)
    clean = smooth_images(count)
    noisy = with_noise(clean, 0.3)
    model = denoiser()
    model.set_weights(weights)
    before = np.concatenate([np.ravel(w) for w in model.get_weights()])
    model.compile(optimizer=optimizer, loss="mse")
    history = model.fit(noisy, clean, batch_size=BATCH, epochs=epochs, verbose=0)
    after = np.concatenate([np.ravel(w) for w in model.get_weights()])
    return history.history["loss"], np.mean(after != before), (model, noisy, clean)


def main():
    weights = pretrained()
    adam = keras.optimizers.Adam
    for name, policy, optimizer in (
        ("FP32", "float32", adam(1e-5)),
        (
            "FP16, no masters",
            "float16",
            keras.optimizers.LossScaleOptimizer(adam(1e-5)),
        ),
        ("FP16, masters", "float16", keras_mp.wrap(adam(1e-5))),
    ):
        losses, moved, trained = fine_tune(policy, optimizer, weights)
        print(f"{name:<17} loss {losses[0]:.5f} to {losses[-1]:.5f}, {moved:.1%} moved")
    model, noisy, clean = trained
    print(keras_mp.inspect(model, noisy[:BATCH], clean[:BATCH]))


if __name__ == "__main__":
    main()
