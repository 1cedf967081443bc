"""A run that is stopped and goes on in a new process, to the bit.

Each route goes on in a process of its own: what is compared with the uninterrupted run
cannot have been kept in memory.
"""

import contextlib
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import keras
import numpy as np
import oracle
import pytest
import tensorflow as tf
from keras import optimizers

import keras_mp

STEPS = 8
SCALE_RULE = {"initial_scale": 2.0**10, "growth_interval": 2, "hysteresis": 2}


def inner(name):
    return {
        "adam": lambda: optimizers.Adam(0.01, amsgrad=True, name="inner"),
        "ema": lambda: optimizers.SGD(
            0.01, momentum=0.9, use_ema=True, ema_momentum=0.5, name="inner"
        ),
        "accumulation": lambda: optimizers.Adam(
            0.01, gradient_accumulation_steps=3, clipnorm=1.0, name="inner"
        ),
        "schedule": lambda: optimizers.RMSprop(
            optimizers.schedules.ExponentialDecay(0.1, 2, 0.5),
            weight_decay=0.1,
            name="inner",
        ),
    }[name]()


# name: inner optimizer, policy, rounding.
CASES = {
    "adam": ("adam", "float16", "nearest"),
    "mixed": ("adam", "mixed_float16", "nearest"),
    "stochastic": ("adam", "float16", "stochastic"),
    "ema": ("ema", "float16", "nearest"),
    "ema_mixed": ("ema", "mixed_float16", "nearest"),
    "accumulation": ("accumulation", "float16", "nearest"),
    "schedule": ("schedule", "float16", "stochastic"),
}


def make_model(case):
    inner_name, policy, rounding = CASES[case]
    keras.utils.set_random_seed(0)
    dense = keras.layers.Dense(2, dtype=policy, activation="tanh", name="hidden")
    out = keras.layers.Dense(1, dtype=policy, name="out")
    model = keras.Sequential([keras.Input((3,)), dense, out], name="model")
    rule = keras_mp.DynamicLossScale(**SCALE_RULE)
    optimizer = keras_mp.wrap(
        inner(inner_name), rule, rounding=rounding, seed=7, name="wrapper"
    )
    model.compile(optimizer, "mse", jit_compile=False)
    optimizer.build(model.trainable_variables)
    return model


def batches():
    """Batches of which the second and the sixth overflow."""
    generator = np.random.default_rng(0)
    x = generator.normal(size=(STEPS, 4, 3)).astype("float32")
    x[[1, 5], 0, 0] = np.inf
    return x, np.nan_to_num(x[..., :1], posinf=0.0)


def train(model, steps):
    """Steps without `fit`, whose end writes the averages into the weights."""
    x, y = batches()
    for i in steps:
        model.train_on_batch(x[i], y[i])


def state(model):
    """All that training goes on from: {name: array}."""
    optimizer = model.optimizer
    variables = [
        *model.weights,
        *optimizer.master_weights,
        *optimizer.inner_optimizer.variables,
        *optimizer.variables,
    ]
    # A loaded model has built its layers outside itself.
    paths = [re.sub("model[/_]", "", v.path) for v in variables]
    return {
        f"{i} {path}": oracle.value(v)
        for i, (path, v) in enumerate(zip(paths, variables, strict=True))
    }


def save_keras(case, folder):
    model = make_model(case)
    train(model, range(STEPS // 2))
    model.save(folder / f"{case}.keras")


def resume_keras(case, folder):
    model = keras.saving.load_model(folder / f"{case}.keras")
    train(model, range(STEPS // 2, STEPS))
    return model


def save_checkpoint(case, folder):
    model = make_model(case)
    train(model, range(STEPS // 2))
    checkpoint = tf.train.Checkpoint(model=model, optimizer=model.optimizer)
    checkpoint.write(str(folder / case))


def resume_checkpoint(case, folder):
    model = make_model(case)
    # Nothing that is restored may be what a new model has anyway.
    model.set_weights([np.full(w.shape, 9.0) for w in model.weights])
    checkpoint = tf.train.Checkpoint(model=model, optimizer=model.optimizer)
    checkpoint.read(str(folder / case)).assert_existing_objects_matched()
    train(model, range(STEPS // 2, STEPS))
    return model


class Interrupt(keras.callbacks.Callback):
    """Stops a run in the way that a killed process does."""

    def __init__(self, epoch):
        super().__init__()
        self.epoch = epoch

    def on_epoch_begin(self, epoch, logs=None):
        if epoch == self.epoch:
            raise KeyboardInterrupt


def fit_with_backup(case, folder, *callbacks):
    """Two epochs on the same data, half of the batches."""
    model = make_model(case)
    x, y = (a[: STEPS // 2].reshape(STEPS // 2 * 4, -1) for a in batches())
    backup = keras.callbacks.BackupAndRestore(folder / case)
    with contextlib.suppress(KeyboardInterrupt):
        model.fit(
            x,
            y,
            batch_size=4,
            epochs=2,
            shuffle=False,
            verbose=0,
            callbacks=[backup, *callbacks],
        )
    return model


def save_backup(case, folder):
    fit_with_backup(case, folder, Interrupt(1))


def resume_backup(case, folder):
    return fit_with_backup(case, folder)


def uninterrupted(case, folder):
    model = make_model(case)
    train(model, range(STEPS))
    return model


ROUTES = {
    "keras": (save_keras, resume_keras, uninterrupted),
    "checkpoint": (save_checkpoint, resume_checkpoint, uninterrupted),
    "backup": (save_backup, resume_backup, fit_with_backup),
}


@pytest.fixture(scope="module")
def resumed(request, tmp_path_factory):
    """Folder with the state of every tested case, by route, after a new start."""
    folder = tmp_path_factory.mktemp("resume")
    cases = {
        item.callspec.params["case"]
        for item in request.session.items
        if item.path == request.path and "resumed" in item.fixturenames
    }
    for route, (save, _, _) in ROUTES.items():
        (folder / route).mkdir()
        for case in cases:
            keras.utils.clear_session(free_memory=False)
            save(case, folder / route)
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parent)}
    command = [sys.executable, __file__, str(folder), *cases]
    subprocess.run(command, env=environment, check=True, timeout=240)
    return folder


@pytest.mark.slow
@pytest.mark.xslow_except("*-adam", "*-accumulation")
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("route", ROUTES)
def test_resumed_run_equals_the_uninterrupted_one(route, case, resumed, tmp_path):
    folder = resumed / route
    model = ROUTES[route][2](case, tmp_path)
    expected = state(model)
    with np.load(folder / f"{case}.npz") as found:
        assert list(found) == [str(i) for i in range(len(expected))]
        names = json.loads((folder / f"{case}.json").read_text())
        assert names == list(expected)
        for key, (name, array) in zip(found, expected.items(), strict=True):
            oracle.assert_same_bits(found[key], array, name)
    optimizer = model.optimizer
    assert int(optimizer.skipped_steps) == 2
    assert float(optimizer.loss_scale) != SCALE_RULE["initial_scale"]
    assert all(np.all(np.isfinite(array)) for array in expected.values())


# Configurations.


OPTIMIZERS = [
    keras_mp.wrap("sgd", name="first"),
    keras_mp.wrap("sgd", loss_scale=128),
    keras_mp.wrap("sgd", loss_scale=keras_mp.ConstantLossScale(0.5)),
    keras_mp.wrap(
        optimizers.AdamW(
            optimizers.schedules.CosineDecay(0.5, 10),
            weight_decay=0.25,
            global_clipnorm=2.0,
            use_ema=True,
            ema_momentum=0.5,
            ema_overwrite_frequency=3,
            gradient_accumulation_steps=4,
            amsgrad=True,
            beta_1=0.5,
            name="inner",
        ),
        keras_mp.DynamicLossScale(
            initial_scale=4.0,
            growth_factor=3.0,
            backoff_factor=0.25,
            growth_interval=5,
            hysteresis=6,
            min_scale=0.5,
            max_scale=64.0,
        ),
        rounding="stochastic",
        seed=11,
        all_reduce_dtype="float16",
        name="outer",
    ),
]


def ways_to_copy():
    return {
        "from_config": lambda o: type(o).from_config(o.get_config()),
        "serialize": lambda o: optimizers.deserialize(optimizers.serialize(o)),
        "json": lambda o: optimizers.deserialize(
            json.loads(json.dumps(optimizers.serialize(o)))
        ),
        "get": lambda o: optimizers.get(optimizers.serialize(o)),
    }


@pytest.mark.parametrize("way", ways_to_copy())
@pytest.mark.parametrize(
    "optimizer", OPTIMIZERS, ids=["name", "constant", "rule", "all"]
)
def test_config_round_trip(optimizer, way):
    config = optimizer.get_config()
    copy = ways_to_copy()[way](optimizer)
    assert type(copy) is keras_mp.FP32MasterOptimizer
    assert copy is not optimizer
    assert copy.get_config() == config == optimizer.get_config()
    assert type(copy.inner_optimizer) is type(optimizer.inner_optimizer)
    assert copy.inner_optimizer.get_config() == optimizer.inner_optimizer.get_config()
    assert copy.loss_scale_rule == optimizer.loss_scale_rule
    assert copy.rounding == optimizer.rounding
    assert copy.all_reduce_dtype == optimizer.all_reduce_dtype
    assert copy.name == optimizer.name
    assert float(copy.loss_scale) == optimizer.loss_scale_rule.initial_scale


def test_config_has_every_argument():
    config = OPTIMIZERS[-1].get_config()
    assert config["rounding"] == "stochastic"
    assert config["seed"] == 11
    assert config["name"] == "outer"
    assert config["inner_optimizer"]["config"]["gradient_accumulation_steps"] == 4
    assert config["loss_scale"]["config"] == {
        "initial_scale": 4.0,
        "growth_factor": 3.0,
        "backoff_factor": 0.25,
        "growth_interval": 5,
        "hysteresis": 6,
        "min_scale": 0.5,
        "max_scale": 64.0,
    }


def test_copies_round_the_same_way():
    """The seed is part of the configuration."""

    def weights_after_a_step(optimizer):
        weight = keras.Variable(np.ones(64), dtype="float16")
        optimizer.scale_loss(0.0)
        gradient = tf.fill(64, tf.constant(2.0**-12, "float16"))
        optimizer.apply([gradient], [weight])
        return oracle.value(weight)

    original = keras_mp.wrap(optimizers.SGD(0.5), 1, rounding="stochastic", seed=3)
    copy = type(original).from_config(original.get_config())
    other = keras_mp.wrap(optimizers.SGD(0.5), 1, rounding="stochastic", seed=4)
    first, second, third = map(weights_after_a_step, (original, copy, other))
    oracle.assert_same_bits(first, second)
    assert np.any(first != third)


def main(folder, *cases):
    for route, (_, resume, _) in ROUTES.items():
        for case in cases:
            keras.utils.clear_session(free_memory=False)
            found = state(resume(case, folder / route))
            arrays = {str(i): array for i, array in enumerate(found.values())}
            np.savez(folder / route / f"{case}.npz", **arrays)
            (folder / route / f"{case}.json").write_text(json.dumps(list(found)))


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
