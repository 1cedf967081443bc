"""Trains a small model with FP16 weights, FP32 masters and loss scaling."""

import keras
import numpy as np

import keras_mp

keras.utils.set_random_seed(0)
keras.config.set_dtype_policy("float16")

x = np.random.default_rng(0).normal(size=(2048, 16)).astype("float32")
y = (np.sin(x[:, :1]) > x[:, 1:2] * x[:, 2:3]).astype("float32")

model = keras.Sequential(
    [
        keras.layers.Dense(64, "relu"),
        keras.layers.Dense(1, dtype="float32"),  # so that the logits are not rounded
    ]
)
loss = keras.losses.BinaryCrossentropy(from_logits=True)
model.compile(keras_mp.wrap(keras.optimizers.Adam(3e-3)), loss)
model.fit(x, y, epochs=5, verbose=2, callbacks=[keras_mp.LossScaleCallback()])

for weight, master in zip(model.weights, model.optimizer.master_weights, strict=True):
    print(f"{weight.path:30} {weight.dtype} with a master in {master.dtype}")
