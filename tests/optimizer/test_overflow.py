"""Steps with inf or NaN in a gradient: as if they had never been."""

import keras
import numpy as np
import oracle
import pytest
import tensorflow as tf
from keras import optimizers

import keras_mp

BAD_VALUES = (np.inf, -np.inf, np.nan)
INNER = {
    "sgd": lambda: optimizers.SGD(0.1),
    "sgd_momentum": lambda: optimizers.SGD(0.1, momentum=0.9, nesterov=True),
    "adam_ema": lambda: optimizers.Adam(0.1, amsgrad=True, use_ema=True),
    "adam_accumulation": lambda: optimizers.Adam(
        0.1, gradient_accumulation_steps=3, clipnorm=0.5, weight_decay=0.1
    ),
    "ema_overwrite": lambda: optimizers.RMSprop(
        0.1, use_ema=True, ema_momentum=0.5, ema_overwrite_frequency=2
    ),
    "schedule": lambda: optimizers.Nadam(
        optimizers.schedules.ExponentialDecay(0.5, decay_steps=2, decay_rate=0.5),
        global_clipnorm=0.5,
    ),
    "multi": lambda: optimizers.MultiOptimizer(
        optimizers.OptimizerMap(
            optimizers.Lion(0.1), {"model/kernel": optimizers.Adam(0.1)}
        )
    ),
}
SHAPES = (("kernel", (2, 3)), ("bias", (3,)), ("scale", ()))
# Small enough that a run of 24 steps meets both bounds and every counter.
RULE = {
    "initial_scale": 2.0**8,
    "growth_interval": 2,
    "hysteresis": 2,
    "min_scale": 2.0**7,
    "max_scale": 2.0**9,
}


def state(optimizer, weights):
    """Everything that an overflow must not change."""
    variables = [
        *weights,
        *optimizer.master_weights,
        *optimizer.inner_optimizer.variables,
    ]
    return [(v.path, oracle.value(v)) for v in variables]


def assert_unchanged(before, after):
    for (path, old), (_, new) in zip(before, after, strict=True):
        oracle.assert_same_bits(new, old, path)


def plan(steps, seed):
    """What to put into which gradients, by step: {index: (position, bad value)}."""
    generator = np.random.default_rng(seed)
    bad_steps = generator.random(steps) < 0.5
    # In a row: enough to fall to the minimum and stay, then to the maximum and stay.
    bad_steps[1:4] = True
    bad_steps[4:10] = False

    def places():
        chosen = generator.permutation(len(SHAPES))[: generator.integers(1, 3)]
        return {
            int(index): (
                int(generator.integers(np.prod(SHAPES[index][1], dtype=int))),
                generator.choice(BAD_VALUES),
            )
            for index in chosen
        }

    return [places() if bad else {} for bad in bad_steps]


def inject(gradients, places):
    gradients = [np.array(g) for g in gradients]
    for index, (position, bad_value) in places.items():
        gradients[index].reshape(-1)[position] = bad_value
    return gradients


def run_with_injections(make, dtype, mode, seed, steps=24):
    weights = oracle.make_weights(dtype, SHAPES)
    machine = oracle.PlainDynamicLossScale(
        scale=RULE["initial_scale"],
        **{key: RULE[key] for key in RULE if key != "initial_scale"},
    )
    optimizer = keras_mp.wrap(make(), keras_mp.DynamicLossScale(**RULE))
    optimizer.scale_loss(0.0)
    reference = oracle.Fp32Reference(make(), weights)
    step = oracle.make_step(optimizer, weights, mode)
    finite_steps, expected_overflow = 0, None
    for i, places in enumerate(plan(steps, seed)):
        gradients = oracle.make_gradients(weights, seed=i)
        before = state(optimizer, weights)
        given = oracle.scaled(gradients, optimizer, "float16")
        step([tf.constant(g) for g in inject(given, places)])
        machine.step(finite=not places)
        machine.assert_equal(optimizer)
        if places:
            expected_overflow = weights[min(places)].path
            assert_unchanged(before, state(optimizer, weights))
        else:
            finite_steps += 1
            reference.apply([tf.constant(g) for g in gradients])
        assert optimizer.last_overflow == expected_overflow
        roundings = 0 if mode == "eager" else oracle.OPERATIONS * finite_steps
        reference.assert_equal(optimizer, roundings)
        oracle.assert_weights_are_masters(optimizer, weights)
    assert machine.skipped_steps > 5 and finite_steps > 5


@pytest.mark.xslow_except(
    "sgd-float16",
    "adam_ema-float16",
    "adam_accumulation-float16",
    "schedule-float16",
    "multi-float16",
)
@pytest.mark.slow_except("sgd-float16")
@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("name", INNER)
def test_overflows_leave_no_trace(name, dtype):
    run_with_injections(INNER[name], dtype, "eager", seed=len(name))


@pytest.mark.xslow_except("adam_accumulation-float16", "multi-float16", "sgd-float32")
@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        ("sgd", "float32"),
        ("adam_ema", "float16"),
        ("adam_accumulation", "float16"),
        ("multi", "float16"),
    ],
)
def test_overflows_leave_no_trace_under_xla(name, dtype):
    run_with_injections(INNER[name], dtype, "xla", seed=len(name))


@pytest.mark.slow
def test_overflows_leave_no_trace_in_a_graph():
    run_with_injections(INNER["adam_accumulation"], "float16", "graph", seed=0)


def test_the_plan_meets_every_state_of_the_rule():
    """Or the tests above do not test the bounds, growth and hysteresis."""
    machine = oracle.PlainDynamicLossScale(
        scale=RULE["initial_scale"],
        **{key: RULE[key] for key in RULE if key != "initial_scale"},
    )
    met = set()
    for name in INNER:
        for places in plan(24, seed=len(name)):
            before = machine.scale
            machine.step(not places)
            met.add(machine.scale)
            if machine.skips_at_minimum:
                met.add("stays at min_scale")
            if machine.consecutive_skips == 1 and machine.scale == before > 2.0**7:
                met.add("forgiven")
            if machine.finite_steps and not machine.finite_steps % 2:
                met.add("stays at max_scale" if before == 2.0**9 else "grows")
    expected = {"stays at min_scale", "stays at max_scale", "forgiven", "grows"}
    assert met == {2.0**7, 2.0**8, 2.0**9} | expected


@pytest.mark.parametrize("mode", ["eager", "xla"])
def test_each_bad_value_in_each_place(mode):
    weights = oracle.make_weights("float16", SHAPES)
    optimizer = keras_mp.wrap(optimizers.Adam(0.1), loss_scale=8)
    optimizer.scale_loss(0.0)
    step = oracle.make_step(optimizer, weights, mode)
    before = state(optimizer, weights)
    gradients = oracle.make_gradients(weights, seed=0)
    places = [
        (index, position, bad_value)
        for index, gradient in enumerate(gradients)
        for position in range(gradient.size)
        for bad_value in BAD_VALUES
    ]
    for count, (index, position, bad_value) in enumerate(places, start=1):
        given = inject(gradients, {index: (position, bad_value)})
        step([tf.constant(g, "float16") for g in given])
        assert int(optimizer.skipped_steps) == count
        assert optimizer.last_overflow == weights[index].path
    assert_unchanged(before, state(optimizer, weights))
    assert float(optimizer.loss_scale) == 8.0


@pytest.mark.xslow_except("*-eager", "adam_accumulation-xla")
@pytest.mark.slow
@pytest.mark.parametrize("mode", ["eager", "xla"])
@pytest.mark.parametrize("name", ["sgd", "adam_ema", "adam_accumulation"])
def test_sparse_overflows_leave_no_trace(name, mode):
    weights = oracle.make_weights("float16", [("embeddings", (4, 2)), ("bias", (2,))])
    optimizer = keras_mp.wrap(
        INNER[name](), keras_mp.DynamicLossScale(1024.0, growth_interval=2)
    )
    optimizer.scale_loss(0.0)
    reference = oracle.Fp32Reference(INNER[name](), weights)
    step = oracle.make_step(optimizer, weights, mode)
    machine = oracle.PlainDynamicLossScale(scale=1024.0, growth_interval=2)
    finite_steps = 0
    for i, bad_value in enumerate([None, np.nan, None, None, np.inf, -np.inf, None]):
        values, dense = oracle.make_gradients([tf.zeros((3, 2)), weights[1]], seed=i)
        scale = machine.scale
        given = np.array(values) * scale
        if bad_value is not None:
            given[2, 1] = bad_value
        before = state(optimizer, weights)
        slices = tf.IndexedSlices(
            tf.constant(given, "float16"),
            tf.constant([1, 3, 1]),
            tf.constant([4, 2]),
        )
        step([slices, tf.constant(dense * scale, "float16")])
        machine.step(finite=bad_value is None)
        machine.assert_equal(optimizer)
        if bad_value is None:
            finite_steps += 1
            slices = tf.IndexedSlices(
                tf.constant(values), tf.constant([1, 3, 1]), tf.constant([4, 2])
            )
            reference.apply([slices, tf.constant(dense)])
        else:
            assert optimizer.last_overflow == "model/embeddings"
            assert_unchanged(before, state(optimizer, weights))
        roundings = 0 if mode == "eager" else oracle.OPERATIONS * finite_steps
        reference.assert_equal(optimizer, roundings)


@pytest.mark.parametrize("mode", ["graph", "xla"])
def test_200_overflows_in_a_row_and_recovery(mode):
    weights = oracle.make_weights("float16")
    rule = keras_mp.DynamicLossScale(growth_interval=4)
    optimizer = keras_mp.wrap(optimizers.Adam(0.1), rule)
    optimizer.scale_loss(0.0)
    reference = oracle.Fp32Reference(optimizers.Adam(0.1), weights)
    step = oracle.make_step(optimizer, weights, mode)
    before = state(optimizer, weights)
    bad = [tf.fill(w.shape, tf.constant(np.nan, "float16")) for w in weights]
    for _ in range(200):
        step(bad)
    assert_unchanged(before, state(optimizer, weights))
    assert float(optimizer.loss_scale) == 2.0**-14
    # 29 steps halve 2^15 to 2^-14; the other 171 began there.
    assert int(optimizer.skips_at_minimum) == 171
    assert int(optimizer.consecutive_skips) == 200
    for i in range(8):
        gradients = oracle.make_gradients(weights, seed=i)
        step(oracle.scaled(gradients, optimizer, "float16"))
        reference.apply([tf.constant(g) for g in gradients])
        reference.assert_equal(optimizer, oracle.OPERATIONS * (i + 1))
    assert float(optimizer.loss_scale) == 2.0**-12
    assert int(optimizer.consecutive_skips) == 0
    assert int(optimizer.skipped_steps) == 200


@pytest.mark.slow_except("factor")
@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        ({}, 2.0**24),
        ({"growth_factor": 8.0}, 2.0**24),
        ({"max_scale": 2.0**15}, 2.0**15),
        ({"max_scale": 1e5}, np.float32(1e5)),
        ({"max_scale": float(2**128 - 2**104)}, float(2**128 - 2**104)),
    ],
    ids=["default", "factor", "at_once", "no_power_of_two", "largest_float"],
)
def test_growth_stops_at_max_scale(rule, expected):
    weight = keras.Variable(np.ones(2), dtype="float16")
    optimizer = keras_mp.wrap(
        optimizers.SGD(1.0), keras_mp.DynamicLossScale(growth_interval=1, **rule)
    )
    optimizer.scale_loss(0.0)
    step = oracle.make_step(optimizer, [weight], "graph")
    for _ in range(130):
        step([tf.zeros(2, "float16")])
    assert float(optimizer.loss_scale) == expected
    assert int(optimizer.skipped_steps) == 0
    assert oracle.value(weight).tolist() == [1.0, 1.0]
    step([tf.constant([np.inf, 0.0], "float16")])
    assert float(optimizer.loss_scale) == np.float32(expected) / 2


def test_constant_scale_skips_too():
    weight = keras.Variable([1.0], dtype="float16")
    optimizer = keras_mp.wrap(optimizers.SGD(1.0), loss_scale=128)
    optimizer.scale_loss(0.0)
    optimizer.apply([tf.constant([np.inf], "float16")], [weight])
    optimizer.apply([tf.constant([64.0], "float16")], [weight])
    assert float(weight[0]) == 0.5
    assert float(optimizer.loss_scale) == 128.0
    assert int(optimizer.skipped_steps) == 1


@pytest.mark.xslow_except("mixed_float16-graph", "float16-xla")
@pytest.mark.slow
@pytest.mark.parametrize("xla", [False, True], ids=["graph", "xla"])
@pytest.mark.parametrize("policy", ["mixed_float16", "float16"])
def test_fit_goes_on_past_a_bad_batch(policy, xla):
    x = np.linspace(-1, 1, 16, dtype="float32").reshape(8, 2)
    bad = np.concatenate([x[:4], [[np.nan, 1], [1e6, 1]], x[4:]])

    def fit(x):
        keras.utils.set_random_seed(0)
        dense = keras.layers.Dense(1, dtype=policy)
        model = keras.Sequential([keras.Input((2,)), dense])
        optimizer = keras_mp.wrap(optimizers.Adam(0.1), loss_scale=64)
        model.compile(optimizer, loss="mse", jit_compile=xla)
        model.fit(x, x[:, :1] * 2, batch_size=2, shuffle=False, verbose=0)
        assert int(optimizer.iterations) == 4
        return optimizer, state(optimizer, model.weights)

    optimizer, without = fit(x)
    assert int(optimizer.skipped_steps) == 0
    optimizer, found = fit(bad)
    assert int(optimizer.skipped_steps) == 1
    assert_unchanged(without, found)
