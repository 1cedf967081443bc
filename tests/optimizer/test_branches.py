"""Steps of which a part stands in a branch or a loop of a tf.function."""

import pytest
import tensorflow as tf
from keras import Variable, optimizers

import keras_mp


def variable(dtype="float16"):
    return Variable([1.0], dtype=dtype)


# `unscale_gradients` before a branch or a loop, and `apply` inside of it.


def apply_if(optimizer, gradients):
    if tf.linalg.global_norm(gradients) < 16.0:
        optimizer.apply(gradients)


def apply_one_way_or_the_other(optimizer, gradients):
    if tf.linalg.global_norm(gradients) < 1.0:
        optimizer.apply([2 * gradient for gradient in gradients])
    else:
        optimizer.apply(gradients)


def apply_in_nested_branches(optimizer, gradients):
    norm = tf.linalg.global_norm(gradients)
    if norm < 16.0:
        if norm > 1.0:
            optimizer.apply(gradients)
        else:
            optimizer.apply(gradients)


def apply_in_a_loop(optimizer, gradients):
    for _ in tf.range(1):
        optimizer.apply(gradients)


def apply_in_a_case(optimizer, gradients):
    branches = [lambda: None, lambda: optimizer.apply(gradients)]
    tf.switch_case(tf.cast(gradients[0][0] > 0, "int32"), branches)


@pytest.mark.xslow_except(
    "*-graph", "apply_if-xla", "apply_in_nested_branches-xla", "apply_in_a_loop-xla"
)
@pytest.mark.slow_except(
    "apply_in_nested_branches-graph", "apply_one_way_or_the_other-graph"
)
@pytest.mark.parametrize("jit_compile", [False, True], ids=["graph", "xla"])
@pytest.mark.parametrize(
    "act",
    [
        apply_if,
        apply_one_way_or_the_other,
        apply_in_nested_branches,
        apply_in_a_loop,
        apply_in_a_case,
    ],
)
def test_unscaled_before_a_branch(act, jit_compile):
    weight = variable()
    optimizer = keras_mp.wrap(optimizers.SGD(0.25), loss_scale=8)
    optimizer.build([weight])

    @tf.function(jit_compile=jit_compile)
    def step(gradient):
        optimizer.scale_loss(0.0)
        act(optimizer, optimizer.unscale_gradients([gradient]))

    for _ in range(2):
        step(tf.constant([16.0], "float16"))
    assert float(weight[0]) == 0.0
    # What the branch used counts nowhere else.
    optimizer.apply([tf.constant([8.0], "float16")])
    assert float(weight[0]) == -0.25


def test_a_branch_that_does_not_apply_leaves_no_note():
    weight = variable()
    optimizer = keras_mp.wrap(optimizers.SGD(0.25), loss_scale=8)
    optimizer.build([weight])

    @tf.function
    def step(gradient):
        optimizer.scale_loss(0.0)
        for _ in range(2):
            gradients = optimizer.unscale_gradients([gradient])
            if tf.linalg.global_norm(gradients) < 1.0:
                optimizer.apply(gradients)
        # Of a loss that is scaled anew.
        optimizer.scale_loss(0.0)
        optimizer.apply([gradient])

    step(tf.constant([16.0], "float16"))
    assert float(weight[0]) == 0.5


def test_unscale_in_a_branch_and_apply_after_it():
    weight = variable()
    optimizer = keras_mp.wrap(optimizers.SGD(0.25), loss_scale=8)
    optimizer.build([weight])

    @tf.function
    def step(gradient, clip):
        optimizer.scale_loss(0.0)
        result = gradient
        if clip:
            result = tf.cast(optimizer.unscale_gradients([gradient])[0], "float16")
        optimizer.apply([result])

    with pytest.raises(RuntimeError, match="in the same function"):
        step(tf.constant([16.0], "float16"), tf.constant(True))


def test_apply_in_a_function_of_its_own_is_refused_twice():
    # It is traced once, and could be called where nothing was unscaled.
    weight = variable()
    optimizer = keras_mp.wrap(optimizers.SGD(0.25), loss_scale=8)
    optimizer.build([weight])
    apply = tf.function(lambda gradient: optimizer.apply([gradient]))

    @tf.function
    def step(gradient):
        optimizer.scale_loss(0.0)
        apply(optimizer.unscale_gradients([gradient])[0])

    with pytest.raises(RuntimeError, match="in the same function"):
        step(tf.constant([16.0], "float16"))
