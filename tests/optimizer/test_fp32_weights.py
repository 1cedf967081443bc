"""`fp32_weights`, and what becomes of a master when other code moves its weight."""

import keras
import numpy as np
import oracle
import pytest
import stored_forms
import tensorflow as tf
from keras import optimizers

import keras_mp
from keras_mp.ops.kernels import native

MODES = pytest.mark.parametrize("mode", ["eager", "graph", "xla"])
HALVES = pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
FORMS = {
    "float32": {},
    "stochastic": {"rounding": "stochastic"},
    "remainders": stored_forms.FORMS["remainders"],
    "both": stored_forms.FORMS["both"],
}
FORMS_WITH_MASTERS = pytest.mark.parametrize("form", FORMS)
# Half of the distance of FP16 numbers just below 1, and a sixteenth in bfloat16.
UPDATE = 2.0**-12


def built(weights, form="float32", **options):
    optimizer = keras_mp.wrap(
        optimizers.SGD(UPDATE, **options), loss_scale=1, **FORMS[form]
    )
    optimizer.build(weights)
    return optimizer


def traced(step, mode):
    return step if mode == "eager" else tf.function(step, jit_compile=mode == "xla")


def ones(*weights):
    return [tf.ones(weight.shape, weight.dtype) for weight in weights]


@pytest.mark.xslow_except(
    "*-float16-eager", "*-float16-xla", "both-bfloat16-xla", "both-float16-graph"
)
@pytest.mark.slow_except("*-eager", "*-bfloat16-xla")
@pytest.mark.filterwarnings("ignore:A training step assigns 2 times")
@MODES
@HALVES
@FORMS_WITH_MASTERS
def test_a_change_that_is_undone_leaves_the_master(form, dtype, mode):
    weight = keras.Variable(np.full((2, 3), 1.0), dtype=dtype, name="kernel")
    optimizer = built([weight], form)

    def step():
        before = tf.identity(weight.value)
        weight.assign_add(tf.fill((2, 3), tf.cast(0.375, dtype)))
        weight.assign(before)
        optimizer.apply(ones(weight), [weight])

    step = traced(step, mode)
    for _ in range(3):
        step()
    expected = np.full((2, 3), 1 - 3 * UPDATE, "float32")
    oracle.assert_same_bits(oracle.value(optimizer.master_weights[0]), expected)


@pytest.mark.xslow_except(
    "*-float16-eager", "*-float16-xla", "both-bfloat16-xla", "both-float16-graph"
)
@pytest.mark.slow_except("*-eager", "*-bfloat16-xla")
@MODES
@HALVES
@FORMS_WITH_MASTERS
def test_what_is_added_and_subtracted_is_what_fp32_computes(form, dtype, mode):
    """Sharpness-aware minimization: the gradients of a step are taken elsewhere."""
    random = np.random.default_rng(0)
    start = np.float32(random.uniform(0.5, 2, size=(5, 7)))
    start = np.float32(oracle.rounded(start, dtype))
    moves = np.float32(random.normal(size=(4, 5, 7)) * 0.05)
    weight = keras.Variable(start, dtype=dtype, name="kernel")
    optimizer = built([weight], form)

    def step(move):
        with optimizer.fp32_weights([weight]) as [fp32]:
            fp32.assign_add(move)
        moved = tf.identity(weight.value)
        with optimizer.fp32_weights([weight]) as [fp32]:
            fp32.assign_sub(move)
        optimizer.apply(ones(weight), [weight])
        return moved

    step = traced(step, mode)
    expected = start
    for move in moves:
        moved = oracle.value(step(tf.constant(move)))
        if form != "stochastic":
            oracle.assert_same_bits(moved, oracle.rounded(expected + move, dtype))
        expected = expected + move - move - np.float32(UPDATE)
    oracle.assert_same_bits(oracle.value(optimizer.master_weights[0]), expected)


@HALVES
@FORMS_WITH_MASTERS
def test_what_16_bits_cannot_hold_is_added_up(form, dtype):
    weight = keras.Variable(np.full((1, 2), 1.0), dtype=dtype, name="kernel")
    optimizer = built([weight], form)
    for _ in range(16):
        with optimizer.fp32_weights() as [fp32]:
            fp32.assign_sub(np.full((1, 2), 2.0**-13, "float32"))
    expected = np.full((1, 2), 1 - 16 * 2.0**-13, "float32")
    oracle.assert_same_bits(oracle.value(optimizer.master_weights[0]), expected)
    if form != "stochastic":
        oracle.assert_same_bits(oracle.value(weight), oracle.rounded(expected, dtype))


@pytest.mark.xslow_except("*-eager", "*-xla", "both-graph")
@pytest.mark.slow_except("*-eager", "remainders-xla")
@MODES
@FORMS_WITH_MASTERS
def test_fp32_weights_compute_like_variables(form, mode):
    """An average of the weights that a user keeps: after 2 steps, 1 - 5/4 UPDATE."""
    weight = keras.Variable(np.full((1, 2), 1.0), dtype="float16", name="kernel")
    average = keras.Variable(np.full((1, 2), 1.0), dtype="float32")
    optimizer = built([weight], form)

    def step():
        optimizer.apply(ones(weight), [weight])
        with optimizer.fp32_weights([weight]) as [fp32]:
            average.assign(0.5 * average + 0.5 * fp32)

    step = traced(step, mode)
    step()
    step()
    expected = np.full((1, 2), 1 - 1.25 * UPDATE, "float32")
    oracle.assert_same_bits(oracle.value(average), expected)


def test_what_was_written_to_the_weight_before_counts():
    weight = keras.Variable(np.full((1, 2), 1.0), dtype="float16", name="kernel")
    optimizer = built([weight])
    weight.assign(np.full((1, 2), 3.0))
    with optimizer.fp32_weights() as [fp32]:
        assert oracle.value(fp32).tolist() == [[3.0, 3.0]]


def network(dtype):
    return keras.Sequential(
        [
            keras.Input((2,)),
            keras.layers.Dense(3, dtype=dtype),
            keras.layers.Dense(1, dtype="float32"),
        ]
    )


def test_of_a_model_in_the_order_of_its_weights():
    model = network("float16")
    model.compile(keras_mp.wrap("sgd"), "mse")
    model.optimizer.build(model.trainable_variables)
    with model.optimizer.fp32_weights(model) as fp32:
        assert [w.path for w in fp32] == [w.path for w in model.weights]
        assert {w.dtype for w in fp32} == {"float32"}
        assert fp32[2] is model.weights[2]  # stored in FP32
    with model.optimizer.fp32_weights(model.layers[1]) as fp32:
        assert [w.path for w in fp32] == [w.path for w in model.layers[1].weights]


def test_masters_none_reads_and_rounds_the_weight():
    weight = keras.Variable(np.full((1, 2), 1.0), dtype="float16", name="kernel")
    optimizer = keras_mp.wrap("sgd", masters=None, rounding="stochastic")
    optimizer.build([weight])
    with optimizer.fp32_weights() as [fp32]:
        assert fp32.dtype == "float32"
        fp32.assign_sub(np.full((1, 2), 2.0**-13, "float32"))
    assert oracle.value(weight).tolist() == [[1.0, 1.0]]


def not_built():
    return keras_mp.wrap("sgd"), None


def another_network():
    model = network("float16")
    return built(model.trainable_variables), network("float16")


def statistics_in_fp16():
    model = keras.Sequential(
        [keras.Input((2,)), keras.layers.BatchNormalization(dtype="float16")]
    )
    return built(model.trainable_variables), model


BAD = {
    "not built": (not_built, RuntimeError, "Received: an optimizer that is not built"),
    "another network": (another_network, ValueError, "dense_2/kernel', float16"),
    "statistics": (
        statistics_in_fp16,
        ValueError,
        r"batch_normalization/moving_mean', float16.*keras_mp.convert\(model\)",
    ),
}


@pytest.mark.parametrize(("make", "error", "message"), BAD.values(), ids=BAD)
def test_what_has_no_fp32_value_is_refused(make, error, message):
    keras.utils.clear_session(free_memory=False)
    optimizer, variables = make()
    with pytest.raises(error, match=message), optimizer.fp32_weights(variables):
        pass


# Steps of a user's own. Each is traced; `apply` gets gradients of 1.


def there_and_back(weight, optimizer):
    weight.assign_add(tf.fill((1, 2), tf.cast(0.375, weight.dtype)))
    weight.assign_sub(tf.fill((1, 2), tf.cast(0.375, weight.dtype)))
    optimizer.apply(ones(weight), [weight])


def there_and_back_in_tensorflow(weight, optimizer):
    weight.value.assign_add(tf.fill((1, 2), tf.cast(0.375, weight.dtype)))
    weight.value.assign_sub(tf.fill((1, 2), tf.cast(0.375, weight.dtype)))
    optimizer.apply(ones(weight), [weight])


def there_and_back_in_fp32(weight, optimizer):
    for move in (0.375, -0.375):
        with optimizer.fp32_weights([weight]) as [fp32]:
            fp32.assign_add(tf.fill((1, 2), move))
    optimizer.apply(ones(weight), [weight])


def clipped_after_each_of_three_steps(weight, optimizer):
    for _ in range(3):
        optimizer.apply(ones(weight), [weight])
        weight.assign(tf.clip_by_value(weight.value, -0.5, 0.5))


WARNED = [there_and_back, there_and_back_in_tensorflow]
NOT_WARNED = [there_and_back_in_fp32, clipped_after_each_of_three_steps]


@pytest.mark.parametrize("step", WARNED)
@HALVES
def test_a_weight_moved_and_moved_back_is_warned_of_once(dtype, step):
    weight = keras.Variable(np.full((1, 2), 1.0), dtype=dtype, name="kernel")
    optimizer = built([weight])
    traced = tf.function(lambda: step(weight, optimizer))
    with pytest.warns(UserWarning, match="assigns 2 times to 'kernel'") as warned:
        traced()
        traced()
        tf.function(lambda: step(weight, optimizer))()
    assert [w.category for w in warned].count(UserWarning) == 1


@pytest.fixture(params=["native", "reference"])
def route(request, monkeypatch):
    monkeypatch.setenv("KERAS_MP_OPS", request.param)
    native.library.cache_clear()
    yield
    native.library.cache_clear()


@pytest.mark.usefixtures("route")
@pytest.mark.parametrize("step", NOT_WARNED)
def test_what_loses_nothing_is_not_warned_of(step):
    weight = keras.Variable(np.full((1, 2), 1.0), dtype="float16", name="kernel")
    optimizer = built([weight])
    tf.function(lambda: step(weight, optimizer))()


@pytest.mark.parametrize("step", WARNED)
def test_fp32_weights_may_be_moved_and_moved_back(step):
    weight = keras.Variable(np.full((1, 2), 1.0), dtype="float32", name="kernel")
    optimizer = built([weight])
    tf.function(lambda: step(weight, optimizer))()


def test_the_eager_loop_is_not_seen():
    """What the guide says: `apply` cannot know that the weight moved in between."""
    weight = keras.Variable(np.full((1, 2), 1.0), dtype="float16", name="kernel")
    there_and_back(weight, built([weight]))
