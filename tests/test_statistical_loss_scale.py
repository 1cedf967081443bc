"""`StatisticalLossScale` by hand, against float64, and in an optimizer."""

import inspect
import math

import keras
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st
from replicas import fit, one_weight

import keras_mp
from keras_mp import DynamicLossScale, StatisticalLossScale

OVERFLOW = None
LOG2_LARGEST = math.log2(65504)
MODES = {
    "eager": lambda function: function,
    "graph": tf.function,
    "xla": lambda function: tf.function(function, jit_compile=True),
}


def run(rule, pattern, state=None):
    """The states of `rule` after steps with these largest gradients or overflows."""
    states = [rule.initial_state() if state is None else state]
    for largest in pattern:
        finite = largest is not OVERFLOW
        states.append(rule.update(states[-1], finite, largest if finite else np.nan))
    return states[1:]


def scales(rule, pattern, state=None):
    return [float(state.scale) for state in run(rule, pattern, state)]


# The rule, by hand. With gradients of one size 2**k the variance is 40 / (10 + n) after
# n steps, until `window` holds it: limit = 15.9993 - k - n_sigma * sqrt(variance).
FIELDS = {
    # Without statistics the scale is that of DynamicLossScale.
    "initial_scale": ({"initial_scale": 48.0}, [OVERFLOW, 0.0, OVERFLOW], [24, 24, 12]),
    # 4 * sqrt(40 / 11) = 7.63, then 7.30 and 7.02; half of that.
    "n_sigma": ({"n_sigma": 2.0}, [1.0] * 3, [2.0**12] * 3),
    # The gradient of a step is the mean from then on. Its variance falls to 0.
    "window": (
        {"window": 1},
        [1.0, 2.0**-4, 2.0**4, 0.0],
        [2.0**15, 2.0**19, 2.0**11, 2.0**11],
    ),
    # An overflow at 2**15 widens the margin to 2, which is 1.5, 1 and 0.5 in the steps
    # that follow, with the means 0, -0.5 and 0.
    "growth_interval": (
        {"growth_interval": 2, "window": 1},
        [1.0, OVERFLOW, 1.0, 2.0**-0.5, 1.0, OVERFLOW],
        [2.0**15, 2.0**14, 2.0**14, 2.0**15, 2.0**15, 2.0**14],
    ),
    "min_scale": ({"min_scale": 3000.0}, [2.0**10, OVERFLOW], [3000.0] * 2),
    "max_scale": (
        {"max_scale": 5000.0, "initial_scale": 8},
        [2.0**-20] * 2,
        [4096] * 2,
    ),
}


def rule_of(field):
    return StatisticalLossScale(**FIELDS[field][0])


def test_the_table_names_every_field():
    signature = inspect.signature(StatisticalLossScale.__init__)
    assert set(FIELDS) == set(signature.parameters) - {"self"}
    assert set(FIELDS) == set(StatisticalLossScale().get_config())


@pytest.mark.parametrize("field", FIELDS)
def test_field_acts(field):
    _, pattern, expected = FIELDS[field]
    states = run(rule_of(field), pattern)
    assert [float(state.scale) for state in states] == expected
    assert {state.scale.dtype for state in states} == {tf.float32}


def test_gradients_of_one_size_let_the_prior_fade():
    # limit = 16 - 4 * 2 * sqrt(10 / (10 + n)), 2**-10 below: 8.37, 10.34 and 11.9993.
    seen = scales(StatisticalLossScale(), [1.0] * 31)
    assert [seen[n - 1] for n in (1, 10, 30, 31)] == [2**8, 2**10, 2**11, 2**12]


def test_smaller_gradients_raise_the_scale_at_once():
    rule = StatisticalLossScale(window=1)
    assert scales(rule, [1.0, 2.0**-5, 2.0**-9]) == [2.0**15, 2.0**20, 2.0**24]


def test_zeros_teach_nothing():
    rule = StatisticalLossScale()
    before = run(rule, [0.25, 8.0])[-1]
    for zero in (0.0, -0.0, 2.0**-140):
        after = run(rule, [zero], before)[0]
        assert float(after.scale) == float(before.scale)
        assert after.statistics == before.statistics


def test_zeros_from_the_start_grow_the_scale_as_the_dynamic_one():
    pattern = [0.0] * 5 + [OVERFLOW] + [0.0] * 5
    of_dynamic = DynamicLossScale(8.0, growth_interval=2)
    expected = []
    state = of_dynamic.initial_state()
    for largest in pattern:
        state = of_dynamic.update(state, largest is not OVERFLOW)
        expected.append(float(state.scale))
    assert scales(StatisticalLossScale(8.0, growth_interval=2), pattern) == expected


@pytest.mark.slow
def test_an_overflow_halves_the_scale_and_is_remembered():
    rule = StatisticalLossScale(window=1, growth_interval=100)
    pattern = [1.0] + [OVERFLOW] * 3 + [1.0] * 101
    seen = scales(rule, pattern)
    assert seen[:4] == [2.0**15, 2.0**14, 2.0**13, 2.0**12]
    # The margin is 4 after three overflows, and 3 after 100 more steps.
    assert seen[4:103] == [2.0**12] * 99
    assert seen[104] == 2.0**13


@pytest.mark.slow
def test_gradients_that_no_variable_has_do_not_overflow_for_ever():
    # Activations have gradients 2**8 times as large as the largest of a weight. By mean
    # and deviation alone 9 steps in 10 would be skipped.
    rule = StatisticalLossScale()
    update = tf.function(lambda *arguments: rule.update(*arguments))
    random = np.random.default_rng(0)
    state = rule.initial_state()
    for x in random.normal(0, 0.5, 1000).astype("float32"):
        finite = x + 8 + math.log2(state.scale) <= LOG2_LARGEST
        largest = np.float32(2.0**x if finite else np.inf)
        state = update(state, tf.constant(bool(finite)), tf.constant(largest))
    assert int(state.skipped_steps) <= 12
    assert 2.0**5 <= float(state.scale) <= 2.0**8


def of_float64(rule, pattern):
    """The same rule in plain Python: scale and statistics after each step."""
    scale, mean, variance, count, margin = rule.initial_scale, 0.0, 4.0, 0, 0.0
    for largest in pattern:
        if largest is OVERFLOW:
            if count:
                margin = max(margin, LOG2_LARGEST - math.log2(scale) - mean) + 1
            scale /= 2
        else:
            count += 1
            x = math.log2(largest)
            new = mean + (x - mean) / min(count, rule.window)
            square = (x - mean) * (x - new)
            mean = new
            variance += (square - variance) / min(count + 10, rule.window)
            margin = max(margin - 1 / rule.growth_interval, 0.0) if count > 1 else 0.0
            spread = max(rule.n_sigma * math.sqrt(variance), margin)
            scale = 2.0 ** math.floor(LOG2_LARGEST - mean - spread)
        yield scale, mean, variance, margin


@pytest.mark.slow_except("graph", "xla")
@pytest.mark.parametrize("mode", MODES)
def test_the_rule_is_that_of_float64(mode):
    rule = StatisticalLossScale(window=20, growth_interval=7)
    random = np.random.default_rng(1)
    pattern = [
        OVERFLOW if i % 41 == 40 else float(np.float32(2.0**x))
        for i, x in enumerate(random.normal(0, 2, 200))
    ]
    update = MODES[mode](lambda *arguments: rule.update(*arguments))
    state = run(rule, pattern[:1])[0]
    same = 0
    for largest, expected in zip(
        pattern[1:], list(of_float64(rule, pattern))[1:], strict=True
    ):
        finite = largest is not OVERFLOW
        largest = tf.constant(largest if finite else np.inf, "float32")
        state = update(state, tf.constant(finite), largest)
        learned = [state.statistics[n] for n in ("mean", "variance", "margin")]
        # Of 200 steps each rounds numbers below 2**6 about 8 times.
        tolerance = 200 * 8 * 2.0**-24 * 2**6
        np.testing.assert_allclose(learned, expected[1:], rtol=0, atol=tolerance)
        same += float(state.scale) == expected[0]
    # The floor of a number that close to an integer may be another one.
    assert same >= 198


# Bounds.

NUMBERS = st.floats(width=32, allow_nan=True, allow_infinity=True)
BOUNDS = {"default": (2.0**-14, 2.0**24), "narrow": (3.0, 3.5), "one": (8.0, 8.0)}


@pytest.mark.xslow_except("narrow")
@pytest.mark.slow
@pytest.mark.parametrize("bounds", BOUNDS)
@settings(max_examples=40, deadline=None)
@given(
    steps=st.lists(st.tuples(st.booleans(), NUMBERS), max_size=12),
    damage=st.none()
    | st.tuples(NUMBERS, NUMBERS, NUMBERS, NUMBERS, st.integers(-2, 3)),
)
def test_the_scale_stays_within_its_bounds(bounds, steps, damage):
    least, most = BOUNDS[bounds]
    rule = StatisticalLossScale(least, min_scale=least, max_scale=most)
    state = rule.initial_state()
    if damage is not None:
        scale, mean, variance, margin, count = damage
        learned = {"mean": mean, "variance": variance, "count": count, "margin": margin}
        state = state._replace(scale=scale, statistics=learned)
    for finite, largest in steps:
        state = rule.update(state, finite, largest)
        assert least <= float(state.scale) <= most


DAMAGED = {
    "mean": [math.nan, math.inf, -1e30],
    "variance": [math.nan, math.inf, -1.0],
    "margin": [math.nan, math.inf, -1.0, 1e9],
    "count": [-5],
}


@pytest.mark.parametrize(
    ("name", "value"), [(name, x) for name, xs in DAMAGED.items() for x in xs]
)
def test_damaged_statistics_start_anew(name, value):
    rule = StatisticalLossScale()
    state = rule.initial_state()
    damaged = state._replace(statistics={**state.statistics, name: value})
    (new,), (first,) = run(rule, [0.25], damaged), run(rule, [0.25])
    assert new.statistics == first.statistics
    assert float(new.scale) == float(first.scale)


# Bad arguments.

BAD = {
    "n_sigma-zero": ({"n_sigma": 0}, ValueError),
    "n_sigma-nan": ({"n_sigma": math.nan}, ValueError),
    "n_sigma-string": ({"n_sigma": "4"}, TypeError),
    "window-zero": ({"window": 0}, ValueError),
    "window-float": ({"window": 100.0}, TypeError),
    "growth_interval-zero": ({"growth_interval": 0}, ValueError),
    "min_scale-zero": ({"min_scale": 0}, ValueError),
    "start-below-minimum": ({"initial_scale": 1.0, "min_scale": 2.0}, ValueError),
    "start-above-maximum": ({"initial_scale": 16.0, "max_scale": 8.0}, ValueError),
}


@pytest.mark.parametrize(("arguments", "error"), BAD.values(), ids=BAD)
def test_bad_arguments_are_refused(arguments, error):
    with pytest.raises(error) as caught:
        StatisticalLossScale(**arguments)
    message = str(caught.value)
    for name, value in arguments.items():
        assert f"{name}={value!r}" in message.partition("Received: ")[2]


def test_an_update_without_the_largest_gradient_is_refused():
    rule = StatisticalLossScale()
    with pytest.raises(ValueError, match="largest=None for StatisticalLossScale"):
        rule.update(rule.initial_state(), True)


def test_configs_and_repr():
    rule = StatisticalLossScale(64.0, 3.0, 50, 500, 0.5, 1024.0)
    optimizer = keras_mp.wrap("sgd", rule)
    again = type(optimizer).from_config(optimizer.get_config())
    assert again.loss_scale_rule == rule != StatisticalLossScale()
    assert repr(rule) == (
        "StatisticalLossScale(initial_scale=64.0, n_sigma=3.0, window=50, "
        "growth_interval=500, min_scale=0.5, max_scale=1024.0)"
    )
    assert repr(rule) in repr(optimizer)


# In an optimizer.

INNER = {
    "fused": lambda: keras.optimizers.SGD(0.0),
    "fused-clipped": lambda: keras.optimizers.SGD(0.0, global_clipnorm=1e-3),
    "unscaled-by-kernel": lambda: keras.optimizers.Adafactor(0.0),
    "accumulating": lambda: keras.optimizers.SGD(0.0, gradient_accumulation_steps=2),
}


def statistics(optimizer):
    learned = optimizer._scaler.state.statistics
    return {name: keras.ops.convert_to_numpy(x).item() for name, x in learned.items()}


@pytest.mark.xslow_except(
    "eager-*-float16",
    "graph-*-float16",
    "eager-fused-float*",
    "xla-fused-float16",
    "graph-unscaled-by-kernel-float64",
)
@pytest.mark.slow_except("eager-fused-float16", "graph-fused-float16")
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("inner", INNER)
@pytest.mark.parametrize("mode", MODES)
def test_an_optimizer_tells_the_rule_the_largest_gradient(mode, inner, dtype):
    rule = StatisticalLossScale(1024.0, window=1)
    kernel, bias = (keras.Variable(np.ones(n), dtype=dtype) for n in (3, 1))
    optimizer = keras_mp.wrap(INNER[inner](), rule)
    optimizer.build([kernel, bias])

    @MODES[mode]
    def step(largest):
        optimizer.scale_loss(0.0)
        scaled = tf.cast(
            largest * keras.ops.cast(optimizer.loss_scale, "float32"), dtype
        )
        optimizer.apply([scaled * [0.5, -1, 0], scaled * [0.25]])

    seen = []
    for largest in (2.0, 0.0, np.inf, np.nan, 2.0**-3):
        step(tf.constant(largest))
        seen.append((float(optimizer.loss_scale), statistics(optimizer)["mean"]))
    # The scale 2**14 and the margin 2 + 1 after two overflows.
    assert seen == [
        (2.0**14, 1),
        (2.0**14, 1),
        (2.0**13, 1),
        (2.0**12, 1),
        (2.0**16, -3),
    ]
    assert statistics(optimizer)["count"] == 2
    assert int(optimizer.skipped_steps) == 2


def test_sparse_gradients_count():
    weight = keras.Variable(np.ones((4, 2)), dtype="float16")
    optimizer = keras_mp.wrap("sgd", StatisticalLossScale(8.0))
    optimizer.build([weight])
    optimizer.scale_loss(0.0)
    rows = tf.constant([[8.0, -32.0]], "float16")
    optimizer.apply([tf.IndexedSlices(rows, tf.constant([1]), tf.constant([4, 2]))])
    assert statistics(optimizer)["mean"] == 2.0


@pytest.mark.parametrize("mode", MODES)
def test_gradients_that_were_clipped_since_do_not_count(mode):
    weight = keras.Variable([1.0], dtype="float16")
    optimizer = keras_mp.wrap(keras.optimizers.SGD(0.0), StatisticalLossScale(8.0))
    optimizer.build([weight])

    @MODES[mode]
    def step(gradient):
        optimizer.scale_loss(0.0)
        (unscaled,) = optimizer.unscale_gradients([gradient])
        optimizer.apply([tf.clip_by_value(unscaled, -1.0, 1.0)])

    step(tf.constant([32.0], "float16"))
    assert statistics(optimizer)["mean"] == 2.0


@pytest.mark.parametrize("order", [(4.0, 16.0), (16.0, 4.0)])
def test_optimizers_that_share_a_scale_count_the_largest_of_both(order):
    weights = [keras.Variable([1.0], dtype="float16") for _ in order]
    first = keras_mp.wrap(keras.optimizers.SGD(0.0), StatisticalLossScale(8.0))
    users = [first, keras_mp.wrap(keras.optimizers.SGD(0.0), first)]
    for user, weight in zip(users, weights, strict=True):
        user.build([weight])
    for _ in range(3):
        scale = float(first.loss_scale)
        for user in users:
            user.scale_loss(0.0)
        for user, gradient in zip(users, order, strict=True):
            user.apply([tf.constant([scale * gradient / 4], "float16")])
    assert statistics(first)["mean"] == 2.0
    assert statistics(first)["count"] == 3


@pytest.mark.parametrize("clipnorm", [None, 1e6])
def test_replicas_count_the_largest_of_all(clipnorm, strategy):
    with strategy.scope():
        weight = keras.Variable([1.0], dtype="float16")
        inner = keras.optimizers.SGD(0.0, clipnorm=clipnorm)
        optimizer = keras_mp.wrap(inner, StatisticalLossScale(8.0))
        optimizer.build([weight])

    @tf.function
    def step():
        replica = tf.distribute.get_replica_context().replica_id_in_sync_group
        optimizer.scale_loss(0.0)
        gradients = tf.constant([[8.0], [-64.0]], "float16")
        optimizer.apply([gradients[replica]], [weight])

    strategy.run(step)
    # Each has its own part, 1 and -8; an optimizer that clips has their sum, -7.
    expected = 3.0 if clipnorm is None else math.log2(7)
    assert statistics(optimizer)["mean"] == pytest.approx(expected, abs=2.0**-20)


@pytest.mark.slow
def test_statistics_are_saved_and_restored(tmp_path):
    def fitted(model):
        fit(model, [[1.0], [2.0], [4.0], [8.0]], 1)
        return statistics(model.optimizer)

    def model():
        return one_weight(loss_scale=StatisticalLossScale(8.0))

    through_all = model()
    fitted(through_all)
    expected = fitted(through_all)
    first = model()
    fitted(first)
    first.save(tmp_path / "model.keras")
    tf.train.Checkpoint(model=first, optimizer=first.optimizer).write(
        str(tmp_path / "checkpoint")
    )
    keras_mp.Checkpoints(tmp_path / "folder").save(1, first)
    from_keras = keras.models.load_model(
        tmp_path / "model.keras", custom_objects={"mean_output": first.loss}
    )
    from_checkpoint = model()
    from_checkpoint.optimizer.build(from_checkpoint.trainable_variables)
    tf.train.Checkpoint(
        model=from_checkpoint, optimizer=from_checkpoint.optimizer
    ).read(str(tmp_path / "checkpoint")).assert_consumed()
    from_folder = model()
    keras_mp.Checkpoints(tmp_path / "folder").restore(from_folder)
    for again in (from_keras, from_checkpoint, from_folder):
        assert fitted(again) == expected
        assert float(again.optimizer.loss_scale) == float(
            through_all.optimizer.loss_scale
        )


# Another rule.


@pytest.mark.parametrize(
    ("old", "new"),
    [(DynamicLossScale(8.0), StatisticalLossScale()), (StatisticalLossScale(8.0), 128)],
    ids=["statistics-for-none", "none-for-statistics"],
)
@pytest.mark.parametrize("by", ["attribute", "callback"])
def test_a_rule_with_other_statistics_is_refused(old, new, by):
    model = one_weight(loss_scale=old)
    optimizer = model.optimizer
    with pytest.raises(
        ValueError, match="must be given to the optimizer when"
    ) as caught:
        if by == "attribute":
            optimizer.loss_scale = new
        else:
            fit(model, [[1.0]], 1, keras_mp.LossScaleCallback(loss_scale=new))
    assert f"for an optimizer with {old!r}" in str(caught.value)
    assert optimizer.loss_scale_rule == old
    assert float(optimizer.loss_scale) == 8.0


def test_a_rule_with_the_same_statistics_starts_anew():
    model = one_weight(loss_scale=StatisticalLossScale(8.0))
    fit(model, [[1.0]], 1)
    new = StatisticalLossScale(16.0, n_sigma=2.0)
    model.optimizer.loss_scale = new
    assert model.optimizer.loss_scale_rule == new
    assert float(model.optimizer.loss_scale) == 16.0
    assert statistics(model.optimizer) == new.initial_statistics()


@keras.saving.register_keras_serializable(package="tests")
class BelowLimit(keras_mp.LossScale):
    """A rule of one's own: the scale that takes the largest gradient so far to 1024."""

    def initial_statistics(self):
        return {"most": 1.0}

    def next_statistics(self, state, finite, largest):
        most = keras.ops.maximum(state.statistics["most"], largest)
        return {"most": keras.ops.where(finite, most, state.statistics["most"])}

    def next_scale(self, state, finite):
        return 1024 / state.statistics["most"]


@pytest.mark.parametrize("mode", MODES)
def test_a_rule_of_ones_own_may_have_statistics(mode):
    weight = keras.Variable([1.0], dtype="float16")
    optimizer = keras_mp.wrap(keras.optimizers.SGD(0.0), BelowLimit(8.0, 1.0))
    optimizer.build([weight])

    @MODES[mode]
    def step(gradient):
        optimizer.scale_loss(0.0)
        optimizer.apply([gradient])

    seen = []
    for gradient in (-32.0, np.inf, 512.0):
        step(tf.constant([gradient], "float16"))
        seen.append(float(optimizer.loss_scale))
    assert seen == [256.0, 256.0, 256.0]
