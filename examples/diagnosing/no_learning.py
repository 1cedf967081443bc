"""A loss that does not fall: the mean over many pixels makes gradients too small.

python examples/diagnosing/no_learning.py [FIGURE]
"""

import sys

import keras
from images import denoiser, smooth_images, with_noise

import keras_mp

EPOCHS, BATCH = 8, 128


def train(policy, loss_scale, epochs=EPOCHS, count=512, callbacks=()):
    """Trains a denoiser; returns it, and its loss after each epoch."""
    keras.utils.set_random_seed(0)
    keras.config.set_dtype_policy(policy)
    clean = smooth_images(count)
    noisy = with_noise(clean, 0.3)
    model = denoiser()
    model.compile(
        optimizer=keras_mp.wrap("adam", loss_scale=loss_scale),
        loss="mse",
        loss_weights=0.01,  # one loss among others, in the model that this is from
    )
    history = model.fit(
        noisy,
        clean,
        batch_size=BATCH,
        epochs=epochs,
        verbose=0,
        callbacks=list(callbacks),
    )
    return model, noisy, clean, history.history["loss"]


def main():
    suggested = None
    for name, policy, loss_scale in (
        ("FP32", "float32", 1),
        ("mixed, no scaling", "mixed_float16", 1),
        ("mixed, dynamic scale", "mixed_float16", "dynamic"),
        ("mixed, suggested", "mixed_float16", None),
    ):
        model, noisy, clean, losses = train(policy, loss_scale or suggested)
        skipped = int(model.optimizer.skipped_steps)
        print(f"{name:<21}", *(f"{x:.5f}" for x in losses), f"{skipped} skipped")
        if name == "mixed, no scaling":
            batch = noisy[:BATCH], clean[:BATCH]
            report = keras_mp.inspect(model, *batch)
            suggested = keras_mp.suggest_loss_scale(model, [batch])
    print(report)
    report.plot(sys.argv[1] if len(sys.argv) > 1 else "no_learning.svg")


if __name__ == "__main__":
    main()
