"""Gradients are divided by what multiplied their loss, or not applied at all."""

import threading

import keras
import numpy as np
import oracle
import pytest
import tensorflow as tf
from keras import optimizers

import keras_mp
from keras_mp import DynamicLossScale

MODES = pytest.mark.parametrize("mode", ["eager", "graph", "xla"])
FORGOTTEN = r"(?s)must have been scaled.*optimizer\.scale_loss\(loss\).*loss_scale=1"


def run_as(mode, function):
    if mode == "eager":
        return function
    return tf.function(function, jit_compile=mode == "xla")


def variable(dtype="float16"):
    return keras.Variable([1.0], dtype=dtype)


def built(*weights, rule=8):
    optimizer = keras_mp.wrap(optimizers.SGD(0.25), loss_scale=rule)
    optimizer.build(list(weights))
    return optimizer


def scaled_gradient(optimizer, weight):
    """The gradient of `weight` itself, 1, times the scale."""
    with tf.GradientTape() as tape:
        loss = optimizer.scale_loss(tf.reduce_sum(weight.value))
    return tape.gradient(loss, weight.value)


def plain_gradient(weight):
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(weight.value)
    return tape.gradient(loss, weight.value)


def everything(optimizer, *weights):
    both = [*weights, *optimizer.variables, *optimizer.inner_optimizer.variables]
    return [variable.numpy() for variable in both]


# What is refused: nothing changes.


@MODES
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_gradients_of_a_loss_that_was_not_scaled_are_refused(dtype, mode):
    weight = variable(dtype)
    optimizer = built(weight)
    before = everything(optimizer, weight)
    step = run_as(mode, lambda: optimizer.apply([plain_gradient(weight)], [weight]))
    for _ in range(2):
        with pytest.raises(RuntimeError, match=FORGOTTEN):
            step()
    for found, wanted in zip(everything(optimizer, weight), before, strict=True):
        np.testing.assert_array_equal(found, wanted)


@MODES
def test_so_are_those_that_are_to_be_looked_at(mode):
    optimizer = built(weight := variable())
    look = run_as(mode, lambda: optimizer.unscale_gradients([plain_gradient(weight)]))
    with pytest.raises(RuntimeError, match=FORGOTTEN):
        look()


def test_the_optimizer_is_not_built_by_what_it_refuses():
    optimizer = keras_mp.wrap("sgd")
    with pytest.raises(RuntimeError, match=FORGOTTEN):
        optimizer.apply([tf.ones(1, "float16")], [variable()])
    assert not optimizer.built


def test_a_scale_of_1_that_may_grow_is_no_exception():
    optimizer = built(weight := variable(), rule=DynamicLossScale(1.0))
    with pytest.raises(RuntimeError, match=FORGOTTEN):
        optimizer.apply([plain_gradient(weight)])


def test_the_other_one_of_two_optimizers():
    first, second = variable(), variable()
    generator, discriminator = built(first), built(second)
    generator.apply([scaled_gradient(generator, first)])
    with pytest.raises(RuntimeError, match=FORGOTTEN):
        discriminator.apply([plain_gradient(second)])


def test_on_replicas():
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    with strategy.scope():
        optimizer = built(weight := variable())

    @tf.function
    def step():
        strategy.run(lambda: optimizer.apply([tf.ones(1, "float16")], [weight]))

    with pytest.raises(RuntimeError, match=FORGOTTEN):
        step()
    assert float(weight[0]) == 1.0


class OwnStep(keras.Model):
    """A `train_step` as in FP32, to which `scales` adds the lines that it needs."""

    def __init__(self, scales):
        super().__init__()
        self.scales = scales
        self.dense = keras.layers.Dense(
            1, use_bias=False, kernel_initializer="ones", dtype="float16"
        )
        self.build((None, 1))

    def build(self, input_shape):
        self.dense.build(input_shape)
        self.built = True

    def call(self, inputs):
        return self.dense(inputs)

    def train_step(self, data):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.cast(self(data[0]), tf.float32))
            scaled = self.optimizer.scale_loss(loss) if self.scales else loss
        gradients = tape.gradient(scaled, self.trainable_variables)
        self.optimizer.apply_gradients(
            zip(gradients, self.trainable_variables, strict=True)
        )
        return {"loss": loss}


FIT = {
    "graph": {"jit_compile": False},
    "xla": {"jit_compile": True},
    "eager": {"run_eagerly": True, "jit_compile": False},
    "steps_per_execution": {"steps_per_execution": 2, "jit_compile": False},
}


@pytest.mark.parametrize("way", FIT)
def test_a_train_step_of_ones_own(way):
    ones = np.ones((4, 1), "float32")
    for scales in (False, True):
        model = OwnStep(scales)
        model.compile(keras_mp.wrap(optimizers.SGD(0.25)), **FIT[way])
        if scales:
            model.fit(ones, ones, batch_size=2, verbose=0)
        else:
            with pytest.raises(RuntimeError, match=FORGOTTEN):
                model.fit(ones, ones, batch_size=2, verbose=0)
        assert float(model.dense.kernel[0, 0]) == (0.5 if scales else 1.0)


# The way out that the error names.


@MODES
def test_without_loss_scaling_nothing_is_divided(mode):
    weight = variable()
    optimizer = built(weight, rule=1)
    step = run_as(mode, lambda: optimizer.apply([plain_gradient(weight)], [weight]))
    for _ in range(3):
        step()
    assert float(weight[0]) == 0.25


# What was scaled is divided, wherever that was. Each weight ends at 1 - 0.25 a step.


@pytest.mark.parametrize("apply_mode", ["eager", "graph", "xla"])
@MODES
def test_scaled_in_another_function_than_applied(mode, apply_mode):
    optimizer = built(weight := variable())
    gradient = run_as(mode, lambda: scaled_gradient(optimizer, weight))
    apply = run_as(apply_mode, lambda g: optimizer.apply([g], [weight]))
    for _ in range(3):
        apply(gradient())
    assert float(weight[0]) == 0.25


def test_applied_in_a_function_that_was_traced_first():
    optimizer = built(weight := variable())
    apply = tf.function(lambda g: optimizer.apply([g], [weight]))
    signature = tf.TensorSpec([1], tf.float16)
    with pytest.raises(RuntimeError, match=FORGOTTEN):
        apply.get_concrete_function(signature)
    gradient = scaled_gradient(optimizer, weight)
    apply.get_concrete_function(signature)(gradient)
    assert float(weight[0]) == 0.75


def test_traced_again_for_another_batch():
    optimizer = built(weight := variable())

    @tf.function
    def step(x):
        with tf.GradientTape() as tape:
            loss = optimizer.scale_loss(tf.reduce_mean(weight * tf.cast(x, "float16")))
        optimizer.apply([tape.gradient(loss, weight.value)], [weight])

    for size in (1, 2, 3):
        step(tf.ones(size))
    assert step.experimental_get_tracing_count() == 3
    assert float(weight[0]) == 0.25


def test_a_train_function_that_is_made_again():
    ones = np.ones((5, 1), "float32")
    model = OwnStep(scales=True)
    model.compile(keras_mp.wrap(optimizers.SGD(0.25)), jit_compile=False)
    # The last batch is smaller; then the function is traced anew.
    model.fit(ones, ones, batch_size=4, verbose=0)
    model.make_train_function(force=True)
    model.fit(ones, ones, batch_size=5, verbose=0)
    assert float(model.dense.kernel[0, 0]) == 0.25


@pytest.mark.parametrize("second", ["scale", "apply"])
def test_in_a_second_thread(second):
    optimizer = built(weight := variable())
    results = []

    def in_a_thread(function):
        def run():
            results.append(function())

        thread = threading.Thread(target=run)
        thread.start()
        thread.join()
        return results[-1]

    if second == "scale":
        optimizer.apply([in_a_thread(lambda: scaled_gradient(optimizer, weight))])
    else:
        gradient = scaled_gradient(optimizer, weight)
        in_a_thread(lambda: optimizer.apply([gradient], [weight]))
    assert float(weight[0]) == 0.75


@MODES
def test_gradients_of_several_scaled_losses_added_up(mode):
    optimizer = built(weight := variable())

    def step():
        parts = [scaled_gradient(optimizer, weight) for _ in range(2)]
        optimizer.apply([(parts[0] + parts[1]) / 2], [weight])

    step = run_as(mode, step)
    step()
    step()
    assert float(weight[0]) == 0.5


@MODES
@pytest.mark.parametrize("overflows", [False, True], ids=["grows", "falls"])
def test_applied_in_parts_when_the_scale_has_moved(overflows, mode):
    # The first part doubles or halves the scale; the second belongs to the same loss.
    first, second = variable(), variable()
    optimizer = built(first, second, rule=DynamicLossScale(8.0, growth_interval=1))

    def step(factor):
        with tf.GradientTape(persistent=True) as tape:
            loss = tf.reduce_sum(first.value) + tf.reduce_sum(second.value)
            scaled = optimizer.scale_loss(loss)
        gradient = tape.gradient(scaled, first.value) * factor
        optimizer.apply([gradient], [first])
        optimizer.apply([tape.gradient(scaled, second.value)], [second])

    step = run_as(mode, step)
    step(tf.constant([np.inf if overflows else 1.0], "float16"))
    assert float(first[0]) == (1.0 if overflows else 0.75)
    assert float(second[0]) == 0.75
    assert float(optimizer.loss_scale) == (8.0 if overflows else 32.0)
    step(tf.constant([1.0], "float16"))
    assert float(first[0]) == (0.75 if overflows else 0.5)
    assert float(second[0]) == 0.5


@MODES
def test_one_loss_of_two_optimizers_that_share_a_scale(mode):
    weights = [variable(), variable()]
    first = built(weights[0], rule=DynamicLossScale(8.0, growth_interval=1))
    second = built(weights[1], rule=first)

    def step():
        with tf.GradientTape(persistent=True) as tape:
            loss = tf.reduce_sum(weights[0].value) + tf.reduce_sum(weights[1].value)
            scaled = first.scale_loss(loss)
        for optimizer, weight in zip((second, first), weights[::-1], strict=True):
            optimizer.apply([tape.gradient(scaled, weight.value)], [weight])

    step = run_as(mode, step)
    for _ in range(2):
        step()
    assert [float(weight[0]) for weight in weights] == [0.5, 0.5]


@MODES
def test_a_shared_loss_after_a_loss_of_its_own(mode):
    # What is applied of the first loss is done with when the other optimizer scales.
    weights = [variable(), variable()]
    first = built(weights[0], rule=DynamicLossScale(8.0, growth_interval=1))
    second = built(weights[1], rule=first)

    def step():
        first.apply([scaled_gradient(first, weights[0])], weights[:1])
        with tf.GradientTape() as tape:
            scaled = second.scale_loss(tf.reduce_sum(weights[0].value))
        first.apply([tape.gradient(scaled, weights[0].value)], weights[:1])

    run_as(mode, step)()
    assert float(weights[0][0]) == 0.5


@pytest.mark.parametrize("inside", ["graph", "xla"])
def test_eager_steps_between_those_of_a_function(inside):
    # What scaled the last eager loss is not what scales in the function.
    optimizer = built(
        weight := variable(), rule=DynamicLossScale(8.0, growth_interval=1)
    )
    gradient = run_as(inside, lambda: scaled_gradient(optimizer, weight))
    for each in (gradient, lambda: scaled_gradient(optimizer, weight), gradient):
        optimizer.apply([each()], [weight])
    assert float(weight[0]) == 0.25
    assert float(optimizer.loss_scale) == 64.0


def test_steps_of_a_wrapped_optimizer_equal_those_of_the_bare_one():
    # The oracle's step scales nothing: the optimizer was told so.
    weight, bare = variable("float32"), variable("float32")
    step = oracle.make_step(built(weight, rule=1), [weight], "graph")
    other = optimizers.SGD(0.25)
    for gradient in (1.0, -3.0):
        step([tf.constant([gradient])])
        other.apply([tf.constant([gradient])], [bare])
    assert float(weight[0]) == float(bare[0]) == 1.5
