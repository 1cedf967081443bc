"""A step of the wrapped optimizer, eager and compiled, against the bare one in FP32."""

import json

import keras
import ml_dtypes
import numpy as np
import pytest
from backends.problems import (
    MODES,
    assert_same_bits,
    assert_snapshot,
    make_gradients,
    make_step,
    make_weights,
    snapshot,
    tensors,
    value,
    variables_of,
)

import keras_mp

OPTIMIZERS = {
    "sgd": lambda: keras.optimizers.SGD(0.125),
    "momentum": lambda: keras.optimizers.SGD(0.125, momentum=0.75, nesterov=True),
    "adam": lambda: keras.optimizers.Adam(0.01, amsgrad=True, clipnorm=1.0),
    "adamw": lambda: keras.optimizers.AdamW(0.01, weight_decay=0.25),
    "rmsprop": lambda: keras.optimizers.RMSprop(0.01, momentum=0.5, centered=True),
    "adagrad": lambda: keras.optimizers.Adagrad(0.1, clipvalue=0.5),
    "adadelta": lambda: keras.optimizers.Adadelta(0.5),
    "adamax": lambda: keras.optimizers.Adamax(0.01),
    "nadam": lambda: keras.optimizers.Nadam(0.01),
    "lion": lambda: keras.optimizers.Lion(0.01),
    "lamb": lambda: keras.optimizers.Lamb(0.01),
    "ftrl": lambda: keras.optimizers.Ftrl(0.1),
    "adafactor": lambda: keras.optimizers.Adafactor(0.1),
    "muon": lambda: keras.optimizers.Muon(0.1),
    "schedule-free": lambda: keras.optimizers.ScheduleFreeAdamW(0.1),
    "multi": lambda: keras.optimizers.MultiOptimizer(
        keras.optimizers.OptimizerMap(
            keras.optimizers.SGD(0.125), {"kernel": keras.optimizers.Adam(0.01)}
        )
    ),
    "schedule": lambda: keras.optimizers.SGD(
        keras.optimizers.schedules.ExponentialDecay(0.5, 1, 0.5)
    ),
    "average": lambda: keras.optimizers.SGD(0.125, use_ema=True, ema_momentum=0.5),
    "overwrite": lambda: keras.optimizers.SGD(
        0.125, use_ema=True, ema_momentum=0.5, ema_overwrite_frequency=2
    ),
    "accumulation": lambda: keras.optimizers.Adam(
        0.01, gradient_accumulation_steps=2, global_clipnorm=1.0
    ),
}
# XLA contracts a product and a sum into one rounding, and it compiles the wrapped
# step and the bare one apart. So each of the about 20 operations from a gradient to a
# slot may differ by a rounding, 2**-24, of a value below 4, in each of 5 steps.
COMPILED = 5 * 20 * 2.0**-24 * 4
HALVES = {"float16": np.float16, "bfloat16": ml_dtypes.bfloat16}


def assert_weights_are_masters(weights, optimizer):
    for weight, master in zip(weights, optimizer.master_weights, strict=True):
        dtype = HALVES[keras.backend.standardize_dtype(weight.dtype)]
        assert value(master).dtype == np.float32
        assert_same_bits(value(weight), value(master).astype(dtype), weight.path)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    ("name", "dtype"),
    [*((name, "float16") for name in OPTIMIZERS), ("momentum", "bfloat16")],
)
def test_masters_and_slots_are_those_of_the_bare_optimizer(name, dtype, mode):
    weights = make_weights(dtype)
    copies = [
        keras.Variable(value(w).astype("float32"), dtype="float32", name=w.name)
        for w in weights
    ]
    bare, wrapped = OPTIMIZERS[name](), keras_mp.wrap(OPTIMIZERS[name](), 64)
    wrapped.scale_loss(0.0)
    expect = make_step(bare, copies, mode)
    step = make_step(wrapped, weights, mode)
    for seed in range(5):
        gradients = make_gradients(seed)
        expect(tensors(gradients, "float32"))
        step(tensors([64 * g for g in gradients], dtype))
    inner = wrapped.inner_optimizer
    pairs = [
        *zip(wrapped.master_weights, copies, strict=True),
        *zip(inner.variables, bare.variables, strict=True),
    ]
    for found, expected in pairs:
        found, expected = value(found), value(expected)
        assert found.dtype == expected.dtype
        atol = COMPILED if mode == "jit" else 0
        np.testing.assert_allclose(found, expected, rtol=0, atol=atol)
    assert_weights_are_masters(weights, wrapped)
    for weight, start in zip(weights, make_weights(dtype), strict=True):
        assert np.any(value(weight) != value(start))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    ("name", "bad"),
    [*((name, np.nan) for name in OPTIMIZERS), ("adam", np.inf), ("adam", -np.inf)],
)
def test_a_skipped_step_changes_the_scale_alone(name, bad, mode):
    weights = make_weights("float16")
    optimizer = keras_mp.wrap(OPTIMIZERS[name](), keras_mp.DynamicLossScale(64.0))
    optimizer.scale_loss(0.0)
    step = make_step(optimizer, weights, mode)
    step(tensors([64 * g for g in make_gradients(0)], "float16"))
    everything = variables_of(weights, optimizer)
    before = snapshot(*everything)
    gradients = [64 * g for g in make_gradients(1)]
    gradients[1][2] = bad
    step(tensors(gradients, "float16"))
    assert_snapshot(before, *everything)
    assert value(optimizer.loss_scale) == np.float32(32.0)
    assert value(optimizer.skipped_steps) == 1
    assert value(optimizer.consecutive_skips) == 1
    assert value(optimizer.step_counter) == 0
    assert optimizer.last_overflow == weights[1].path
    # And the next one is done, with the new scale.
    step(tensors([32 * g for g in make_gradients(1)], "float16"))
    assert value(optimizer.consecutive_skips) == 0
    assert value(optimizer.iterations) == 2 - (name == "accumulation")


@pytest.mark.parametrize("mode", MODES)
def test_a_thousand_small_updates_are_not_lost(mode):
    weight = keras.Variable([1.0], dtype="float16")
    optimizer = keras_mp.wrap(keras.optimizers.SGD(1e-4), loss_scale=1)
    step = make_step(optimizer, [weight], mode)
    for _ in range(1000):
        step(tensors([np.ones(1)], "float16"))
    assert value(weight).dtype == np.float16
    assert value(weight).tolist() == [np.float16(0.9)]


@pytest.mark.filterwarnings("ignore:Gradients do not exist")
@pytest.mark.parametrize("mode", MODES)
def test_a_weight_without_gradient_stays(mode):
    weights = make_weights("float16")
    optimizer = keras_mp.wrap(keras.optimizers.SGD(0.5), 1)
    step = make_step(optimizer, weights, mode)
    before = value(weights[1]).copy()
    step(tensors([np.ones((2, 3)), None], "float16"))
    assert_same_bits(value(weights[1]), before)
    assert_weights_are_masters(weights, optimizer)


@pytest.mark.parametrize("mode", MODES)
def test_a_float32_weight_is_its_own_master_and_is_listed_once(mode):
    half = keras.Variable([1.0], dtype="float16", name="half")
    full = keras.Variable([1.0], dtype="float32", name="full")
    optimizer = keras_mp.wrap(keras.optimizers.SGD(0.25), 1)
    step = make_step(optimizer, [half, full], mode)
    step([*tensors([np.ones(1)], "float16"), *tensors([np.ones(1)], "float32")])
    assert optimizer.master_weights[1] is full
    assert not any(variable is full for variable in optimizer.variables)
    assert [value(v).item() for v in (half, full)] == [0.75, 0.75]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("rounding", ["nearest", "stochastic"])
def test_masters_take_over_what_others_wrote(rounding, mode):
    weight = keras.Variable([1.0, 1.0], dtype="float16")
    optimizer = keras_mp.wrap(keras.optimizers.SGD(2.0**-14), 1, rounding)
    step = make_step(optimizer, [weight], mode)
    step(tensors([np.ones(2)], "float16"))
    # The first entry is set, the second is left to its master, 1 - 2**-14.
    weight.assign(np.float16([4.0, value(weight)[1]]))
    step(tensors([np.ones(2)], "float16"))
    master = value(optimizer.master_weights[0])
    assert master.tolist() == [4 - 2.0**-14, 1 - 2.0**-13]


@pytest.mark.parametrize("mode", MODES)
def test_stochastic_rounding_takes_both_neighbours_as_the_seed_says(mode):
    def run(seed):
        weight = keras.Variable(np.ones(512), dtype="float16")
        optimizer = keras_mp.wrap(
            keras.optimizers.SGD(2.0**-13), 1, "stochastic", seed=seed
        )
        step = make_step(optimizer, [weight], mode)
        step(tensors([np.ones(512)], "float16"))
        return value(weight), value(optimizer.master_weights[0])

    (first, master), (again, _), (other, _) = run(1), run(1), run(2)
    # 1 - 2**-13 lies a quarter of the way from 1 to 1 - 2**-11.
    assert np.all(master == np.float32(1 - 2.0**-13))
    assert set(first.tolist()) == {1.0, 1 - 2.0**-11}
    # 128 of 512 are expected, with a deviation of 10: this allows five.
    assert abs(np.sum(first != 1) - 128) < 50
    assert_same_bits(again, first)
    assert np.any(other != first)


@pytest.mark.parametrize("mode", MODES)
def test_gradients_of_a_loss_that_was_not_scaled_are_refused(mode):
    weights = make_weights("float16")
    optimizer = keras_mp.wrap("sgd", 8)
    optimizer.build(weights)
    everything = variables_of(weights, optimizer)
    before = snapshot(*everything)
    step = make_step(optimizer, weights, mode)
    with pytest.raises(RuntimeError, match=r"(?s)must have been scaled.*loss_scale=1"):
        step(tensors(make_gradients(0), "float16"))
    assert_snapshot(before, *everything)


@pytest.mark.parametrize("mode", MODES)
def test_the_scale_moves_by_the_rule(mode):
    weights = make_weights("float16")
    rule = keras_mp.DynamicLossScale(8.0, growth_interval=2, hysteresis=2)
    optimizer = keras_mp.wrap(keras.optimizers.SGD(0.0), rule)
    optimizer.scale_loss(0.0)
    step = make_step(optimizer, weights, mode)
    scales = []
    for finite in (True, True, False, True, True, False, False):
        gradients = [np.full((2, 3), 0.0 if finite else np.nan), np.zeros(3)]
        step(tensors(gradients, "float16"))
        scales.append(value(optimizer.loss_scale).item())
    assert scales == [8, 16, 16, 16, 32, 32, 16]
    assert value(optimizer.skipped_steps) == 3


@pytest.mark.parametrize("mode", MODES)
def test_the_scale_moves_by_the_largest_gradients(mode):
    weights = make_weights("float16")
    rule = keras_mp.StatisticalLossScale(growth_interval=2, window=1)
    optimizer = keras_mp.wrap(keras.optimizers.SGD(0.0), rule)
    optimizer.scale_loss(0.0)
    step = make_step(optimizer, weights, mode)
    scales = []
    # By hand in tests/test_statistical_loss_scale.py, where the sizes are explained.
    for largest in (1.0, np.nan, 1.0, -(2.0**-0.5), 1.0, np.inf):
        scaled = largest * value(optimizer.loss_scale)
        step(tensors([np.full((2, 3), scaled), np.full(3, scaled / 2)], "float16"))
        scales.append(value(optimizer.loss_scale).item())
    assert scales == [2.0**15, 2.0**14, 2.0**14, 2.0**15, 2.0**15, 2.0**14]
    assert value(optimizer.skipped_steps) == 2


def test_the_loss_is_scaled_in_float32():
    optimizer = keras_mp.wrap("sgd", 2.0**17)
    loss = optimizer.scale_loss(keras.ops.convert_to_tensor(2.0, "float16"))
    assert value(loss).dtype == np.float32
    assert value(loss) == 2.0**18


def test_gradients_are_unscaled_once():
    weight = keras.Variable([1.0], dtype="float16")
    optimizer = keras_mp.wrap(keras.optimizers.SGD(0.25), 8)
    optimizer.build([weight])
    optimizer.scale_loss(0.0)
    gradients = optimizer.unscale_gradients(tensors([np.full(1, 16.0)], "float16"))
    assert value(gradients[0]).tolist() == [2.0]
    with pytest.raises(RuntimeError, match="must be unscaled once"):
        optimizer.unscale_gradients(gradients)
    optimizer.apply(gradients, [weight])
    assert value(weight).tolist() == [0.5]


def test_two_optimizers_share_a_scale():
    weights = [keras.Variable([1.0], dtype="float16") for _ in range(2)]
    first = keras_mp.wrap(keras.optimizers.SGD(0.25), keras_mp.DynamicLossScale(8.0))
    second = keras_mp.wrap(keras.optimizers.SGD(0.25), first)
    for optimizer, weight, gradient in zip(
        (first, second), weights, (np.inf, 4.0), strict=True
    ):
        optimizer.scale_loss(0.0)
        optimizer.apply(tensors([np.full(1, gradient)], "float16"), [weight])
    # The first has halved the scale that the second then divides by.
    assert [value(weight).item() for weight in weights] == [1.0, 0.75]
    assert value(second.loss_scale) == 4.0


def test_a_config_names_classes_that_every_backend_has():
    rules = keras.optimizers.OptimizerMap(
        keras.optimizers.SGD(), {"kernel": keras.optimizers.Adam()}
    )
    config = keras_mp.wrap(keras.optimizers.MultiOptimizer(rules)).get_config()
    assert ".backend." not in json.dumps(config)
    copy = keras_mp.FP32MasterOptimizer.from_config(config)
    assert copy.get_config() == config
