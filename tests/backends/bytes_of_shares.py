"""Prints what a device holds with `shard_state=True`: docs/guides/several_devices.md.

Usage: KERAS_BACKEND=jax python tests/backends/bytes_of_shares.py
"""

import os

os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=8"

import keras
import numpy as np

import keras_mp

WIDTH = 1024
FORMS = {
    "float16": ("float16", {}),
    "float16, compressed": ("float16", {"masters": "remainders", "state": "int8"}),
    "mixed_float16": ("mixed_float16", {}),
}


def most_on_a_device(variables):
    """Returns the bytes of the buffers on the device that holds the most."""
    held = {}
    for variable in variables:
        for shard in variable.value.addressable_shards:
            held[shard.device] = held.get(shard.device, 0) + shard.data.nbytes
    return max(held.values())


def measure(policy, forms, devices):
    """Returns weights and state after a step of Adam, in bytes a parameter."""
    keras.utils.clear_session(free_memory=False)
    names = [f"cpu:{i}" for i in range(devices)]
    with keras.distribution.DataParallel(devices=names).scope():
        layers = [keras.layers.Dense(WIDTH, "relu", dtype=policy) for _ in range(3)]
        head = keras.layers.Dense(5, dtype=policy)
        model = keras.Sequential([keras.Input((WIDTH,)), *layers, head])
        optimizer = keras_mp.wrap("adam", shard_state=True, **forms)
        model.compile(optimizer, "mse")
        x, y = np.ones((8, WIDTH), "float32"), np.ones((8, 5), "float32")
        model.fit(x, y, batch_size=8, verbose=0)
    parameters = model.count_params()
    weights = most_on_a_device(model.trainable_variables)
    return weights / parameters, most_on_a_device(optimizer.variables) / parameters


if __name__ == "__main__":
    print("| policy | devices | weights | state | sum with gradients |")
    print("|---|---|---|---|---|")
    for name, (policy, forms) in FORMS.items():
        for devices in (1, 2, 4, 8):
            weights, state = measure(policy, forms, devices)
            total = 2 * weights + state
            print(f"| {name} | {devices} | {weights:.2f} | {state:.2f} | {total:.2f} |")
