"""`keras.distribution` on two devices against one, bit for bit where exact.

A gradient is the mean of the data, so that with integers and powers of two nothing is
rounded.
"""

import re

import keras
import numpy as np
import pytest
from backends.problems import (
    assert_same_bits,
    column,
    fit,
    integer_rows,
    linear,
    mean_output,
    one_weight,
    rows_with_an_overflow,
    snapshot,
    value,
    variables_of,
)
from backends.two_processes import in_two_processes

import keras_mp
from keras_mp import DynamicLossScale


@pytest.fixture
def two_devices():
    """Each batch is halved: its first rows are the first device's."""
    with keras.distribution.DataParallel(devices=["cpu:0", "cpu:1"]).scope():
        yield


def all_of(model):
    return [*model.trainable_variables, *model.optimizer.variables]


def assert_equal_on_both_devices(model):
    """Also that all of the state is on both devices, so that no step moves it."""
    for variable in all_of(model):
        first, second = variable.value.addressable_shards
        assert first.device != second.device
        assert_same_bits(np.asarray(first.data), np.asarray(second.data), variable.path)
        assert first.data.shape == variable.shape
    for weight, master in zip(
        model.trainable_variables, model.optimizer.master_weights, strict=True
    ):
        assert_same_bits(value(weight), value(master).astype(value(weight).dtype))


@pytest.mark.parametrize(
    ("policy", "where", "bad"),
    [
        ("float16", 0, np.nan),
        ("float16", 1, np.inf),
        ("mixed_float16", 1, np.nan),
        ("float32", 1, np.inf),
    ],
)
def test_an_overflow_on_one_device_skips_the_step(two_devices, policy, where, bad):
    model = one_weight(policy)
    fit(model, rows_with_an_overflow(where, bad), 2)
    optimizer = model.optimizer
    assert_equal_on_both_devices(model)
    # Two steps: the means of the first batch and of the third are 1.
    assert value(model.weights[0]).tolist() == [[0.5]]
    assert value(optimizer.iterations) == 2
    assert value(optimizer.loss_scale) == 4.0
    assert value(optimizer.skipped_steps) == 1
    assert value(optimizer.consecutive_skips) == 0
    assert optimizer.last_overflow == model.trainable_variables[0].path


def test_the_scale_moves_once_a_step(two_devices):
    model = one_weight(loss_scale=DynamicLossScale(8.0, growth_interval=2))
    logged = []

    class Look(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            logged.append(value(self.model.optimizer.loss_scale).item())

    fit(model, column(*[0] * 10, np.nan, 0, np.nan, np.nan), 2, Look())
    assert logged == [8.0, 16.0, 16.0, 32.0, 32.0, 16.0, 8.0]
    assert value(model.optimizer.skipped_steps) == 2


OPTIMIZERS = {
    "float16-momentum": lambda: keras.optimizers.SGD(0.125, momentum=0.5),
    "float16-adamw": lambda: keras.optimizers.AdamW(0.125, weight_decay=0.25),
    "float16-accumulation": lambda: keras.optimizers.SGD(
        0.125, gradient_accumulation_steps=2
    ),
    "float16-overwrite": lambda: keras.optimizers.SGD(
        0.125, use_ema=True, ema_overwrite_frequency=2
    ),
    "mixed_float16-adam": lambda: keras.optimizers.Adam(0.125, clipnorm=1.0),
}


@pytest.mark.parametrize("rounding", ["nearest", "stochastic"])
@pytest.mark.parametrize("case", OPTIMIZERS)
def test_training_equals_that_of_one_device(case, rounding):
    policy, optimizer = case.partition("-")[0], OPTIMIZERS[case]
    # Small integers, batches of 8, 8 outputs: every gradient is a sum of integers
    # below 2**11 times a power of two, and exact in float16 and float32, in whatever
    # order it is summed. Hence what the optimizer makes of it is the same, too.
    x = integer_rows()
    single = linear(policy, optimizer(), rounding)
    fit(single, x, 8)
    keras.utils.clear_session(free_memory=False)
    with keras.distribution.DataParallel(devices=["cpu:0", "cpu:1"]).scope():
        double = linear(policy, optimizer(), rounding)
        fit(double, x, 8)
        for one, two in zip(all_of(single), all_of(double), strict=True):
            assert_same_bits(value(two), value(one), one.path)
            first, second = two.value.addressable_shards
            assert_same_bits(np.asarray(first.data), np.asarray(second.data), two.path)
    assert value(double.optimizer.skipped_steps) == 1
    assert all(np.any(w != np.round(w)) for w in map(value, double.weights))


INT8 = keras_mp.Int8State(min_size=1, min_rank=1, exclude=())
INT4 = keras_mp.Int4State(min_size=1, min_rank=1, exclude=())
# What is split of a weight besides itself, and the shape of what is not: the exponents
# of groups, and their bytes of codes of 4 bits.
EXPONENTS = {"_momentum_exponents": (1,)}
FORMS = {
    "FP32": ({}, ["", "_momentum"], {}),
    "remainders": ({"masters": "remainders"}, ["", "_momentum"], {}),
    "int8 remainders": ({"masters": "int8_remainders"}, ["", "_momentum"], {}),
    "int8": ({"state": INT8}, ["", "_momentum"], EXPONENTS),
    "int4": ({"state": INT4}, [""], {"_momentum": (16,), **EXPONENTS}),
    "both": (
        {"masters": "remainders", "state": INT8},
        ["", "_momentum"],
        EXPONENTS,
    ),
}


@pytest.mark.parametrize(("forms", "split", "whole"), FORMS.values(), ids=FORMS)
def test_masters_and_slots_are_split_like_their_weights(forms, split, whole):
    mesh = keras.distribution.DeviceMesh((1, 2), ["batch", "model"], ["cpu:0", "cpu:1"])
    layouts = keras.distribution.LayoutMap(mesh)
    layouts[".*kernel.*"] = (None, "model")
    layouts[".*bias.*"] = ("model",)
    distribution = keras.distribution.ModelParallel(layout_map=layouts)
    x = np.random.default_rng(0).integers(-4, 5, (32, 3)).astype("float32")
    x[9, 1] = np.inf
    single = linear("float16", keras.optimizers.SGD(0.125, momentum=0.5), **forms)
    fit(single, x, 8)
    keras.utils.clear_session(free_memory=False)
    with distribution.scope():
        double = linear("float16", keras.optimizers.SGD(0.125, momentum=0.5), **forms)
        fit(double, x, 8)
        for one, two in zip(all_of(single), all_of(double), strict=True):
            assert_same_bits(value(two), value(one), one.path)
        found = {}
        for variable in all_of(double):
            shapes = {shard.data.shape for shard in variable.value.addressable_shards}
            name = re.split("only[/_]", variable.path)[-1]
            found.setdefault(name, set()).update(shapes)
        for name, shape in {"kernel": (3, 4), "bias": (4,)}.items():
            for suffix in split:
                assert found[name + suffix] == {shape}
            for suffix, of_all in whole.items():
                assert found[name + suffix] == {of_all}
    assert value(double.optimizer.skipped_steps) == 1


def test_the_other_parts_of_the_package(two_devices, tmp_path):
    model = one_weight(loss_scale=4)
    fit(model, column(1, 1), 2)
    model.set_weights([np.array([[3.0]])])
    callback = keras_mp.LossScaleCallback(DynamicLossScale(64.0, backoff_factor=0.25))
    history = fit(model, column(2.0**-10, 2.0**-10, 1, np.nan), 2, callback)
    assert history["loss_scale"] == [16.0]
    assert history["skipped_steps"] == [1]
    # 3 - 2**-12 is a master, but no half.
    (exported,) = keras_mp.export_weights(model)
    assert exported.tolist() == [[3 - 2.0**-12]]
    assert_equal_on_both_devices(model)
    model.save(tmp_path / "model.keras")
    again = keras.models.load_model(
        tmp_path / "model.keras", custom_objects={"mean_output": mean_output}
    )
    for old, new in zip(all_of(model), all_of(again), strict=True):
        assert_same_bits(value(new), value(old), old.path)
    fit(again, column(1, 1), 2)
    assert_equal_on_both_devices(again)
    assert value(again.optimizer.master_weights[0]).tolist() == [[2.75 - 2.0**-12]]


def test_two_processes_train_as_one():
    first, second = in_two_processes("jax_process.py")
    assert first == second
    assert (first["devices"], first["here"]) == (2, 1)

    single = one_weight(optimizer=keras.optimizers.Adam(0.125))
    fit(single, rows_with_an_overflow(where=1), 2)
    everything = [
        *variables_of(single.trainable_variables, single.optimizer),
        *single.optimizer.variables,
    ]
    assert value(single.optimizer.skipped_steps) == 1
    assert first["state"] == [array.tolist() for _, array in snapshot(*everything)]
