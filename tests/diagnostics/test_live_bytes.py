"""The most bytes of a traced graph, on graphs whose bytes are known by hand."""

import keras
import pytest
import tensorflow as tf

from keras_mp.diagnostics.live_bytes import LiveBytes

KIB = 1024  # bytes of the tensor that each function is given


def most(function, cores=1):
    spec = tf.TensorSpec((KIB // 4,), tf.float32)
    graph = tf.function(function, autograph=False).get_concrete_function(spec).graph
    return LiveBytes(graph, cores).most()


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
    def large():
        return tf.atan(tf.concat([x, x], 0))[: KIB // 4]

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
    # held once. The gradient of the stack is copied into the elements of a list.
    in_lists = gradient = copies = passes * KIB
    expected = in_lists + gradient + copies
    assert expected < most(step) <= expected + 4 * KIB


def test_two_cores_hold_what_two_operations_make():
    def two_chains(x):
        return tf.atan(tf.atan(x)) + tf.atan(tf.atan(2 * x))

    assert round(most(two_chains) / KIB, 1) == 4
    assert round(most(two_chains, cores=2) / KIB, 1) == 5


def test_a_variable_is_read_after_it_has_changed():
    """Else the logarithm would be held until the sum is there."""
    variable = tf.Variable(tf.ones(KIB // 4))

    def update(x):
        variable.assign_add(tf.atan(tf.atan(x)))
        return tf.reduce_sum(tf.atan(variable))

    assert round(most(update, cores=2) / KIB, 1) == 3


def test_a_product_of_fp16_is_computed_in_fp32():
    def square(x):
        half = tf.reshape(tf.cast(x, tf.float16), (16, 16))
        return tf.matmul(half, half)

    # The input; two operands, which are one tensor, and the result, in both dtypes.
    assert round(most(square) / KIB, 1) == 1 + 2 * 0.5 + 3 * 1


def test_several_orders_are_tried():
    def function(x):
        return tf.add_n([tf.atan(x - i) for i in range(8)])

    spec = tf.TensorSpec((KIB // 4,), tf.float32)
    graph = tf.function(function, autograph=False).get_concrete_function(spec).graph
    one, several = LiveBytes(graph, 2), LiveBytes(graph, 2, tried=4)
    assert one.most() <= several.most()
    assert several.most() == LiveBytes(graph, 2, tried=4).most()


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


@pytest.mark.xslow_except("LSTM")
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

    # The order of operations differs.
    grown, twice = bytes_of(80) - bytes_of(40), bytes_of(120) - bytes_of(40)
    assert grown > 40 * 4 * 16 * 4 * 3
    assert 1.5 * grown < twice < 2.5 * grown
