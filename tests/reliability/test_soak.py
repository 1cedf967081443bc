"""Many tiny steps: memory stays flat, nothing is traced again, the scale is right.

This file is also a script: a process of its own, where other tests have left nothing
that may be freed, or come apart, at any time.
"""

import gc
import os
import resource
import subprocess
import sys
from pathlib import Path

import keras
import numpy as np
import oracle
import pytest
import tensorflow as tf

import keras_mp

pytestmark = pytest.mark.slow

STEPS_PER_EPOCH = 500
RULE = {"growth_interval": 20, "min_scale": 2.0**4, "max_scale": 2.0**9}
PAGE = resource.getpagesize()


def resident():
    """The bytes of this process that are in memory."""
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * PAGE


def finite_steps():
    """Of the steps of an epoch, which have finite data: no block is like another."""
    generator = np.random.default_rng(0)
    chances = np.repeat([0.002, 0.02, 0.3, 0.002, 0.1], STEPS_PER_EPOCH // 5)
    return generator.random(STEPS_PER_EPOCH) >= chances


class Watch(keras.callbacks.Callback):
    """Notes, at the end of each epoch, all that must not grow; follows the scale."""

    def __init__(self, finite, loss):
        super().__init__()
        self.finite, self.loss = finite, loss
        self.machine = oracle.PlainDynamicLossScale(2.0**8, **RULE)
        self.memory, self.objects, self.traces, self.scales = [], [], [], set()

    def on_epoch_end(self, epoch, logs=None):
        for finite in self.finite:
            self.machine.step(finite)
            self.scales.add(self.machine.scale)
        self.machine.assert_equal(self.model.optimizer)
        self.memory.append(resident())
        self.objects.append(len(gc.get_objects()))
        self.traces.append(self.loss.calls)


class Loss(keras.losses.MeanSquaredError):
    """Counts how often Python calls it, that is how often the step is traced."""

    calls = 0

    def call(self, y_true, y_pred):
        self.calls += 1
        return super().call(y_true, y_pred)


def soak(epochs, jit_compile):
    layer = keras.layers.Dense(1, kernel_initializer="ones", dtype="float16")
    model = keras.Sequential([keras.Input((1,)), layer])
    optimizer = keras_mp.wrap(
        keras.optimizers.Adam(2.0**-10), keras_mp.DynamicLossScale(2.0**8, **RULE)
    )
    loss, finite = Loss(), finite_steps()
    model.compile(optimizer, loss, jit_compile=jit_compile)
    optimizer.build(model.trainable_variables)
    x = np.where(finite, 1.0, np.nan).astype("float32")[:, None]
    data = tf.data.Dataset.from_tensor_slices((x, np.ones_like(x))).batch(1)
    watch = Watch(finite, loss)
    callbacks = [watch, keras_mp.LossScaleCallback()]
    model.fit(data, epochs=epochs, shuffle=False, verbose=0, callbacks=callbacks)
    return watch


def assert_nothing_grows(watch, megabytes):
    assert set(watch.traces) == {1}
    assert watch.scales == {2.0**k for k in range(4, 10)}
    # The first steps fill the caches of TensorFlow and Python.
    warm = len(watch.memory) // 10 + 1
    assert watch.objects[-1] - watch.objects[warm] < 100
    assert watch.memory[-1] - watch.memory[warm] < megabytes * 2**20


def soak_in_a_process(epochs, route, megabytes):
    tests = Path(__file__).resolve().parents[1]
    done = subprocess.run(
        [sys.executable, __file__, str(epochs), route, str(megabytes)],
        env={**os.environ, "PYTHONPATH": f"{tests}:{tests.parent}"},
        stderr=subprocess.PIPE,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-2000:]


@pytest.mark.xslow
def test_two_thousand_steps():
    soak_in_a_process(4, "graph", megabytes=2)


@pytest.mark.xslow
@pytest.mark.parametrize("route", ["graph", "xla"])
def test_a_hundred_thousand_steps(route):
    # Over the last 90,000 steps 4 MB are 47 bytes a step: one small object of Python.
    soak_in_a_process(200, route, megabytes=4)


if __name__ == "__main__":
    watched = soak(int(sys.argv[1]), jit_compile=sys.argv[2] == "xla")
    assert_nothing_grows(watched, float(sys.argv[3]))
