"""Prints what a replica holds with `shard_state=True`: docs/guides/several_devices.md.

Usage: python tests/optimizer/bytes_of_replicas.py
"""

import os

os.environ["KERAS_BACKEND"] = "tensorflow"
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras
import tensorflow as tf

import keras_mp

FORMS = {
    "float16": ("float16", {}),
    "float16, compressed": ("float16", {"masters": "remainders", "state": "int8"}),
    "mixed_float16": ("mixed_float16", {}),
}
LAYERS = {"3 of 1024 x 1024": (3, 1024), "24 of 256 x 256": (24, 256)}


def most_on_a_device(strategy, variables):
    """Returns the bytes of the buffers on the device that holds the most."""
    held = {}
    for variable in {id(variable): variable for variable in variables}.values():
        for copy in strategy.experimental_local_results(variable.value):
            held[copy.device] = held.get(copy.device, 0) + copy.numpy().nbytes
    return max(held.values())


def measure(layers, policy, forms, replicas):
    """Returns weights and state for Adam, in bytes a parameter."""
    keras.utils.clear_session(free_memory=False)
    strategy = tf.distribute.MirroredStrategy([f"CPU:{i}" for i in range(replicas)])
    count, width = LAYERS[layers]
    with strategy.scope():
        hidden = [keras.layers.Dense(width, dtype=policy) for _ in range(count)]
        head = keras.layers.Dense(5, dtype=policy)
        model = keras.Sequential([keras.Input((width,)), *hidden, head])
        optimizer = keras_mp.wrap("adam", shard_state=True, **forms)
        optimizer.build(model.trainable_variables)
    weights = model.trainable_variables
    masters = [m for m in optimizer.master_weights if isinstance(m.value, tf.Variable)]
    own = {id(weight) for weight in weights}
    state = [v for v in (*optimizer.variables, *masters) if id(v) not in own]
    parameters = model.count_params()
    return (
        most_on_a_device(strategy, weights) / parameters,
        most_on_a_device(strategy, state) / parameters,
    )


if __name__ == "__main__":
    cpu = tf.config.list_physical_devices("CPU")[0]
    logical = [tf.config.LogicalDeviceConfiguration()] * 8
    tf.config.set_logical_device_configuration(cpu, logical)
    print("| layers | policy | replicas | weights | state | sum with gradients |")
    print("|---|---|---|---|---|---|")
    for layers in LAYERS:
        for name, (policy, forms) in FORMS.items():
            for replicas in (1, 2, 4, 8):
                weights, state = measure(layers, policy, forms, replicas)
                total = 2 * weights + state
                print(
                    f"| {layers} | {name} | {replicas} | {weights:.2f} | {state:.2f} "
                    f"| {total:.2f} |"
                )
