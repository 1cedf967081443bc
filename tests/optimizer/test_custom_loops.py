"""Training loops that users write, and the ways to run those of Keras."""

import re
import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import optimizers

import keras_mp

MODES = pytest.mark.parametrize("mode", ["eager", "graph", "xla"])


def run_as(mode, function):
    if mode == "eager":
        return function
    return tf.function(function, jit_compile=mode == "xla")


def variable(value=1.0, dtype="float16"):
    return keras.Variable([value], dtype=dtype)


@pytest.mark.xslow_except("*-eager", "*-float16-*")
@pytest.mark.slow_except("*-eager", "unscale-float16-xla")
@MODES
@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize(
    ("scale_loss", "unscale"),
    [
        ("scale_loss", None),
        ("scale_loss", "unscale_gradients"),
        ("get_scaled_loss", "get_unscaled_gradients"),
    ],
    ids=["scale", "unscale", "old_names"],
)
def test_loop(scale_loss, unscale, dtype, mode):
    weight = variable(dtype=dtype)
    rule = keras_mp.DynamicLossScale(1024.0, growth_interval=2)
    optimizer = keras_mp.wrap(optimizers.SGD(0.25), loss_scale=rule)
    optimizer.build([weight])

    def step(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(weight * tf.cast(x, dtype))
            scaled_loss = getattr(optimizer, scale_loss)(loss)
        gradients = tape.gradient(scaled_loss, [weight.value])
        if unscale is not None:
            gradients = getattr(optimizer, unscale)(gradients)
        optimizer.apply(gradients, [weight])
        return scaled_loss, gradients[0]

    step = run_as(mode, step)
    found = [step(tf.constant([x])) for x in (2.0, -1.0, 1.0)]
    # The scale is 1024 for two steps, then 2048; the weight 1, 0.5, 0.75, 0.5.
    assert [float(loss) for loss, _ in found] == [2048.0, -512.0, 1536.0]
    gradients = [float(gradient[0]) for _, gradient in found]
    if unscale is None:
        assert gradients == [2048.0, -1024.0, 2048.0]
    else:
        assert gradients == [2.0, -1.0, 1.0]
        assert found[0][1].dtype == "float32"
    assert found[0][0].dtype == "float32"
    assert float(weight[0]) == 0.5
    assert float(optimizer.loss_scale) == 2048.0
    assert int(optimizer.iterations) == 3


@MODES
def test_clipping_between_unscale_and_apply(mode):
    weight = variable()
    optimizer = keras_mp.wrap(optimizers.SGD(0.5), loss_scale=8)
    optimizer.build([weight])

    def step():
        optimizer.scale_loss(0.0)
        gradients = optimizer.unscale_gradients([tf.constant([80.0], "float16")])
        gradients, norm = tf.clip_by_global_norm(gradients, 1.0)
        optimizer.apply(gradients, [weight])
        return norm

    assert float(run_as(mode, step)()) == 10.0
    assert float(weight[0]) == 0.5


@MODES
def test_unscaled_gradients_that_are_not_finite_are_skipped(mode):
    weight = variable()
    optimizer = keras_mp.wrap(optimizers.SGD(0.5))
    optimizer.build([weight])

    def step():
        optimizer.scale_loss(0.0)
        gradients = [tf.constant([np.inf], "float16")]
        optimizer.apply(optimizer.unscale_gradients(gradients))

    run_as(mode, step)()
    assert float(weight[0]) == 1.0
    assert int(optimizer.skipped_steps) == 1
    assert float(optimizer.loss_scale) == 2.0**14


@pytest.mark.parametrize("loss", [0.5, tf.constant(0.5), tf.constant(0.5, "float16")])
def test_scaled_loss_is_at_least_float32(loss):
    # 0.5 * 2^24 is inf in FP16.
    scaled_loss = keras_mp.wrap("sgd", loss_scale=2.0**24).scale_loss(loss)
    assert float(scaled_loss) == 2.0**23
    assert scaled_loss.dtype == "float32"


def test_scaled_float64_loss_stays_float64():
    scaled_loss = keras_mp.wrap("sgd", loss_scale=8).scale_loss(
        tf.constant(1 / 3, "float64")
    )
    assert float(scaled_loss) == 8 / 3
    assert scaled_loss.dtype == "float64"


@MODES
def test_unscale_twice(mode):
    optimizer = keras_mp.wrap("sgd", loss_scale=8)
    optimizer.build([variable()])

    def step():
        optimizer.scale_loss(0.0)
        gradients = optimizer.unscale_gradients([tf.constant([8.0], "float16")])
        optimizer.unscale_gradients(gradients)

    with pytest.raises(RuntimeError, match=r"(?s)once.*second call.*accumulation"):
        run_as(mode, step)()


def test_unscale_in_another_function_than_apply():
    weight = variable()
    optimizer = keras_mp.wrap(optimizers.SGD(0.5), loss_scale=8)
    optimizer.build([weight])
    optimizer.scale_loss(0.0)
    unscale = tf.function(lambda g: optimizer.unscale_gradients([g]))
    gradients = unscale(tf.constant([8.0], "float16"))
    with pytest.raises(RuntimeError, match=r"(?s)same function.*Move both into it"):
        optimizer.apply(gradients, [weight])
    assert float(weight[0]) == 1.0
    # The error leaves nothing behind.
    optimizer.apply([tf.constant([8.0], "float16")], [weight])
    assert float(weight[0]) == 0.5


@pytest.mark.parametrize("loss_scale", [1, 8], ids=["scale_of_1", "scaled"])
def test_no_warning_where_nothing_was_forgotten(loss_scale):
    optimizer = keras_mp.wrap("sgd", loss_scale=loss_scale)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        if loss_scale != 1:
            optimizer.scale_loss(0.0)
        optimizer.apply([tf.constant([8.0], "float16")], [variable()])
        optimizer.apply([tf.constant([8.0], "float16")])
    assert int(optimizer.iterations) == 2


def built(optimizer):
    optimizer.build([variable()])
    return optimizer


@pytest.mark.parametrize(
    ("make", "error", "words"),
    [
        (lambda: keras_mp.wrap("sgd"), ValueError, "optimizer.inner_optimizer"),
        (
            lambda: optimizers.LossScaleOptimizer(optimizers.SGD()),
            ValueError,
            "(?s)LossScaleOptimizer.*optimizer.inner_optimizer",
        ),
        (lambda: built(optimizers.SGD()), ValueError, "(?s)built SGD.*from_config"),
        (
            lambda: optimizers.SGD(loss_scale_factor=4.0),
            ValueError,
            r"loss_scale_factor=4\.0.*loss_scale=4\.0",
        ),
        (lambda: "no_such_optimizer", ValueError, "no_such_optimizer"),
        (lambda: 3, ValueError, "3"),
    ],
    ids=["wrapped", "built_in", "built", "factor", "name", "number"],
)
def test_what_cannot_be_wrapped(make, error, words):
    with pytest.raises(error, match=words):
        keras_mp.wrap(make())


@pytest.mark.parametrize("optimizer", [3, "sgd", None, keras.layers.Dense(1)])
def test_the_class_takes_optimizers_only(optimizer):
    with pytest.raises(TypeError, match=r"must be a keras\.optimizers\.Optimizer"):
        keras_mp.FP32MasterOptimizer(optimizer)


@pytest.mark.parametrize(
    "optimizer",
    ["adam", {"class_name": "Adam", "config": {"learning_rate": 0.5}}],
    ids=["name", "config"],
)
def test_a_name_and_a_config_can_be_wrapped(optimizer):
    assert type(keras_mp.wrap(optimizer).inner_optimizer) is optimizers.Adam


def test_unknown_rounding():
    with pytest.raises(ValueError, match=r'"nearest".*rounding=\'up\''):
        keras_mp.wrap("sgd", rounding="up")


@pytest.mark.parametrize("dtype", ["bfloat16", None, 16, np.dtype("float16")])
def test_unknown_dtype_of_sums(dtype):
    with pytest.raises(ValueError, match=re.escape(f"all_reduce_dtype={dtype!r}")):
        keras_mp.wrap("sgd", all_reduce_dtype=dtype)


# Two optimizers that share one loss scale, as for a GAN.


def shared_pair(rule, learning_rate=0.25):
    weights = [variable(), variable()]
    first = keras_mp.wrap(optimizers.SGD(learning_rate), loss_scale=rule)
    second = keras_mp.wrap(optimizers.SGD(learning_rate), loss_scale=first)
    first.build(weights[:1])
    second.build(weights[1:])
    return first, second, weights


@pytest.mark.slow_except("*-eager", "apply-graph")
@MODES
@pytest.mark.parametrize("unscale", [False, True], ids=["apply", "unscale"])
def test_shared_scale_grows_between_the_two_applies(unscale, mode):
    rule = keras_mp.DynamicLossScale(8.0, growth_interval=1)
    first, second, weights = shared_pair(rule)

    def step():
        with tf.GradientTape(persistent=True) as tape:
            losses = [
                optimizer.scale_loss(tf.reduce_sum(weight.value))
                for optimizer, weight in zip((first, second), weights, strict=True)
            ]
        pairs = zip((first, second), losses, weights, strict=True)
        for optimizer, loss, weight in pairs:
            gradients = tape.gradient(loss, [weight.value])
            if unscale:
                gradients = optimizer.unscale_gradients(gradients)
            optimizer.apply(gradients, [weight])
        return losses

    step = run_as(mode, step)
    # Both losses are multiplied by 8. The first `apply` doubles the scale, and the
    # second must still divide by 8.
    assert [float(loss) for loss in step()] == [8.0, 8.0]
    assert [float(weight[0]) for weight in weights] == [0.75, 0.75]
    assert float(first.loss_scale) == float(second.loss_scale) == 16.0
    assert [float(loss) for loss in step()] == [12.0, 12.0]
    assert [float(weight[0]) for weight in weights] == [0.5, 0.5]
    assert float(first.loss_scale) == 32.0


@MODES
def test_shared_scale_falls_between_the_two_applies(mode):
    first, second, weights = shared_pair(keras_mp.DynamicLossScale(8.0))

    def step(gradient):
        first.scale_loss(0.0)
        second.scale_loss(0.0)
        first.apply([gradient], weights[:1])
        second.apply([tf.constant([8.0], "float16")], weights[1:])

    step = run_as(mode, step)
    step(tf.constant([np.nan], "float16"))
    assert [float(weight[0]) for weight in weights] == [1.0, 0.75]
    assert float(first.loss_scale) == float(second.loss_scale) == 4.0
    assert int(first.skipped_steps) == int(second.skipped_steps) == 1
    # The counters are shared too, the steps are each one's own.
    assert (int(first.iterations), int(second.iterations)) == (0, 1)


def test_shared_scale_is_one_variable():
    first, second, _ = shared_pair(keras_mp.DynamicLossScale(8.0))
    assert second.loss_scale is first.loss_scale
    assert second.loss_scale_rule is first.loss_scale_rule
    second.loss_scale = 2.0
    assert float(first.loss_scale) == 2.0


# The ways to run `fit`.


class SumOfOutputs(keras.losses.Loss):
    """Its gradient is 1 for every output."""

    def __init__(self):
        super().__init__(reduction="sum")

    def call(self, y_true, y_pred):
        return keras.ops.cast(y_pred, "float32")


FIT = {
    "graph": {"jit_compile": False},
    "xla": {"jit_compile": True},
    "auto": {"jit_compile": "auto"},
    "eager": {"run_eagerly": True, "jit_compile": False},
    "steps_per_execution": {"steps_per_execution": 3, "jit_compile": False},
    "steps_per_execution_xla": {"steps_per_execution": 3, "jit_compile": True},
}


@pytest.mark.xslow_except("*-float16", "auto-*", "eager-*")
@pytest.mark.slow_except("xla-float16", "eager-mixed_float16", "auto-float16")
@pytest.mark.parametrize("policy", ["mixed_float16", "float16"])
@pytest.mark.parametrize("way", FIT)
def test_fit(way, policy):
    dense = keras.layers.Dense(
        1, use_bias=False, kernel_initializer="ones", dtype=policy
    )
    model = keras.Sequential([keras.Input((1,)), dense])
    rule = keras_mp.DynamicLossScale(8.0, growth_interval=2)
    optimizer = keras_mp.wrap(optimizers.SGD(0.25), loss_scale=rule)
    model.compile(optimizer, SumOfOutputs(), **FIT[way])
    # "auto" is XLA on machines with an accelerator.
    assert way == "auto" or model.jit_compile == ("xla" in way)
    # Seven batches of one; the gradient of each is its x, and one overflows.
    x = np.array([1, 2, np.inf, 3, 1, 1, 2], "float32")[:, None]
    model.fit(x, x, batch_size=1, shuffle=False, verbose=0)
    assert float(dense.kernel[0, 0]) == 1 - 10 / 4
    assert int(optimizer.iterations) == 6
    assert int(optimizer.skipped_steps) == 1
    # 8, 8, grows to 16, falls to 8, 8, grows to 16, 16, grows to 32.
    assert float(optimizer.loss_scale) == 32.0
    assert float(optimizer.master_weights[0][0, 0]) == -1.5


def test_train_on_batch():
    dense = keras.layers.Dense(
        1, use_bias=False, kernel_initializer="ones", dtype="float16"
    )
    model = keras.Sequential([keras.Input((1,)), dense])
    model.compile(keras_mp.wrap(optimizers.SGD(0.25)), SumOfOutputs())
    model.train_on_batch(np.ones((1, 1)), np.ones((1, 1)))
    assert float(dense.kernel[0, 0]) == 0.75


def test_apply_gradients():
    weight = variable()
    optimizer = keras_mp.wrap(optimizers.SGD(0.25), loss_scale=8)
    optimizer.scale_loss(0.0)
    iterations = optimizer.apply_gradients([(tf.constant([8.0], "float16"), weight)])
    assert float(weight[0]) == 0.75
    assert int(optimizer.iterations) == 1
    assert iterations is not None


def test_each_sharer_names_its_own_overflow():
    first, second = (
        keras.Variable([1.0], dtype="float16", name=name) for name in ("a", "b")
    )
    generator = keras_mp.wrap("sgd", loss_scale=8)
    discriminator = keras_mp.wrap("sgd", loss_scale=generator)
    generator.scale_loss(0.0)
    discriminator.scale_loss(0.0)
    generator.apply([tf.constant([np.nan], "float16")], [first])
    discriminator.apply([tf.ones(1, "float16")], [second])
    assert int(generator.skipped_steps) == int(discriminator.skipped_steps) == 1
    assert generator.last_overflow == "a"
    assert discriminator.last_overflow is None


@pytest.mark.skipif(
    not hasattr(optimizers, "ScheduleFreeAdamW"), reason="needs Keras 3.14"
)
def test_an_optimizer_that_cannot_be_built_is_left_as_it_was():
    optimizer = keras_mp.wrap(optimizers.ScheduleFreeAdamW())
    before = len(optimizer.variables)

    @tf.function
    def step():
        layer = keras.layers.Dense(1, dtype="float16")
        layer(tf.ones((1, 1)))
        optimizer.apply([tf.ones((1, 1)), tf.ones(1)], layer.trainable_weights)

    optimizer.scale_loss(0.0)
    with pytest.raises(ValueError, match="starts from a copy of the weights"):
        step()
    assert not optimizer.built
    assert len(optimizer.variables) == before
