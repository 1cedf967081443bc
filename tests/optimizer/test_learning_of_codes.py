"""State in 8 and 4 bits learns what FP32 learns, with every rule that has codes."""

import keras
import numpy as np
import oracle
import pytest
import tensorflow as tf
from stored_forms import ALL, ALL_IN_4_BITS, NOT_IN_8_BITS, RULES, wrap

pytestmark = pytest.mark.slow

SIZE, STEPS = 32, 300
# The loss, over FP32's, and over the loss of weights of 0. A rate of 0.1 is large: the
# noise of a momentum in 4 bits is what RMSprop and AdamW end with.
BOUNDS = {"int8": (1.2, 0.001), "int4": (2.5, 0.005)}
STATES = {"int8": ALL, "int4": ALL_IN_4_BITS}


def problem():
    """Inputs of several sizes, and what a linear layer makes of them."""
    random = np.random.default_rng(0)
    x = random.standard_normal((256, SIZE)) * np.geomspace(0.1, 1, SIZE)
    return [
        tf.constant(each, "float32")
        for each in (x, x @ random.standard_normal((SIZE, SIZE)))
    ]


def loss_of(rule, state):
    """The loss of all examples after steps on batches of 32."""
    x, y = problem()
    weight = keras.Variable(np.zeros((SIZE, SIZE)), dtype="float32", name="kernel")
    optimizer = wrap(RULES[rule](), state=state, loss_scale=1.0)
    optimizer.build([weight])

    @tf.function
    def run():
        for step in tf.range(STEPS):
            key = tf.stack([1, step])
            batch = tf.random.stateless_uniform([32], key, 0, 256, tf.int32)
            inputs = tf.gather(x, batch)
            error = inputs @ weight.value - tf.gather(y, batch)
            gradient = tf.matmul(inputs, error, transpose_a=True) * 2 / (32 * SIZE)
            optimizer.apply([gradient], [weight])
        return tf.reduce_mean((x @ weight.value - y) ** 2)

    return float(oracle.value(run()))


@pytest.mark.xslow_except("int4-adam", "int4-lion")
@pytest.mark.parametrize("rule", [rule for rule in RULES if rule not in NOT_IN_8_BITS])
@pytest.mark.parametrize("state", STATES)
def test_a_linear_layer_is_learned(state, rule):
    factor, share = BOUNDS[state]
    start = float(oracle.value(tf.reduce_mean(problem()[1] ** 2)))
    assert loss_of(rule, STATES[state]) <= factor * loss_of(rule, "float32") + (
        share * start
    )
