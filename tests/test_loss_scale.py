"""Loss-scale rules against a state machine in plain Python, and by hand."""

import inspect
import math
from decimal import Decimal
from fractions import Fraction

import keras
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

import keras_mp
from keras_mp import ConstantLossScale, DynamicLossScale, LossScaleState

OK, OVERFLOW = True, False
FLOAT32_MAX = float(np.finfo("float32").max)
FLOAT32_TINY = float(np.finfo("float32").tiny)


def run(rule, pattern, state=None):
    """The states of `rule` after each step of `pattern`."""
    states = [rule.initial_state() if state is None else state]
    for finite in pattern:
        states.append(rule.update(states[-1], finite))
    return states[1:]


def scales(rule, pattern):
    return [float(state.scale) for state in run(rule, pattern)]


# Validation.

NUMBERS = {
    "int": 512,
    "float": 512.0,
    "numpy-int64": np.int64(512),
    "numpy-uint8": np.uint8(128),
    "numpy-float16": np.float16(512),
    "numpy-float32": np.float32(512),
    "numpy-float64": np.float64(512),
    "fraction": Fraction(1, 2),
    "below-one": 2.0**-10,
    "smallest-normal-float32": FLOAT32_TINY,
    "largest-float32": FLOAT32_MAX,
}


@pytest.mark.parametrize("value", NUMBERS.values(), ids=NUMBERS)
def test_a_number_of_any_kind_is_a_scale(value):
    for rule in (
        ConstantLossScale(value),
        DynamicLossScale(initial_scale=value, min_scale=value, max_scale=value),
    ):
        assert rule.initial_scale == float(value)
        assert type(rule.initial_scale) is float
        assert scales(rule, [OK, OVERFLOW]) == [float(value)] * 2


# Named by what is wrong with them: the exception.
BAD_NUMBERS = {
    "none": (None, TypeError),
    "bool": (True, TypeError),
    "numpy-bool": (np.True_, TypeError),
    "string": ("512", TypeError),
    "bytes": (b"8", TypeError),
    "complex": (8j, TypeError),
    "list": ([8.0], TypeError),
    "array": (np.array(8.0), TypeError),
    "decimal": (Decimal(8), TypeError),
    "nan": (math.nan, ValueError),
    "inf": (math.inf, ValueError),
    "minus-inf": (-math.inf, ValueError),
    "zero": (0, ValueError),
    "minus-zero": (-0.0, ValueError),
    "negative": (-8, ValueError),
    "too-large-for-float32": (2.0**128, ValueError),
    "too-large-for-float64": (10**400, ValueError),
    "subnormal-in-float32": (FLOAT32_TINY / 2, ValueError),
    "zero-in-float32": (1e-60, ValueError),
}


@pytest.mark.parametrize(("value", "error"), BAD_NUMBERS.values(), ids=BAD_NUMBERS)
@pytest.mark.parametrize(
    ("rule", "name", "fix"),
    [
        (ConstantLossScale, "value", "A power of two such as 128 is usual."),
        (DynamicLossScale, "initial_scale", "Try 2**15."),
        (DynamicLossScale, "min_scale", "Try 2**-14."),
        (DynamicLossScale, "max_scale", "Try 2**24."),
        (DynamicLossScale, "growth_factor", "Try 2."),
        (DynamicLossScale, "backoff_factor", "Try 0.5."),
    ],
)
def test_what_is_no_positive_float32_is_refused(rule, name, fix, value, error):
    with pytest.raises(error) as caught:
        rule(**{name: value})
    message = str(caught.value)
    rule_text = {
        TypeError: f"`{name}` must be a number.",
        ValueError: f"`{name}` must be positive and finite in float32.",
    }[error]
    assert message.startswith(rule_text)
    assert f"Received: {name}={value!r}" in message
    assert message.endswith(fix)


BAD_COUNTS = {
    "none": (None, TypeError),
    "bool": (True, TypeError),
    "string": ("2000", TypeError),
    "whole-float": (2000.0, TypeError),
    "inf": (math.inf, TypeError),
    "numpy-float": (np.float32(3), TypeError),
    "zero": (0, ValueError),
    "negative": (-1, ValueError),
    "numpy-zero": (np.int64(0), ValueError),
    # The counters are int64; a comparison with more fails in the first step.
    "too-large-for-int64": (2**63, ValueError),
}


@pytest.mark.parametrize(("value", "error"), BAD_COUNTS.values(), ids=BAD_COUNTS)
@pytest.mark.parametrize(
    ("name", "fix"), [("growth_interval", "Try 2000."), ("hysteresis", "Try 1.")]
)
def test_what_is_no_count_is_refused(name, fix, value, error):
    with pytest.raises(error) as caught:
        DynamicLossScale(**{name: value})
    message = str(caught.value)
    assert message.startswith(f"`{name}` must be ")
    assert f"Received: {name}={value!r}" in message
    assert message.endswith(fix)


@pytest.mark.parametrize("value", [1, np.int32(3), np.uint8(7), 2**31 - 1])
@pytest.mark.parametrize("name", ["growth_interval", "hysteresis"])
def test_an_int_of_any_kind_is_a_count(name, value):
    rule = DynamicLossScale(**{name: value})
    assert getattr(rule, name) == int(value)
    assert type(getattr(rule, name)) is int
    assert len(run(rule, [OK, OVERFLOW])) == 2


BAD_RANGES = {
    "growth-of-1": ({"growth_factor": 1}, "greater than 1", "Try 2"),
    "growth-below-1": ({"growth_factor": 0.5}, "greater than 1", "Try 2"),
    "growth-of-1-in-float32": (
        {"growth_factor": 1 + 1e-9},
        "greater than 1",
        "Try 2",
    ),
    "backoff-of-1": ({"backoff_factor": 1}, "in (0, 1)", "Try 0.5"),
    "backoff-above-1": ({"backoff_factor": 2.0}, "in (0, 1)", "Try 0.5"),
    # It would never fall: every step of a run could be skipped.
    "backoff-of-1-in-float32": (
        {"backoff_factor": 1 - 1e-9},
        "in (0, 1)",
        "Try 0.5",
    ),
    "start-below-minimum": (
        {"initial_scale": 1.0, "min_scale": 2.0},
        "in [min_scale, max_scale]",
        "Widen",
    ),
    "start-above-maximum": (
        {"initial_scale": 16.0, "max_scale": 8.0},
        "in [min_scale, max_scale]",
        "Widen",
    ),
    "bounds-swapped": (
        {"initial_scale": 4.0, "min_scale": 8.0, "max_scale": 2.0},
        "in [min_scale, max_scale]",
        "Widen",
    ),
}


@pytest.mark.parametrize(
    ("arguments", "rule", "fix"), BAD_RANGES.values(), ids=BAD_RANGES
)
def test_a_number_out_of_range_is_refused(arguments, rule, fix):
    with pytest.raises(ValueError) as caught:
        DynamicLossScale(**arguments)
    message = str(caught.value)
    received = message.partition("Received: ")[2]
    assert rule in message.partition("Received: ")[0]
    for name, value in arguments.items():
        assert f"{name}={value!r}" in received
    assert fix in received


def test_the_bounds_belong_to_the_range():
    assert DynamicLossScale(8, min_scale=8, max_scale=8).initial_scale == 8.0


# The rule, by hand: what each argument does.

FIELDS = {
    "initial_scale": ({"initial_scale": 4.0}, [OK, OVERFLOW], [4, 2]),
    "growth_factor": (
        {"growth_factor": 4.0, "growth_interval": 1},
        [OK, OK],
        [32, 128],
    ),
    "backoff_factor": ({"backoff_factor": 0.125}, [OVERFLOW], [1]),
    "growth_interval": (
        {"growth_interval": 3},
        [OK] * 7 + [OVERFLOW] + [OK] * 3,
        [8, 8, 16, 16, 16, 32, 32, 16, 16, 16, 32],
    ),
    "hysteresis": (
        {"hysteresis": 3},
        [OVERFLOW] * 5 + [OK] + [OVERFLOW] * 3,
        [8, 8, 4, 2, 1, 1, 1, 1, 0.5],
    ),
    "min_scale": ({"min_scale": 3.0}, [OVERFLOW] * 3, [4, 3, 3]),
    "max_scale": ({"max_scale": 24.0, "growth_interval": 1}, [OK] * 3, [16, 24, 24]),
}


def rule_of(field):
    return DynamicLossScale(**{"initial_scale": 8.0} | FIELDS[field][0])


def test_the_table_names_every_field():
    # Otherwise a new argument would pass the tests below unseen.
    signature = inspect.signature(DynamicLossScale.__init__)
    assert set(FIELDS) == set(signature.parameters) - {"self"}
    assert set(FIELDS) == set(DynamicLossScale().get_config())


@pytest.mark.parametrize("field", FIELDS)
def test_field_acts(field):
    _, pattern, expected = FIELDS[field]
    states = run(rule_of(field), pattern)
    assert [float(state.scale) for state in states] == expected
    assert {state.scale.dtype for state in states} == {tf.float32}


# Eager steps are those of the table above.
MODES = {
    "graph": tf.function,
    "xla": lambda function: tf.function(function, jit_compile=True),
}


@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("field", FIELDS)
def test_field_survives_a_compiled_step(field, mode):
    _, pattern, expected = FIELDS[field]
    rule = rule_of(field)
    weight = keras.Variable([1.0], dtype="float16")
    optimizer = keras_mp.wrap(keras.optimizers.SGD(0.0), rule)
    optimizer.build([weight])

    @MODES[mode]
    def step(gradient):
        optimizer.scale_loss(0.0)
        optimizer.apply([gradient], [weight])

    seen = []
    for finite in pattern:
        step(tf.constant([1.0 if finite else np.inf], "float16"))
        seen.append(float(optimizer.loss_scale))
    assert seen == expected
    assert optimizer.loss_scale_rule == rule_of(field)
    assert int(optimizer.skipped_steps) == pattern.count(OVERFLOW)


def through_the_rules_config(rule):
    return type(rule).from_config(rule.get_config())


def through_keras_saving(rule):
    return keras.saving.deserialize_keras_object(
        keras.saving.serialize_keras_object(rule)
    )


def through_the_optimizers_config(rule):
    optimizer = keras_mp.wrap("sgd", rule)
    return type(optimizer).from_config(optimizer.get_config()).loss_scale_rule


def through_json(rule):
    optimizer = keras.saving.serialize_keras_object(keras_mp.wrap("sgd", rule))
    text = keras.saving.serialize_keras_object(optimizer)
    return keras.saving.deserialize_keras_object(text).loss_scale_rule


@pytest.mark.parametrize(
    "trip",
    [
        through_the_rules_config,
        through_keras_saving,
        through_the_optimizers_config,
        through_json,
    ],
)
@pytest.mark.parametrize("field", FIELDS)
def test_field_survives_saving(field, trip):
    back = trip(rule_of(field))
    assert type(back) is DynamicLossScale
    assert getattr(back, field) == FIELDS[field][0][field]
    assert getattr(back, field) != getattr(DynamicLossScale(), field)
    assert back == rule_of(field)
    _, pattern, expected = FIELDS[field]
    assert scales(back, pattern) == expected


def test_defaults():
    rule = DynamicLossScale()
    assert rule.get_config() == {
        "initial_scale": 32768.0,
        "growth_factor": 2.0,
        "backoff_factor": 0.5,
        "growth_interval": 2000,
        "hysteresis": 1,
        "min_scale": 2.0**-14,
        "max_scale": 2.0**24,
    }


@pytest.mark.parametrize("interval", [1, 2, 3, 7])
def test_growth_comes_after_exactly_growth_interval_finite_steps(interval):
    rule = DynamicLossScale(1.0, growth_interval=interval)
    grown = [1.0] * (interval - 1) + [2.0] * interval + [4.0] * interval
    assert scales(rule, [OK] * (3 * interval - 1)) == grown


@pytest.mark.parametrize("hysteresis", [1, 2])
def test_an_overflow_restarts_the_count_of_finite_steps(hysteresis):
    # Also one that is forgiven.
    rule = DynamicLossScale(8.0, growth_interval=3, hysteresis=hysteresis)
    after = 8.0 / (3 - hysteresis)
    assert scales(rule, [OK, OK, OVERFLOW, OK, OK, OK])[3:] == [
        after,
        after,
        2 * after,
    ]


def test_hysteresis_counts_overflows_in_a_row():
    rule = DynamicLossScale(8.0, hysteresis=2)
    # A cumulative count would back off at the third step.
    assert scales(rule, [OVERFLOW, OK] * 20) == [8.0] * 40
    assert scales(rule, [OVERFLOW, OVERFLOW, OVERFLOW]) == [8.0, 4.0, 2.0]


def test_the_scale_stays_between_its_bounds_for_ever():
    rule = DynamicLossScale(growth_interval=1)
    assert scales(rule, [OVERFLOW] * 40)[-10:] == [2.0**-14] * 10
    assert scales(rule, [OK] * 20)[-10:] == [2.0**24] * 10
    # 160 halvings of 1 are 0 in float32, 160 doublings inf.
    widest = DynamicLossScale(
        1.0, growth_interval=1, min_scale=FLOAT32_TINY, max_scale=FLOAT32_MAX
    )
    assert scales(widest, [OVERFLOW] * 160)[-1] == FLOAT32_TINY
    assert scales(widest, [OK] * 160)[-1] == FLOAT32_MAX


# A scale that only a damaged checkpoint can bring.
DAMAGED = {
    "nan": (math.nan, 2.0**-14),
    "inf": (math.inf, 2.0**24),
    "minus-inf": (-math.inf, 2.0**-14),
    "zero": (0.0, 2.0**-14),
    "negative": (-8.0, 2.0**-14),
    "below-minimum": (1e-30, 2.0**-14),
    "above-maximum": (1e30, 2.0**24),
}


@pytest.mark.parametrize(("scale", "nearest"), DAMAGED.values(), ids=DAMAGED)
@pytest.mark.parametrize("finite", [OK, OVERFLOW])
def test_a_damaged_scale_recovers_at_once(scale, nearest, finite):
    damaged = LossScaleState(tf.constant(scale), 0, 0, 0, 0)
    (state,) = run(DynamicLossScale(), [finite], damaged)
    assert float(state.scale) == nearest
    (state,) = run(ConstantLossScale(128), [finite], damaged)
    assert float(state.scale) == 128.0


@pytest.mark.slow
@pytest.mark.parametrize("scale", [math.nan, math.inf, 0.0])
@pytest.mark.parametrize(
    "rule",
    [ConstantLossScale(8), DynamicLossScale(8, max_scale=1024)],
    ids=["constant", "dynamic"],
)
@pytest.mark.parametrize("mode", MODES)
def test_training_survives_a_damaged_scale(rule, scale, mode):
    weight = keras.Variable([1.0], dtype="float16")
    optimizer = keras_mp.wrap(keras.optimizers.SGD(0.25), rule)
    optimizer.build([weight])

    @MODES[mode]
    def step():
        with tf.GradientTape() as tape:
            loss = optimizer.scale_loss(keras.ops.sum(weight))
        optimizer.apply(tape.gradient(loss, [weight.value]), [weight])

    optimizer.loss_scale.assign(scale)
    step()
    assert weight.numpy() == [1.0]
    assert int(optimizer.skipped_steps) == 1
    step()
    assert weight.numpy() == [0.75]
    assert int(optimizer.skipped_steps) == 1


# The rule against a state machine in plain Python.


def expected_scales(rule, pattern):
    """The scales after each step, computed in float32, one step at a time."""
    scale = np.float32(rule.initial_scale)
    lowest, highest = np.float32(rule.min_scale), np.float32(rule.max_scale)
    until_growth, overflows_in_a_row = rule.growth_interval, 0
    result = []
    for finite in pattern:
        if finite:
            overflows_in_a_row = 0
            until_growth -= 1
            if until_growth == 0:
                until_growth = rule.growth_interval
                scale = min(scale * np.float32(rule.growth_factor), highest)
        else:
            until_growth = rule.growth_interval
            overflows_in_a_row += 1
            if overflows_in_a_row >= rule.hysteresis:
                scale = max(scale * np.float32(rule.backoff_factor), lowest)
        result.append(scale)
    return result


@st.composite
def rules(draw):
    exponents = st.floats(-100, 100)
    lowest, initial, highest = sorted(2.0 ** draw(exponents) for _ in range(3))
    return DynamicLossScale(
        initial_scale=initial,
        growth_factor=draw(st.sampled_from([1.001, 1.5, 2, 3.7, 1e20])),
        backoff_factor=draw(st.sampled_from([1e-20, 0.1, 0.5, 0.8, 0.999])),
        growth_interval=draw(st.integers(1, 6)),
        hysteresis=draw(st.integers(1, 4)),
        min_scale=lowest,
        max_scale=highest,
    )


PATTERNS, STEPS = 400, 25


# 25 rules, each with 400 patterns of 25 steps: 10,000 runs. A rule is elementwise,
# so all patterns of one rule take their steps at once.
@pytest.mark.slow
@settings(max_examples=25)
@given(
    rule=rules(), share_of_finite=st.floats(0.05, 0.95), seed=st.integers(0, 2**32 - 1)
)
def test_random_runs_match_the_state_machine(rule, share_of_finite, seed):
    patterns = np.random.default_rng(seed).random((PATTERNS, STEPS)) < share_of_finite
    states = run(rule, patterns.T)
    found = np.stack([state.scale for state in states], axis=1)
    with np.errstate(over="ignore", under="ignore"):
        expected = np.array([expected_scales(rule, pattern) for pattern in patterns])
    np.testing.assert_array_equal(found, expected, strict=True)
    assert np.all(np.isfinite(found)) and np.all(found > 0)
    skipped = np.cumsum(~patterns, axis=1)
    np.testing.assert_array_equal(
        np.stack([state.skipped_steps for state in states], axis=1), skipped
    )


# The counters.

COUNTERS = {
    "finite": ([OK, OK], (8.0, 2, 0, 0, 0)),
    "one-overflow": ([OVERFLOW], (4.0, 0, 1, 1, 0)),
    "two-overflows": ([OVERFLOW] * 2, (2.0, 0, 2, 2, 0)),
    # The scale is at its minimum, 2, from the third overflow on.
    "stuck": ([OVERFLOW] * 5, (2.0, 0, 5, 5, 3)),
    "free-again": ([OVERFLOW] * 5 + [OK], (2.0, 1, 0, 5, 0)),
    "stuck-again": ([OVERFLOW] * 5 + [OK, OVERFLOW], (2.0, 0, 1, 6, 1)),
    "isolated": ([OVERFLOW, OK] * 2, (2.0, 1, 0, 2, 0)),
}


@pytest.mark.parametrize(("pattern", "expected"), COUNTERS.values(), ids=COUNTERS)
def test_counters(pattern, expected):
    rule = DynamicLossScale(8.0, min_scale=2.0)
    *_, state = run(rule, pattern)
    assert values(state) == expected


def test_a_constant_scale_is_always_at_its_minimum():
    *_, state = run(ConstantLossScale(128), [OK, OVERFLOW, OVERFLOW])
    assert values(state) == (128.0, 0, 2, 2, 2)
    *_, state = run(ConstantLossScale(128), [OVERFLOW, OVERFLOW, OK])
    assert values(state) == (128.0, 1, 0, 2, 0)


def values(state):
    """The scale and the counters, of a rule that has no statistics."""
    *fields, statistics = state
    assert statistics == {}
    return tuple(field.numpy() for field in fields)


def test_the_initial_state_is_plain_numbers():
    assert DynamicLossScale(8).initial_state() == (8.0, 0, 0, 0, 0, {})
    assert ConstantLossScale(8).initial_state() == (8.0, 0, 0, 0, 0, {})
    assert LossScaleState._fields == (
        "scale",
        "finite_steps",
        "consecutive_skips",
        "skipped_steps",
        "skips_at_minimum",
        "statistics",
    )


def test_the_counters_of_the_optimizer():
    weights = [keras.Variable([1.0], dtype="float16", name=name) for name in "ab"]
    optimizer = keras_mp.wrap("sgd", DynamicLossScale(8.0, min_scale=4.0))
    optimizer.build(weights)
    assert optimizer.last_overflow is None
    optimizer.scale_loss(0.0)
    for bad in (np.inf, np.nan, -np.inf):
        optimizer.apply([tf.ones(1, "float16"), tf.constant([bad], "float16")])
    state = {
        "loss_scale": np.float32(4),
        "step_counter": 0,
        "consecutive_skips": 3,
        "skipped_steps": 3,
        "skips_at_minimum": 2,
    }
    for name, value in state.items():
        assert getattr(optimizer, name).numpy() == value, name
        dtype = "float32" if name == "loss_scale" else "int64"
        assert getattr(optimizer, name).dtype == dtype
    assert optimizer.last_overflow == weights[1].path

    # The same state, taken from one optimizer to another through its variables.
    store = {}
    optimizer.save_own_variables(store)
    other = keras_mp.wrap("sgd", DynamicLossScale(8.0, min_scale=4.0))
    other.build(weights)
    other.load_own_variables(store)
    for name, value in state.items():
        assert getattr(other, name).numpy() == value, name
    assert other.last_overflow == weights[1].path


# Equality, hash and repr.

EQUAL = {
    "constant": (ConstantLossScale(8), ConstantLossScale(8.0)),
    "numpy": (ConstantLossScale(8), ConstantLossScale(np.float32(8))),
    "dynamic": (DynamicLossScale(), DynamicLossScale(2**15)),
}


@pytest.mark.parametrize(("one", "other"), EQUAL.values(), ids=EQUAL)
def test_equal_rules(one, other):
    assert one == other
    assert hash(one) == hash(other)
    assert repr(one) == repr(other)


class LikeConstant(ConstantLossScale):
    pass


DIFFERENT = {
    "value": (ConstantLossScale(8), ConstantLossScale(16)),
    "class": (ConstantLossScale(8), DynamicLossScale(8)),
    "subclass": (ConstantLossScale(8), LikeConstant(8)),
    "number": (ConstantLossScale(8), 8.0),
    "none": (ConstantLossScale(8), None),
} | {field: (rule_of(field), DynamicLossScale(8.0)) for field in FIELDS}


@pytest.mark.parametrize(("one", "other"), DIFFERENT.values(), ids=DIFFERENT)
def test_different_rules(one, other):
    assert one != other
    assert other != one


@pytest.mark.parametrize(
    "rule",
    [ConstantLossScale(0.1), *(rule_of(field) for field in FIELDS)],
    ids=["value", *FIELDS],
)
def test_repr_is_the_call_that_makes_the_rule(rule):
    assert eval(repr(rule)) == rule


# A rule of one's own.


@keras.saving.register_keras_serializable(package="test_loss_scale")
class Quartering(keras_mp.LossScale):
    """Divides by `divisor` at an overflow, and starts anew after a finite step."""

    def __init__(self, divisor, initial_scale=64.0, min_scale=1.0):
        super().__init__(initial_scale, min_scale)
        self.divisor = divisor

    def next_scale(self, state, finite):
        lower = keras.ops.maximum(state.scale / self.divisor, self.min_scale)
        return keras.ops.where(finite, self.initial_scale, lower)

    def get_config(self):
        return {"divisor": self.divisor, **super().get_config()}


@pytest.mark.parametrize("mode", MODES)
def test_a_rule_of_ones_own_drives_an_optimizer(mode):
    weight = keras.Variable([1.0], dtype="float16")
    optimizer = keras_mp.wrap("sgd", Quartering(divisor=4.0))
    optimizer.build([weight])

    @MODES[mode]
    def step(gradient):
        optimizer.scale_loss(0.0)
        optimizer.apply([gradient], [weight])

    seen = []
    for gradient in (np.inf, np.inf, np.inf, np.inf, 0.0):
        step(tf.constant([gradient], "float16"))
        seen.append(float(optimizer.loss_scale))
    assert seen == [16.0, 4.0, 1.0, 1.0, 64.0]


def test_a_rule_of_ones_own_is_compared_and_saved():
    rule = Quartering(divisor=4.0)
    assert rule == Quartering(4.0) != Quartering(2.0)
    assert repr(rule) == "Quartering(divisor=4.0, initial_scale=64.0, min_scale=1.0)"
    for trip in (through_keras_saving, through_the_optimizers_config, through_json):
        assert trip(rule) == rule


def test_a_rule_without_next_scale_says_what_is_missing():
    class Incomplete(keras_mp.LossScale):
        pass

    rule = Incomplete(8.0, 1.0)
    with pytest.raises(NotImplementedError, match=r"next_scale.*Received: Incomplete"):
        rule.update(rule.initial_state(), OK)


# What `wrap` takes for a loss scale.

LOSS_SCALES = {
    "dynamic": ("dynamic", DynamicLossScale()),
    "int": (512, ConstantLossScale(512.0)),
    "float": (512.0, ConstantLossScale(512.0)),
    "below-one": (0.25, ConstantLossScale(0.25)),
    "numpy-int": (np.int64(512), ConstantLossScale(512.0)),
    "numpy-float": (np.float32(512), ConstantLossScale(512.0)),
    "constant": (ConstantLossScale(8), ConstantLossScale(8)),
    "rule": (rule_of("hysteresis"), rule_of("hysteresis")),
    "serialized": (
        keras.saving.serialize_keras_object(rule_of("hysteresis")),
        rule_of("hysteresis"),
    ),
    "rule-of-ones-own": (Quartering(4.0), Quartering(4.0)),
}


@pytest.mark.parametrize(("given_as", "rule"), LOSS_SCALES.values(), ids=LOSS_SCALES)
def test_wrap_takes(given_as, rule):
    optimizer = keras_mp.wrap("sgd", loss_scale=given_as)
    assert optimizer.loss_scale_rule == rule
    assert optimizer.loss_scale.numpy() == np.float32(rule.initial_scale)


def test_dynamic_is_the_default():
    assert keras_mp.wrap("sgd").loss_scale_rule == DynamicLossScale()


BAD_LOSS_SCALES = {
    "none": (None, TypeError),
    "bool": (True, TypeError),
    "list": ([8.0], TypeError),
    "class": (DynamicLossScale, TypeError),
    "dict-that-is-no-config": ({"scale": 8}, TypeError),
    "another-string": ("static", ValueError),
    "number-in-a-string": ("512", ValueError),
    "zero": (0, ValueError),
    "negative": (-1.0, ValueError),
    "nan": (math.nan, ValueError),
    "inf": (math.inf, ValueError),
}


@pytest.mark.parametrize(
    ("value", "error"), BAD_LOSS_SCALES.values(), ids=BAD_LOSS_SCALES
)
def test_wrap_refuses(value, error):
    with pytest.raises(error) as caught:
        keras_mp.wrap("sgd", loss_scale=value)
    message = str(caught.value)
    assert message.startswith("`loss_scale` must be ")
    assert f"Received: loss_scale={value!r}" in message
    assert "dynamic" in message


def test_a_new_rule_starts_a_new_state():
    optimizer = keras_mp.wrap("sgd", 8)
    weight = keras.Variable([1.0], dtype="float16")
    optimizer.scale_loss(0.0)
    optimizer.apply([tf.constant([np.inf], "float16")], [weight])
    optimizer.loss_scale = DynamicLossScale(32.0)
    assert optimizer.loss_scale_rule == DynamicLossScale(32.0)
    assert float(optimizer.loss_scale) == 32.0
    assert int(optimizer.skipped_steps) == int(optimizer.skips_at_minimum) == 0
    optimizer.apply([tf.constant([np.inf], "float16")], [weight])
    assert float(optimizer.loss_scale) == 16.0


# Names of the base class.


class Halved(keras_mp.LossScale):
    def next_scale(self, state, finite):
        return keras.ops.where(finite, state.scale, state.scale / 2)


@pytest.mark.parametrize(
    ("rule", "initial_scale", "growth_steps"),
    [
        ("dynamic", 2.0**15, 2000),
        (keras_mp.DynamicLossScale(64.0, growth_interval=3), 64.0, 3),
        (128, 128.0, None),
        (Halved(32.0, 1.0), 32.0, None),
    ],
    ids=["default", "dynamic", "constant", "own"],
)
def test_the_names_of_the_base_class_are_those_of_the_rule(
    rule, initial_scale, growth_steps
):
    optimizer = keras_mp.wrap("sgd", loss_scale=rule)
    assert optimizer.initial_scale == initial_scale
    assert optimizer.dynamic_growth_steps == growth_steps
    optimizer.loss_scale = 4.0
    assert optimizer.initial_scale == 4.0
    assert optimizer.dynamic_growth_steps is None


@pytest.mark.parametrize("name", ["initial_scale", "dynamic_growth_steps"])
def test_the_names_of_the_base_class_cannot_be_set(name):
    optimizer = keras_mp.wrap("sgd", loss_scale=8)
    with pytest.raises(AttributeError, match=rf"(?s)`{name}`.*={5}\..*loss_scale = "):
        setattr(optimizer, name, 5)
    assert float(optimizer.loss_scale) == optimizer.initial_scale == 8.0
