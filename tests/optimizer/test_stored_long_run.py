"""State in 8 and 4 bits, 100,000 steps: no NaN, and no update out of proportion."""

import keras
import numpy as np
import oracle
import pytest
import tensorflow as tf
from keras import optimizers

import keras_mp

STEPS = 100_000
OF_ALL = {"min_size": 1, "min_rank": 0, "exclude": ()}
STATES = {
    "int8": keras_mp.Int8State(**OF_ALL),
    "int4": keras_mp.Int4State(**OF_ALL),
}
RULES = {
    "adam": lambda: optimizers.Adam(2.0**-10),
    "rmsprop": lambda: optimizers.RMSprop(2.0**-10),
    "momentum": lambda: optimizers.SGD(2.0**-10, momentum=0.9),
}
# Of a group: large gradients beside tiny ones, whose second moment 8 bits round to next
# to nothing and 4 bits up to 2**-8 of the largest, and others that are mostly 0.
SIZES = np.float32([1.0, 1e-2, 1e-4, 1e-6, 1e-8, 1e-12] + 26 * [1e-3] + 32 * [1e-9])


def gradient_of(step):
    """Random numbers of these sizes; of every other one, one in a hundred is not 0."""
    key = tf.stack([0, step])
    gradient = SIZES * tf.random.stateless_normal([SIZES.size], key)
    is_rare = tf.random.stateless_uniform([SIZES.size], key) > 0.01
    return tf.where((tf.range(SIZES.size) % 2 == 1) & is_rare, 0.0, gradient)


def train(rule, steps, coded):
    """Trains with slots in FP32 and as codes.

    Returns:
        The largest update of each, and the weights of both.
    """
    weights = [keras.Variable(tf.zeros(SIZES.size), name=name) for name in "ab"]
    wrapped = []
    for weight, state in zip(weights, ("float32", coded), strict=True):
        optimizer = keras_mp.wrap(RULES[rule](), loss_scale=1.0, state=state)
        optimizer.build([weight])
        wrapped.append(optimizer)

    @tf.function
    def run(steps):
        largest = tf.zeros(2)
        for step in tf.range(steps):
            gradient = gradient_of(step)
            before = [tf.identity(weight.value) for weight in weights]
            for optimizer, weight in zip(wrapped, weights, strict=True):
                optimizer.apply([gradient], [weight])
            pairs = zip(weights, before, strict=True)
            updates = [tf.reduce_max(tf.abs(w.value - old)) for w, old in pairs]
            largest = tf.maximum(largest, tf.stack(updates))
        return largest

    largest = oracle.value(run(tf.constant(steps)))
    return largest, [oracle.value(weight) for weight in weights]


@pytest.mark.slow_except("int4-adam-200", "int8-momentum-200")
@pytest.mark.parametrize(
    "steps",
    [200, pytest.param(STEPS, marks=pytest.mark.xslow)],
)
@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("state", STATES)
def test_no_update_is_out_of_proportion(state, rule, steps):
    """A code is at most a factor of 9/8 from its number, or 2 in the last ones above 0.

    A momentum below 2**-17 of its group's largest is rounded to 0 or that, while the
    root of a second moment is never below 2**-16.5 of its group's; so an update that
    was tiny is still below the largest of the group. In all, four times. In 4 bits the
    momentum is 2**-3, and the root 2**-4.
    """
    (in_fp32, in_codes), (_, weight) = train(rule, steps, STATES[state])
    assert np.all(np.isfinite(weight))
    assert 0 < in_codes <= 4 * in_fp32
