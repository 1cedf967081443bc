"""The most bytes of a traced graph, on graphs whose bytes are known by hand."""

import keras
import pytest
import tensorflow as tf

from keras_mp.diagnostics.live_bytes import LiveBytes

KIB = 1024  # bytes of the tensor that each function is given


def most(function):
    spec = tf.TensorSpec((KIB // 4,), tf.float32)
    graph = tf.function(function, autograph=False).get_concrete_function(spec).graph
    return LiveBytes(graph).most()


def chain(x):
    """Each result is freed when the next is there; Atan does not overwrite."""
    return tf.atan(tf.atan(tf.atan(x)))


def written_over(x):
    """Exp writes over what Atan has made."""
    return tf.exp(tf.exp(tf.atan(x)))


def read_later(x):
    """The first result is held until the sum, which writes over it."""
    y = tf.atan(x)
    return y + tf.atan(tf.atan(y))


def other_names(x):
    return tf.reshape(tf.identity(tf.atan(x)), (-1, 2))


def not_needed(x):
    tf.concat([x, x, x, x], 0)
    return tf.atan(x)


def of_its_shape(x):
    """ZerosLike does not keep the first result."""
    y = tf.atan(x)
    return tf.atan(y), tf.shape(y)[:0]


def larger_branch(x):
    large = lambda: tf.atan(tf.concat([x, x], 0))[: KIB // 4]  # noqa: E731
    return tf.cond(tf.reduce_sum(x) > 0, large, lambda: tf.atan(x))


def inner_function(x):
    @tf.function(autograph=False)
    def inner(y):
        return tf.atan(tf.atan(y))

    return inner(tf.atan(x))


# What the inputs and the largest set of other tensors hold, in KiB; scalars below.
CASES = {
    chain: 3,
    written_over: 2,
    read_later: 4,
    other_names: 2,
    not_needed: 2,
    of_its_shape: 3,
    larger_branch: 5,
    inner_function: 3,
}


@pytest.mark.parametrize("function", CASES, ids=lambda case: case.__name__)
def test_most(function):
    assert round(most(function) / KIB, 1) == CASES[function]


def test_a_loop_holds_what_each_pass_keeps_for_the_backward_pass():
    passes, weight = 50, tf.Variable(1.0)

    def step(x):
        with tf.GradientTape() as tape:
            arrays = tf.TensorArray(tf.float32, passes, element_shape=x.shape)

            def one_pass(i, y, arrays):
                y = tf.tanh(weight * y)
                return i + 1, y, arrays.write(i, y)

            *_, arrays = tf.while_loop(
                lambda i, *_: i < passes,
                one_pass,
                (0, x, arrays),
                parallel_iterations=1,
            )
            loss = tf.reduce_sum(tf.atan(arrays.stack()))
        return tape.gradient(loss, [weight])

    # A result is put in two lists, for the output and for the gradient of `tanh`, but
    # held once. The gradient of the stack is written over the stack.
    in_lists = stacked = passes * KIB
    assert in_lists + stacked < most(step) <= in_lists + stacked + 4 * KIB


def test_tensors_that_are_left_out():
    spec = tf.TensorSpec((KIB // 4,), tf.float32)
    made = []

    def function(x):
        made.append(tf.atan(x))
        return tf.atan(made[0])

    graph = tf.function(function, autograph=False).get_concrete_function(spec).graph
    assert LiveBytes(graph).most() == 3 * KIB
    assert LiveBytes(graph).most(made) == 2 * KIB
    assert LiveBytes(graph).most([*made, *graph.inputs]) == KIB


@pytest.mark.slow
@pytest.mark.parametrize("layer", [keras.layers.LSTM, keras.layers.GRU])
def test_the_lists_of_recurrent_layers_grow_with_the_steps(layer):
    model = layer(16)

    def bytes_of(steps):
        @tf.function(autograph=False)
        def step(x):
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(model(x, training=True))
            return tape.gradient(loss, [w.value for w in model.trainable_variables])

        spec = tf.TensorSpec((4, steps, 8), tf.float32)
        return LiveBytes(step.get_concrete_function(spec).graph).most()

    # The same number of passes runs at once.
    grown, twice = bytes_of(80) - bytes_of(40), bytes_of(120) - bytes_of(40)
    assert twice == 2 * grown > 40 * 4 * 16 * 4 * 3
