"""Masters as remainders, slots in 8 and 4 bits, and weights without masters."""

import json
from types import SimpleNamespace

import keras
import numpy as np
import oracle
import pytest
import tensorflow as tf
from keras import optimizers
from older_versions import until
from stored_forms import (
    ALL,
    ALL_IN_4_BITS,
    FORMS,
    NOT_IN_8_BITS,
    RULES,
    SHAPES,
    wrap,
)

import keras_mp

MODES = pytest.mark.parametrize("mode", ["eager", "graph", "xla"])


def train(inner, dtype="float16", steps=5, mode="eager", weights=None, **forms):
    """Takes steps, the third of which overflows. Returns the optimizer and weights."""
    optimizer = wrap(inner, **forms)
    weights = weights or oracle.make_weights(dtype, SHAPES)
    step = oracle.make_step(optimizer, weights, mode)
    for i in range(steps):
        gradients = oracle.make_gradients(weights, seed=i)
        if i == 2:
            gradients[1][0] = np.inf
        step(oracle.scaled(gradients, optimizer, dtype))
    return optimizer, weights


def values(optimizer, weights):
    """All weights and masters."""
    return [oracle.value(w) for w in weights] + [
        np.asarray(m) for m in optimizer.master_weights
    ]


def assert_same(one, other):
    for mine, others in zip(values(*one), values(*other), strict=True):
        oracle.assert_same_bits(mine, others)


def takes_a_power(rule, mode):
    """Whether FP32 masters are updated by Keras's own Ftrl, outside of a graph.

    Its power of 1/2 is not the square root: ROUNDINGS in test_optimizers.py.
    """
    is_plain = keras_mp.ops.build_info()["route"] == "reference"
    return is_plain and rule == "ftrl" and mode == "eager"


def stored(optimizer):
    """Everything that an optimizer holds, as it is stored."""
    return {v.path: oracle.value(v) for v in optimizer.variables}


@pytest.mark.slow_except("adam-graph", "*a*-eager")
@pytest.mark.xslow_except("adam-*", "*-eager")
@MODES
@pytest.mark.parametrize("rule", RULES)
def test_remainders_are_fp32_masters_to_the_bit(rule, mode):
    masters = train(RULES[rule](), mode=mode)
    remainders = train(RULES[rule](), mode=mode, masters="remainders")
    if takes_a_power(rule, mode):
        for one, other in zip(values(*remainders), values(*masters), strict=True):
            # 80 roundings in each of 4 steps, of numbers below 2; then one of FP16.
            unit = {"float16": 2.0**-10, "float32": 320 * 2.0**-23}[one.dtype.name]
            np.testing.assert_allclose(one, other, rtol=0, atol=unit)
    else:
        assert_same(remainders, masters)
    optimizer = remainders[0]
    assert int(optimizer.skipped_steps) == 1
    assert optimizer.last_overflow == "model/bias"
    kinds = {v.dtype for v in optimizer._master_weights.own_variables}
    assert kinds == {"int16"}


# Options that Keras implements around every rule.
AROUND = {
    "clipnorm": {"clipnorm": 0.5},
    "ema": {"use_ema": True, "ema_momentum": 0.5},
    "overwriting": {
        "use_ema": True,
        "ema_momentum": 0.5,
        "ema_overwrite_frequency": 2,
    },
    "accumulation": {"gradient_accumulation_steps": 2},
    "accumulation, clipped": {
        "gradient_accumulation_steps": 2,
        "global_clipnorm": 0.5,
    },
    "accumulation, ema": {
        "gradient_accumulation_steps": 2,
        "use_ema": True,
        "ema_momentum": 0.5,
        "ema_overwrite_frequency": 2,
    },
}
WITH_AND_WITHOUT_OPTIONS = pytest.mark.parametrize(
    "options", [{}, AROUND["accumulation, ema"]], ids=["plain", "options"]
)
OPTIMIZERS = {
    "momentum": lambda **options: optimizers.SGD(0.1, momentum=0.9, **options),
    "adamw": lambda **options: optimizers.AdamW(0.1, weight_decay=0.1, **options),
    "nadam": lambda **options: optimizers.Nadam(0.1, **options),
}


class MySGD(optimizers.SGD):
    """A subclass may override anything."""


class Times(keras.constraints.Constraint):
    def __init__(self, factor):
        self.factor = factor

    def __call__(self, weight):
        return weight * self.factor


UNCHANGED = Times(1.0)
CONSTRAINTS = {"kernel": None, "plain": Times(0.875)}


def train_without_a_kernel(inner, constraint=UNCHANGED, **kwargs):
    """A constraint, which no kernel has, makes the step take the plain route."""
    weights = oracle.make_weights("float16", SHAPES)
    for weight in weights:
        weight.constraint = constraint
    return train(inner, weights=weights, **kwargs)


def saved_arrays(optimizer):
    store = {}
    optimizer.save_own_variables(store)
    return store


@pytest.mark.xslow_except(
    "adamw-accumulation, ema-*",
    "nadam-overwriting-plain",
    "momentum-accumulation, clipped-plain",
    "momentum-clipnorm-kernel",
)
@pytest.mark.slow_except("adamw-accumulation, ema-plain")
@pytest.mark.parametrize("route", CONSTRAINTS)
@pytest.mark.parametrize("options", AROUND)
@pytest.mark.parametrize("rule", OPTIMIZERS)
def test_remainders_are_fp32_masters_with_options(rule, options, route):
    """With Keras's own code for the options, and for the step where FP32 needs it."""
    (masters, _), (found, _) = (
        train_without_a_kernel(
            OPTIMIZERS[rule](**AROUND[options]),
            CONSTRAINTS[route],
            steps=7,
            masters=form,
        )
        for form in ("float32", "remainders")
    )
    expected = saved_arrays(masters)
    arrays = saved_arrays(found)
    assert arrays.keys() == expected.keys()
    for key, array in expected.items():
        oracle.assert_same_bits(arrays[key], array, key)
    steps = AROUND[options].get("gradient_accumulation_steps", 1)
    assert int(found.iterations) == int(masters.iterations) == 6 // steps


@pytest.mark.xslow_except(
    "clipnorm-both-graph", "overwriting-both-graph", "accumulation, ema-both-graph"
)
@pytest.mark.slow
@pytest.mark.parametrize("mode", ["graph", "xla"])
@pytest.mark.parametrize("form", ["both", "no masters, int8", "int8 remainders, int4"])
@pytest.mark.parametrize("options", AROUND)
def test_options_are_those_of_keras(options, form, mode):
    """Near FP32: Adam moves at most 0.1 a step, and 8 bits change a fourth, 4 all."""
    inner = OPTIMIZERS["adamw"]
    masters, _ = train(inner(**AROUND[options]), steps=7, mode=mode)
    found, weights = train(inner(**AROUND[options]), steps=7, mode=mode, **FORMS[form])
    share = 0.1 if form.endswith("int4") else 0.1 / 4
    for mine, exact in zip(found.master_weights, masters.master_weights, strict=True):
        np.testing.assert_allclose(
            np.asarray(mine), np.asarray(exact), rtol=0, atol=6 * (share + 2.0**-10)
        )
    for weight, master in zip(weights, found.master_weights, strict=True):
        rounded = np.asarray(master).astype("float16")
        oracle.assert_same_bits(oracle.value(weight), rounded)


@pytest.mark.xslow_except("adam-*", "*-eager")
@pytest.mark.slow_except("adam-*")
@MODES
@pytest.mark.parametrize("rule", ["sgd", "adam", "rmsprop_momentum"])
def test_remainders_of_bfloat16(rule, mode):
    """A master half-way above an even weight, one in 2**17, moves by an ulp."""
    expected, found = (
        oracle.value(
            train(RULES[rule](), "bfloat16", mode=mode, **forms)[0].master_weights[0]
        )
        for forms in ({}, {"masters": "remainders"})
    )
    ulps = np.abs(found.view("int32") - expected.view("int32"))
    assert np.max(ulps) <= 1
    assert np.count_nonzero(ulps) <= 1  # of 77 masters, in four steps


@pytest.mark.slow
@pytest.mark.xslow_except("adam-float16", "sgd-bfloat16")
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("rule", ["sgd", "adam"])
def test_a_thousand_steps_with_remainders(rule, dtype):
    """Small updates, which 16-bit weights alone would lose."""
    weights = [oracle.make_weights(dtype, (("kernel", (16, 64)),)) for _ in range(2)]
    found = []
    for mine, forms in zip(weights, ({}, {"masters": "remainders"}), strict=True):
        inner = {"sgd": optimizers.SGD, "adam": optimizers.Adam}[rule](1e-5)
        optimizer = wrap(inner, **forms)
        step = oracle.make_step(optimizer, mine, "graph")
        generator = np.random.default_rng(0)
        for _ in range(1000):
            step([tf.constant(generator.standard_normal((16, 64)), dtype)])
        found.append((optimizer, mine))
    masters, others = (values(*each)[1] for each in found)
    if dtype == "float16":
        oracle.assert_same_bits(others, masters)
    # Of a million masters one in 2**17 is half-way above an even bfloat16 weight, and
    # moves by an ulp, at most 2**-23 of it.
    np.testing.assert_allclose(others, masters, rtol=2.0**-20)


# Of a step, of 2**-23: each instruction set adds up squares in another order. A sum of
# 77 in lanes of 8 has 13 roundings of 2**-24, and its root half. A step of Lamb, at
# most 0.26 here, has two norms; and a master below 4 is rounded once. Adafactor's is
# in test_optimizers.py.
ROUNDINGS_OF_NORMS = {"lamb": 3, "adafactor": 6}
# The optimizer state that no norm changes.
EXACT = {"lamb": ("momentum", "velocity"), "adafactor": ()}


@pytest.mark.xslow_except(
    "adam-both*",
    "adam-int4",
    "adam-int8 remainders, int4",
    "adam-no masters*",
    "rmsprop_momentum-both",
    "global_clipnorm-both",
    "adagrad-both",
    "adam-int8",
)
@pytest.mark.slow_except("adam-both", "adam-int8")
@pytest.mark.parametrize(
    ("rule", "form"),
    [
        (rule, form)
        for rule in RULES
        for form in FORMS
        if rule not in NOT_IN_8_BITS or "state" not in FORMS[form]
    ],
)
def test_the_plain_route_stores_the_bits_of_the_kernel(rule, form):
    kernel = train(RULES[rule](), **FORMS[form])
    plain = train_without_a_kernel(RULES[rule](), **FORMS[form])
    if rule in ROUNDINGS_OF_NORMS:
        # A weight without a master is rounded, and a master of 24 bits, below 4 here,
        # may be rounded to the other neighbour. There are four steps.
        bound = 4 * ROUNDINGS_OF_NORMS[rule] * 2.0**-23
        rounded = {None: 2.0**-10, "int8_remainders": 4 * 2.0**-17}
        atol = rounded.get(FORMS[form]["masters"], bound)
        for one, other in zip(values(*plain)[3:], values(*kernel)[3:], strict=True):
            np.testing.assert_allclose(one, other, rtol=0, atol=atol)
    else:
        assert_same(plain, kernel)
    for found, each in zip(plain[0].variables, kernel[0].variables, strict=True):
        if rule not in EXACT or each.path.endswith(EXACT[rule]):
            oracle.assert_same_bits(oracle.value(found), oracle.value(each), each.path)


@pytest.mark.slow_except("int8-graph")
@pytest.mark.parametrize("mode", ["graph", "xla"])
@pytest.mark.parametrize("form", ["int8", "int8 remainders, int4"])
def test_a_compiled_step_stores_the_same_codes(form, mode):
    eager, compiled = (
        train(optimizers.Adam(0.1), mode=each, **FORMS[form])
        for each in ("eager", mode)
    )
    assert_same(compiled, eager)
    for found, each in zip(compiled[0].variables, eager[0].variables, strict=True):
        oracle.assert_same_bits(oracle.value(found), oracle.value(each), each.path)


@pytest.mark.xslow_except("kernel-*", "plain-eager", "plain-xla")
@pytest.mark.slow_except("kernel-*", "plain-eager")
@MODES
@pytest.mark.parametrize("constraint", [None, UNCHANGED], ids=["kernel", "plain"])
def test_an_overflow_leaves_state_in_4_bits(constraint, mode):
    weights = oracle.make_weights("float16", SHAPES)
    for weight in weights:
        weight.constraint = constraint
    optimizer = wrap(optimizers.Adam(0.1), **FORMS["int8 remainders, int4"])
    step = oracle.make_step(optimizer, weights, mode)
    gradients = oracle.make_gradients(weights, seed=0)
    step(oracle.scaled(gradients, optimizer, "float16"))
    held = [*weights, *optimizer._master_weights.own_variables]
    before = [oracle.value(variable) for variable in held]
    gradients[1][0] = np.inf
    step(oracle.scaled(gradients, optimizer, "float16"))
    assert int(optimizer.skipped_steps) == 1
    for variable, old in zip(held, before, strict=True):
        oracle.assert_same_bits(oracle.value(variable), old, variable.path)


@pytest.mark.slow
@pytest.mark.xslow_except("adam-*", "adafactor-*")
@pytest.mark.parametrize("mode", ["graph", "xla"])
@pytest.mark.parametrize("rule", RULES)
def test_the_plain_route_in_a_graph(rule, mode):
    """TensorFlow and XLA rewrite products: x / sqrt(y) as x * rsqrt(y), or with an FMA.

    A step's update, at most 1 here, is off by a dozen roundings of 2**-24 at most, and
    there are four.
    """
    kernel = values(*train(RULES[rule](), masters="remainders"))
    plain = values(
        *train_without_a_kernel(RULES[rule](), mode=mode, masters="remainders")
    )
    for found, expected in zip(plain[-3:], kernel[-3:], strict=True):
        np.testing.assert_allclose(found, expected, rtol=0, atol=4 * 12 * 2.0**-24)


@pytest.mark.xslow_except(
    "*-int4", "adam-*", "adagrad-*", "momentum-*", "global_clipnorm-*"
)
@pytest.mark.slow_except("adam-*", "adagrad-*", "momentum-*")
@pytest.mark.parametrize("state", [ALL, ALL_IN_4_BITS], ids=["int8", "int4"])
@pytest.mark.parametrize("rule", [rule for rule in RULES if rule not in NOT_IN_8_BITS])
def test_8_bits_are_an_eighth_off_and_4_a_half(rule, state):
    """A step from slots that are exact, as 0 and Adagrad's 0.125 are.

    In 4 bits small elements are off by a sixth of their group's largest: by an eighth
    of its power of two, which is less than 4 / 3 of it.
    """
    exact, _ = train(RULES[rule](), steps=1)
    rounded, _ = train(RULES[rule](), steps=1, state=state)
    for mine, masters in zip(rounded.master_weights, exact.master_weights, strict=True):
        oracle.assert_same_bits(oracle.value(mine), oracle.value(masters))
    found, expected = {}, {}
    rounded.save_own_variables(found)
    exact.save_own_variables(expected)
    assert found.keys() == expected.keys()
    for key, array in expected.items():
        rtol, atol = (1 / 8, 0) if state is ALL else (1 / 2, largest_of(array) / 6)
        np.testing.assert_allclose(found[key], array, rtol, atol, err_msg=key)


def largest_of(array):
    return np.max(np.abs(array), initial=0)


def test_what_is_held():
    optimizer, _ = train(optimizers.Adam(), steps=1, masters="remainders", state=ALL)
    own = stored(optimizer)
    path = "adam/model_kernel_momentum"
    assert own["model/kernel"].dtype == np.int16
    assert own[path].dtype == own[f"{path}_exponents"].dtype == np.uint8
    assert own[path].shape == (7, 11)
    assert own[f"{path}_exponents"].shape == (3,)
    floats = [p for p, v in own.items() if v.dtype == np.float32 and v.size > 1]
    assert floats == []


def test_what_is_held_in_4_bits():
    optimizer, _ = train(optimizers.Adam(), steps=1, state=ALL_IN_4_BITS)
    own = stored(optimizer)
    path = "adam/model_kernel_velocity"
    assert own[path].dtype == own[f"{path}_exponents"].dtype == np.uint8
    assert own[path].shape == (3 * 16,)  # 77 elements are three groups
    assert own[f"{path}_exponents"].shape == (3,)


def test_bytes_per_parameter():
    """2 + 2 + 2 + 2 * (1 + 1 / 32): the goal of the form is 8.2."""
    weights = oracle.make_weights("float16", (("kernel", (64, 64)),))
    table = {}
    for name, forms in {"masters": {}, **FORMS}.items():
        optimizer = wrap(optimizers.Adam(), **forms)
        optimizer.build(weights)
        table[name] = optimizer.bytes_per_parameter()
    assert table["both"] == {
        "weights": 2.0,
        "masters": 2.0,
        "state": 2.0625,
        "gradients": 2.0,
        "total": 8.0625,
    }
    totals = {name: row["total"] for name, row in table.items()}
    assert totals == {
        "masters": 16.0,
        "remainders": 14.0,
        "int8 remainders": 13.0,
        "int8": 10.0625,
        "both": 8.0625,
        "both in int8": 7.0625,
        "int4": 9.0625,
        "int8 remainders, int4": 6.0625,
        "no masters": 12.0,
        "no masters, int8": 6.0625,
    }


@pytest.mark.parametrize(
    ("dtype", "without_gradients"),
    # 2 + 4 + 8, and 4 + 8.
    [("float16", 14.0), ("float32", 12.0)],
)
def test_masters_take_as_much_as_fp32_with_gradients_alone(dtype, without_gradients):
    weights = oracle.make_weights(dtype, (("kernel", (64, 64)),))
    optimizer = wrap(optimizers.Adam())
    optimizer.build(weights)
    held = optimizer.bytes_per_parameter()
    assert held["total"] == 16.0
    assert held["total"] - held["gradients"] == without_gradients


SAVED = {name: RULES[name] for name in ("momentum", "adam", "rmsprop_momentum")}
SAVED |= {
    "adamw with options": lambda: OPTIMIZERS["adamw"](**AROUND["accumulation, ema"])
}


@pytest.mark.xslow_except("adamw with options-both", "adam-int4")
@pytest.mark.slow
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("rule", SAVED)
def test_a_saved_form_is_loaded_into_every_other(rule, form):
    saved, weights = train(SAVED[rule](), **FORMS[form])
    store = saved_arrays(saved)
    for name, forms in {"masters": {}, **FORMS}.items():
        others = oracle.make_weights("float16", SHAPES)
        for mine, other in zip(weights, others, strict=True):
            other.assign(mine)
        loaded = wrap(SAVED[rule](), **forms)
        loaded.build(others)
        loaded.load_own_variables(store)
        again = saved_arrays(loaded)
        assert again.keys() == store.keys()
        if name in (form, "masters"):
            for key, array in store.items():
                oracle.assert_same_bits(again[key], array, key)
        for mine, other in zip(
            saved.master_weights, loaded.master_weights, strict=True
        ):
            # Without masters the weight is all there is: half its ulp is lost.
            np.testing.assert_allclose(np.asarray(other), np.asarray(mine), rtol=2e-3)


@pytest.mark.slow
@pytest.mark.xslow_except("both-*")
@WITH_AND_WITHOUT_OPTIONS
@pytest.mark.parametrize("form", FORMS)
def test_a_model_goes_on_from_a_file_to_the_bit(form, options, tmp_path):
    x = np.random.default_rng(0).standard_normal((32, 8)).astype("float32")

    def fit(model, epochs):
        model.fit(x, x[:, :1], batch_size=8, epochs=epochs, shuffle=False, verbose=0)

    keras.utils.set_random_seed(0)
    model = keras.Sequential(
        [
            keras.Input((8,)),
            keras.layers.Dense(40, dtype="float16"),
            keras.layers.Dense(1, dtype="float32"),
        ]
    )
    model.compile(keras_mp.wrap(optimizers.Adam(**options), **FORMS[form]), "mse")
    fit(model, 1)
    model.save(tmp_path / "model.keras")
    fit(model, 2)
    back = keras.saving.load_model(tmp_path / "model.keras")
    assert back.optimizer.masters == model.optimizer.masters
    assert back.optimizer.state == model.optimizer.state
    fit(back, 2)
    for mine, others in zip(back.weights, model.weights, strict=True):
        oracle.assert_same_bits(oracle.value(mine), oracle.value(others))


def test_masters_read_like_variables():
    optimizer, weights = train(optimizers.SGD(2.0**-12), masters="remainders", steps=2)
    master = optimizer.master_weights[0]
    assert (master.name, master.path) == (weights[0].name, weights[0].path)
    assert (master.shape, master.dtype) == ((7, 11), "float32")
    assert master.numpy().dtype == np.float32
    current = oracle.value(optimizer.current_masters()[id(weights[0])])
    oracle.assert_same_bits(current, master.numpy())
    assert np.any(current != oracle.value(weights[0]).astype("float32"))
    with optimizer.fp32_weights():
        master.assign(np.full((7, 11), 1 + 2.0**-20))
    oracle.assert_same_bits(master.numpy(), np.full((7, 11), 1 + 2.0**-20, "float32"))
    assert np.all(oracle.value(weights[0]) == 1)


@MODES
def test_a_weight_that_was_written_keeps_its_remainder(mode):
    optimizer, weights = train(optimizers.SGD(0.1), masters="remainders", mode=mode)
    weights[0].assign(np.full((7, 11), 3.0))
    masters = np.asarray(optimizer.master_weights[0])
    # Half of the distance of FP16 numbers at 3, 2**-9.
    assert np.all(np.abs(masters - 3.0) <= 2.0**-10)


@pytest.mark.slow_except("before-*", "after-both", "after-int4")
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    "is_built",
    [
        pytest.param(False, id="before"),
        pytest.param(True, id="after", marks=until("Keras", 3, 15)),
    ],
)
def test_a_weight_is_excluded_from_decay(form, is_built):
    """The gradients are 0, so that decay alone halves a weight."""
    weights = oracle.make_weights("float16", SHAPES[:2])
    start = [oracle.value(weight) for weight in weights]
    optimizer = wrap(optimizers.SGD(0.5, weight_decay=1.0), **FORMS[form])
    if is_built:
        optimizer.build(weights)
    optimizer.exclude_from_weight_decay(var_list=[weights[0]])
    optimizer.apply([tf.zeros(w.shape, "float16") for w in weights], weights)
    oracle.assert_same_bits(oracle.value(weights[0]), start[0])
    halved = np.asarray(optimizer.master_weights[1])
    np.testing.assert_allclose(halved, start[1].astype("float32") / 2, rtol=2.0**-10)


@pytest.mark.xslow_except("both-options", "int4-plain", "no masters-plain")
@pytest.mark.slow
@WITH_AND_WITHOUT_OPTIONS
@pytest.mark.parametrize("form", FORMS)
def test_replicas_store_what_one_process_does(strategy, form, options):
    with strategy.scope():
        weights = oracle.make_weights("float16", SHAPES[:2])
        optimizer = wrap(optimizers.Adam(0.1, **options), **FORMS[form])
        optimizer.build(weights)
    gradients = oracle.make_gradients(weights, seed=0)
    replicas = strategy.num_replicas_in_sync

    @tf.function
    def step():
        # Tensors of each replica: one that all of them have is not summed.
        strategy.run(
            lambda: optimizer.apply([tf.identity(g / replicas) for g in gradients])
        )

    alone = oracle.make_weights("float16", SHAPES[:2])
    expected = wrap(optimizers.Adam(0.1, **options), **FORMS[form])
    expected.build(alone)
    for _ in range(4):
        step()
        expected.apply([tf.constant(g) for g in gradients])
    for mine, others in zip(weights, alone, strict=True):
        for copy in strategy.experimental_local_results(mine.value):
            oracle.assert_same_bits(copy.numpy(), oracle.value(others))


@pytest.mark.xslow
@pytest.mark.parametrize("form", FORMS)
def test_a_checkpoint_restores_replicas(strategy, form, tmp_path):
    def trained(steps):
        with strategy.scope():
            weights = oracle.make_weights("float16", SHAPES[:2])
            optimizer = wrap(optimizers.Adam(0.1), **FORMS[form])
            optimizer.build(weights)
        gradients = oracle.make_gradients(weights, seed=0)
        for _ in range(steps):
            strategy.run(tf.function(lambda: optimizer.apply(gradients)))
        checkpoint = tf.train.Checkpoint(weights=weights, optimizer=optimizer)
        return checkpoint, [*weights, *optimizer.variables]

    saved, expected = trained(steps=3)
    path = saved.save(tmp_path / "checkpoint")
    restored, actual = trained(steps=1)
    restored.restore(path).assert_existing_objects_matched()
    for before, after in zip(expected, actual, strict=True):
        copies = zip(
            strategy.experimental_local_results(before.value),
            strategy.experimental_local_results(after.value),
            strict=True,
        )
        for copy, same in copies:
            oracle.assert_same_bits(oracle.value(same), oracle.value(copy))


@pytest.mark.parametrize("bits", [8, 4])
def test_the_state_says_for_which_variables(bits):
    weights = oracle.make_weights(
        "float16", (("kernel", (64, 64)), ("bias", (64,)), ("embeddings", (64, 64)))
    )
    state = {8: keras_mp.Int8State, 4: keras_mp.Int4State}[bits]()
    assert [state.applies_to(weight) for weight in weights] == [True, False, False]
    optimizer = wrap(optimizers.Adam(), state=f"int{bits}")
    optimizer.build(weights)
    kinds = {v.path: v.dtype for v in optimizer.variables if "momentum" in v.path}
    assert kinds == {
        "adam/model_kernel_momentum": "uint8",
        "adam/model_kernel_momentum_exponents": "uint8",
        "adam/model_bias_momentum": "float32",
        "adam/model_embeddings_momentum": "float32",
    }


@pytest.mark.parametrize("form", FORMS)
def test_the_config_makes_the_same_optimizer(form):
    optimizer = keras_mp.wrap("adam", **FORMS[form])
    config = json.loads(json.dumps(keras.saving.serialize_keras_object(optimizer)))
    back = keras.saving.deserialize_keras_object(config)
    assert (back.masters, back.state) == (optimizer.masters, optimizer.state)
    assert repr(back) == repr(optimizer)


@pytest.mark.parametrize(
    ("inner", "arguments", "error", "message"),
    {
        "masters": ("adam", {"masters": "half"}, ValueError, "masters='half'"),
        "state": ("adam", {"state": "int2"}, ValueError, "state='int2'"),
        "state of a type": ("adam", {"state": 8}, TypeError, "state=8 of type int"),
        "stochastic remainders": (
            "adam",
            {"masters": "remainders", "rounding": "stochastic"},
            ValueError,
            "Leave rounding",
        ),
        "no masters": ("adam", {"masters": None}, ValueError, 'rounding="stochastic"'),
        "an optimizer": (
            MySGD(),
            {"masters": "remainders"},
            ValueError,
            "Received: MySGD",
        ),
        "lamb": (optimizers.Lamb(), {"state": "int8"}, ValueError, "Received: Lamb"),
        "adafactor": ("adafactor", {"state": "int8"}, ValueError, "Adafactor"),
        "4 bits": ("ftrl", {"state": "int4"}, ValueError, "State in 4 bits"),
        "an option": (
            optimizers.Ftrl(learning_rate_power=-0.25),
            {"masters": "remainders"},
            ValueError,
            "learning_rate_power=-0.25",
        ),
        "amsgrad": (
            optimizers.Adam(amsgrad=True),
            {"state": "int8"},
            ValueError,
            "amsgrad",
        ),
        "ftrl": ("ftrl", {"state": "int8"}, ValueError, "Ftrl"),
    }.values(),
    ids=[
        "masters",
        "state",
        "state of a type",
        "stochastic remainders",
        "no masters",
        "an optimizer",
        "lamb",
        "adafactor",
        "4 bits",
        "an option",
        "amsgrad",
        "ftrl",
    ],
)
def test_mistakes(inner, arguments, error, message):
    with pytest.raises(error, match=message) as caught:
        keras_mp.wrap(inner, **arguments)
    assert "Received: " in str(caught.value)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("use_ema", True),
        ("gradient_accumulation_steps", 2),
        ("weight_decay", tf.constant(0.5)),
    ],
    ids=["average", "sum", "rule"],
)
def test_an_option_set_later(name, value):
    optimizer, weights = train(optimizers.Adam(), masters="remainders", steps=1)
    setattr(optimizer.inner_optimizer, name, value)
    with pytest.raises(ValueError, match=f"Received: {name}="):
        optimizer.apply([tf.ones(w.shape, "float16") for w in weights], weights)


def test_a_missing_gradient_forgets_its_sum_as_in_keras():
    arrays = []
    for form in ("float32", "remainders"):
        weights = oracle.make_weights("float16", SHAPES[:2])
        inner = optimizers.SGD(0.5, gradient_accumulation_steps=2)
        optimizer = wrap(inner, masters=form)
        optimizer.build(weights)
        first, second = (tf.ones(w.shape, "float16") for w in weights)
        optimizer.apply([first, second])
        with pytest.warns(UserWarning, match="Gradients do not exist"):
            optimizer.apply([first, None])
        arrays.append(saved_arrays(optimizer))
    for mine, others in zip(*(each.values() for each in arrays), strict=True):
        oracle.assert_same_bits(mine, others)


@pytest.mark.xslow_except("both", "int8", "int4", "no masters")
@pytest.mark.slow_except("both")
@pytest.mark.parametrize("form", FORMS)
def test_averages_are_shown_and_masters_put_back(form):
    """Training goes on as if nobody had looked, and the average is the model's."""
    options = {"use_ema": True, "ema_momentum": 0.5}
    (optimizer, weights), (undisturbed, _) = (
        train(optimizers.Adam(0.1, **options), **FORMS[form]) for _ in range(2)
    )
    model = SimpleNamespace(optimizer=optimizer, trainable_variables=weights)
    swap = keras_mp.SwapEMAWeights()
    swap.set_model(model)
    swap.on_test_begin()
    averages = optimizer._master_weights.averages
    for weight, average in zip(weights, averages, strict=True):
        distance = np.abs(oracle.value(weight) - oracle.value(average))
        assert np.max(distance, initial=0) <= 2.0**-10  # an ulp of FP16 below 2
    swap.on_test_end()
    for mine, others in zip(optimizer.variables, undisturbed.variables, strict=True):
        oracle.assert_same_bits(oracle.value(mine), oracle.value(others), mine.path)


def test_states_of_other_bits_differ():
    assert keras_mp.Int4State() == keras_mp.Int4State(min_size=4096)
    assert keras_mp.Int4State() != keras_mp.Int8State()
    assert len({keras_mp.Int4State(), keras_mp.Int8State()}) == 2


def test_int8_state_mistakes():
    with pytest.raises(TypeError, match="sequence of regular expressions"):
        keras_mp.Int8State(exclude="embeddings")
    with pytest.raises(ValueError, match=r"'\('"):
        keras_mp.Int8State(exclude=["("])
    with pytest.raises(ValueError, match="min_size"):
        keras_mp.Int8State(min_size=0)


def test_a_config_of_before_0_1_0_is_read():
    config = {"least_size": 7, "least_rank": 1, "excluded": ["head"]}
    found = keras_mp.Int8State.from_config(config)
    assert found == keras_mp.Int8State(min_size=7, min_rank=1, exclude=("head",))


@pytest.mark.parametrize(
    ("bound", "clipped"),
    [(10.0, [3.0, 4.0]), (2.5, [1.5, 2.0])],
    ids=["below", "above"],
)
@pytest.mark.parametrize("form", [{}, *FORMS.values()], ids=["FP32", *FORMS])
def test_only_a_norm_above_the_bound_is_clipped(form, bound, clipped):
    weight = keras.Variable([0.0, 0.0], dtype="float16")
    optimizer = wrap(optimizers.SGD(1.0, global_clipnorm=bound), **form)
    optimizer.apply([tf.constant([3.0, 4.0], "float16") * 1024], [weight])
    np.testing.assert_array_equal(weight.numpy(), np.negative(clipped))
