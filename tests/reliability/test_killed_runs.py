"""Runs that are killed with SIGKILL at random moments and go on, to the bit.

This file is also a script. It imports TensorFlow, trains nothing itself, and forks a
process for each attempt, so that a new start takes a second and nothing of the model
can have been kept in memory.
"""

import contextlib
import functools
import json
import mmap
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import keras
import numpy as np
import oracle
import pytest
import tensorflow as tf

import keras_mp

pytestmark = pytest.mark.slow

# What a killed process may do at most before it is killed, and after that at random.
STEPS_AT_MOST, SECONDS_AT_MOST = 8, 0.03
# More than any process can do in both, so that every kill finds it at work.
STEPS_PER_KILL = 24

# Shared with the process that is killed: whether it is just writing a checkpoint.
writing = mmap.mmap(-1, 1)


@contextlib.contextmanager
def marked():
    writing[0] = 1
    yield
    writing[0] = 0


ALL_IN_8_BITS = keras_mp.Int8State(min_size=1, min_rank=0, exclude=())
ALL_IN_4_BITS = keras_mp.Int4State(min_size=1, min_rank=0, exclude=())
# Optimizer state in fewer bytes, by the name of the route.
FORMS = {
    "remainders": {"masters": "remainders", "state": ALL_IN_8_BITS},
    "int8 remainders": {"masters": "int8_remainders", "state": ALL_IN_8_BITS},
    "int4": {"masters": "int8_remainders", "state": ALL_IN_4_BITS},
    "no_masters": {"masters": None, "rounding": "stochastic", "state": ALL_IN_8_BITS},
}


def make_model(dropout=0.5, **forms):
    """A model with every kind of state that training goes on from."""
    keras.utils.set_random_seed(0)
    layers = [
        keras.Input((3,)),
        keras.layers.Dense(256, activation="tanh", dtype="float16", name="hidden"),
        keras.layers.Dropout(dropout, dtype="float16"),
        keras.layers.Dense(1, dtype="float16", name="out"),
    ]
    model = keras.Sequential(layers)
    inner = keras.optimizers.SGD(0.01, momentum=0.9, use_ema=not forms)
    rule = keras_mp.DynamicLossScale(2.0**10, growth_interval=3)
    forms = forms or {"rounding": "stochastic"}
    optimizer = keras_mp.wrap(inner, rule, seed=7, **forms)
    model.compile(optimizer, "mse", jit_compile=False)
    optimizer.build(model.trainable_variables)
    return model


def batch(step):
    """The data of a step; every fifth overflows."""
    x = np.random.default_rng(step).normal(size=(4, 3)).astype("float32")
    y = x[:, :1] * x[:, 1:2]
    if step % 5 == 3:
        x[0, 0] = np.inf
    return x, y


def batches(start):
    def generate():
        for step in range(start, 10**9):
            yield batch(step)

    spec = (tf.TensorSpec((4, 3)), tf.TensorSpec((4, 1)))
    return tf.data.Dataset.from_generator(generate, output_signature=spec)


class Marked(keras_mp.Checkpoints):
    """Tells when it writes, and of each step that is done."""

    def __init__(self, directory, report):
        super().__init__(directory)
        self.report = report

    def save(self, *arguments):
        with marked():
            super().save(*arguments)
        self.report()


def fit(folder, steps, report):
    """`fit`, in epochs of two steps."""
    model = make_model()
    checkpoints = Marked(folder, report)
    done = checkpoints.restore(model)
    model.fit(
        batches(2 * done),
        epochs=steps // 2,
        initial_epoch=done,
        steps_per_epoch=2,
        shuffle=False,
        callbacks=[checkpoints],
        verbose=0,
    )
    return model


def loop(folder, steps, report, **forms):
    """A loop that saves after every step."""
    model = make_model(**forms)
    checkpoints = Marked(folder, report)
    for step in range(checkpoints.restore(model), steps):
        model.train_on_batch(*batch(step))
        checkpoints.save(step + 1, model)
    return model


def tensorflow(folder, steps, report):
    """The same with `tf.train.CheckpointManager`, which keeps no seeds of dropout."""
    model = make_model(dropout=0.0)
    step = tf.Variable(0)
    state = tf.train.Checkpoint(model=model, optimizer=model.optimizer, step=step)
    manager = tf.train.CheckpointManager(state, folder, max_to_keep=2)
    manager.restore_or_initialize()
    while step < steps:
        model.train_on_batch(*batch(int(step)))
        step.assign_add(1)
        with marked():
            manager.save()
        report()
    return model


ROUTES = {
    "fit": fit,
    "loop": loop,
    "tensorflow": tensorflow,
    **{name: functools.partial(loop, **forms) for name, forms in FORMS.items()},
}


def state(model):
    variables = [*model.variables, *model.optimizer.variables]
    return {f"{i} {v.path}": oracle.value(v) for i, v in enumerate(variables)}


def start(route, folder, steps):
    """Starts a process that trains to the end; returns its id and what it reports."""
    reports, ours = os.pipe()
    writing[0] = 0
    pid = os.fork()
    if pid:
        os.close(ours)
        return pid, reports
    model = ROUTES[route](folder / "checkpoints", steps, lambda: os.write(ours, b"."))
    np.savez(folder / "state.npz", **state(model))
    os._exit(0)


def kill(pid, reports, generator):
    """Kills a process at work; returns whether it was writing a checkpoint."""
    for _ in range(generator.integers(STEPS_AT_MOST)):
        os.read(reports, 1)
    time.sleep(generator.uniform(0, SECONDS_AT_MOST))
    os.kill(pid, signal.SIGKILL)
    _, status = os.waitpid(pid, 0)
    os.close(reports)
    if status != signal.SIGKILL:
        raise RuntimeError(f"The process ended by itself, with status {status}.")
    return bool(writing[0])


def main(folder, kills, routes):
    """Trains once undisturbed and once with kills, and prints where these fell."""
    steps = kills * STEPS_PER_KILL
    found = {}
    for seed, route in enumerate(routes):
        generator = np.random.default_rng(seed)
        undisturbed, killed = folder / route / "undisturbed", folder / route / "killed"
        undisturbed.mkdir(parents=True)
        killed.mkdir()
        found[route] = sum(
            kill(*start(route, killed, steps), generator) for _ in range(kills)
        )
        for each in (undisturbed, killed):
            pid, _ = start(route, each, steps)
            if os.waitpid(pid, 0)[1]:
                sys.exit(f"{each} failed")
    print(json.dumps(found))


def run_as_script(folder, kills, *routes):
    """Returns how many of the kills of each route fell while it wrote."""
    tests = Path(__file__).resolve().parents[1]
    command = [sys.executable, __file__, str(folder), str(kills), *routes]
    done = subprocess.run(
        command,
        env={**os.environ, "PYTHONPATH": f"{tests}:{tests.parent}"},
        stdout=subprocess.PIPE,
        check=True,
        timeout=1200,
    )
    return json.loads(done.stdout)


def assert_as_if_never_killed(folder):
    with (
        np.load(folder / "undisturbed" / "state.npz") as expected,
        np.load(folder / "killed" / "state.npz") as found,
    ):
        assert found.files == expected.files
        for name in expected:
            oracle.assert_same_bits(found[name], expected[name], name)


@pytest.mark.xslow
def test_a_run_killed_once(tmp_path):
    run_as_script(tmp_path, 1, *ROUTES)
    for route in ROUTES:
        assert_as_if_never_killed(tmp_path / route)


@pytest.mark.xslow
@pytest.mark.parametrize("route", ROUTES)
def test_a_run_killed_fifty_times(route, tmp_path):
    while_writing = run_as_script(tmp_path, 50, route)[route]
    assert_as_if_never_killed(tmp_path / route)
    # Or the moments were not random enough.
    assert 0 < while_writing < 50


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3:])
