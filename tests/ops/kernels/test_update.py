"""The ops of the update step in TensorFlow: what surrounds the kernels.

The kernels themselves are tested in custom_ops/tests/common/update_suite.h, the step as
a whole in tests/optimizer.
"""

import re

import numpy as np
import pytest
import tensorflow as tf
from older_versions import needs

from keras_mp.ops.kernels import dispatch, native, update

pytestmark = needs("TensorFlow", 2, 20)  # with which the native library begins
MODES = ["eager", "graph", "xla"]


@pytest.fixture(params=MODES)
def run(request):
    """Calls a function of no argument eagerly, in a graph or compiled by XLA."""
    if request.param == "eager":
        return lambda function: function()
    jit = request.param == "xla"
    return lambda function: tf.function(function, jit_compile=jit)()


def variables(*values, dtype="float32"):
    return [tf.Variable(tf.constant(value, dtype)) for value in values]


def assert_values(tensors, expected, dtype):
    for tensor, value in zip(tensors, expected, strict=True):
        array = tensor.numpy()
        np.testing.assert_array_equal(array, np.array(value, dtype), strict=True)


def step(masters, gradients, weights=None, **arguments):
    """Plain SGD with a learning rate of 1."""
    given = {
        "finite": tf.constant(True),
        "slots": [],
        "uniforms": [],
        "apply_weight_decay": [False] * len(masters),
        "rule": "sgd",
        "hyperparameters": {"learning_rate": 1.0},
    }
    update.update_variables(
        gradients=gradients,
        masters=masters,
        weights=weights or [None] * len(masters),
        **{**given, **arguments},
    )


class Placed:
    """A variable, as far as its place matters."""

    def __init__(self, place):
        self.device = f"/job:localhost/replica:0/task:0/device:{place}"


PLACES = {
    "cpu": (["CPU:0", "CPU:0"], False, True),
    "gpu": (["GPU:1", "GPU:1"], True, True),
    "gpu-without-kernels": (["GPU:0"], False, False),
    "two-gpus": (["GPU:0", "GPU:1"], True, False),
    "gpu-and-cpu": (["GPU:0", "CPU:0"], True, False),
    "tpu": (["TPU:0"], True, False),
    "none": ([], True, False),
}


@pytest.mark.parametrize("name", PLACES)
def test_the_variables_that_the_ops_take(name, monkeypatch):
    places, has_cuda, takes = PLACES[name]
    monkeypatch.setattr(native, "has_cuda", lambda: has_cuda)
    assert dispatch.has_update_kernels([Placed(place) for place in places]) is takes


@pytest.mark.parametrize(
    ("rule", "place", "is_there"),
    [
        ("adam", "CPU:0", True),
        ("adam", "GPU:0", True),
        ("lamb", "CPU:0", True),
        ("lamb", "GPU:0", False),
        ("adafactor", "CPU:0", True),
        ("adafactor", "GPU:0", False),
    ],
)
def test_a_gpu_has_no_rule_with_norms(rule, place, is_there):
    assert update.has_rule(rule, [Placed(place)]) is is_there


def test_a_gpu_that_has_no_kernels_is_told_of(monkeypatch):
    problem = native.cuda_problem()
    assert problem  # there is no GPU here
    monkeypatch.setattr(native, "has_cuda", native.has_cuda.__wrapped__)
    with pytest.warns(UserWarning, match=re.escape(problem)) as warned:
        assert not dispatch.has_update_kernels([Placed("GPU:0")])
    assert "KERAS_MP_OPS=reference" in str(warned[0].message)


def test_gradients_are_checked(run):
    gradients = [
        tf.constant([[8.0, 16.0]], "float16"),
        tf.constant([1.0, np.nan]),
        tf.zeros((0, 3), "bfloat16"),
        tf.constant(-np.inf),
        tf.constant([24.0, -32.0], "bfloat16"),
    ]
    largest, sum_of_squares = run(
        lambda: update.check_gradients(gradients, tf.constant(8.0), False)
    )
    assert_values([largest], [[2.0, np.nan, 0.0, np.inf, 4.0]], "float32")
    assert_values([sum_of_squares], [0.0], "float32")


def test_squares_are_added_up(run):
    gradients = [tf.constant([[8.0, 16.0]], "float16"), tf.constant(24.0)]
    largest, sum_of_squares = run(
        lambda: update.check_gradients(gradients, tf.constant(8.0), True)
    )
    assert_values([largest], [[2.0, 3.0]], "float32")
    assert_values([sum_of_squares], [1.0 + 4.0 + 9.0], "float32")


@pytest.mark.parametrize("squares", [False, True])
def test_gradients_are_unscaled(run, squares):
    sparse = tf.IndexedSlices(tf.constant([[8.0]], "float16"), tf.constant([2]), None)
    gradients = [
        tf.constant([65504.0, 2.0**-24], "float16"),
        sparse,
        tf.zeros((3, 0)),
        tf.constant(-128.0),
    ]

    def unscale():
        unscaled, *checked = update.unscale_gradients(
            gradients, tf.constant(8.0), squares
        )
        return [update.values_of(g) for g in unscaled], checked

    values, checked = run(unscale)
    expected = [[8188.0, 2.0**-27], [[1.0]], np.zeros((3, 0)), -16.0]
    assert_values(values, expected, "float32")
    sum_of_squares = 8188.0**2 + 1 + 16**2 if squares else 0.0
    assert_values(checked, [[8188.0, 1.0, 0.0, 16.0], sum_of_squares], "float32")


def test_a_scale_that_has_no_normal_inverse(run):
    """TensorFlow's threads flush subnormal numbers to zero, and so this inverse."""
    gradients = [tf.constant([2.0**127, -(2.0**126)])]
    (unscaled,), *_ = run(
        lambda: update.unscale_gradients(gradients, tf.constant(2.0**127), False)
    )
    assert_values([unscaled], [[1.0, -0.5]], "float32")


def test_a_gradient_that_is_used_again_keeps_its_numbers(run):
    gradient = tf.constant([8.0, 16.0])

    def unscale():
        (unscaled,), *_ = update.unscale_gradients([gradient], tf.constant(8.0), False)
        return unscaled, gradient + 0

    assert_values(run(unscale), [[1.0, 2.0], [8.0, 16.0]], "float32")


def test_masters_follow_and_are_cast(run):
    # The first weight is its master rounded; of the second someone wrote one number.
    masters = variables([1 + 2.0**-12, 3.0], [[1.0, 2.0]], 5.0)
    weights = [
        *variables([1.0, 3.0], dtype="float16"),
        *variables([[1.0, 7.0]], dtype="bfloat16"),
        *variables(5.0, dtype="float16"),
    ]
    run(lambda: update.sync_masters_from_weights(masters, weights, "nearest"))
    followed = [[1 + 2.0**-12, 3.0], [[1.0, 7.0]], 5.0]
    assert_values(masters, followed, "float32")

    for master in masters:
        master.assign(master * 2)
    run(lambda: update.cast_masters(masters, weights, []))
    assert_values(weights[::2], [[2.0, 6.0], 10.0], "float16")
    assert_values(weights[1:2], [[[2.0, 14.0]]], tf.bfloat16.as_numpy_dtype)


def test_uniforms_round_up_or_down(run):
    # A quarter of the way from 1 to the next half.
    masters = variables([1 + 2.0**-12] * 2)
    weights = variables([0.0, 0.0], dtype="float16")
    uniforms = [tf.constant([0.2, 0.3])]
    run(lambda: update.cast_masters(masters, weights, uniforms))
    assert_values(weights, [[1 + 2.0**-10, 1.0]], "float16")
    before = masters[0].numpy()
    run(lambda: update.sync_masters_from_weights(masters, weights, "stochastic"))
    assert_values(masters, [before], "float32")


@pytest.mark.parametrize("finite", [True, False])
def test_a_step_moves_everything_or_nothing(run, finite):
    masters = variables([1.0, 2.0], [[3.0]])
    slots = variables([0.0, 0.5], [[1.0]])
    weights = variables([1.0, 2.0], dtype="float16")
    gradients = [tf.constant([8.0, 16.0], "float16"), tf.constant([[24.0]])]
    run(
        lambda: step(
            masters,
            gradients,
            [weights[0], None],
            finite=tf.constant(finite),
            slots=slots,
            rule="momentum",
            hyperparameters={"scale": 8.0, "learning_rate": 0.5, "momentum": 0.5},
        )
    )
    # momentum / 2 - gradient / 8 * learning_rate
    moved = [[-0.5, -0.75], [[-1.0]]] if finite else [[0.0, 0.5], [[1.0]]]
    expected = [[0.5, 1.25], [[2.0]]] if finite else [[1.0, 2.0], [[3.0]]]
    assert_values(slots, moved, "float32")
    assert_values(masters, expected, "float32")
    assert_values(weights, expected[:1], "float16")


def test_a_value_that_was_read_before_stays(run):
    masters = variables([1.0, 2.0])

    def read_then_step():
        read = masters[0].read_value()
        step(masters, [tf.ones(2)])
        return read + 0, masters[0].read_value()

    # Held from outside, too: the variable may not write to what others hold.
    held = masters[0].read_value()
    before, after = run(read_then_step)
    assert_values(
        [held, before, after], [[1.0, 2.0], [1.0, 2.0], [0.0, 1.0]], "float32"
    )


def test_many_variables_of_any_size(run):
    rng = np.random.default_rng(0)
    sizes = [0, 1, 7, 16, 17, 64, 111, 217, 989, 0, 70_000]
    starts = [rng.normal(size=size).astype("float32") for size in sizes]
    moves = [rng.normal(size=size).astype("float32") for size in sizes]
    masters = variables(*starts)
    run(lambda: step(masters, [tf.constant(move) for move in moves]))
    expected = [start - move for start, move in zip(starts, moves, strict=True)]
    assert_values(masters, expected, "float32")


def test_powers_of_one_of_two_gradients(run):
    """v += g^2, or what is given for it; w -= g / sqrt(v)."""
    masters = variables([1.0, 2.0], [1.0, 2.0])
    slots = variables([7.0, 0.0], [7.0, 0.0])
    gradients = [tf.constant([3.0, 2.0])] * 2
    powers = [None, tf.constant([57.0, 16.0])]
    run(lambda: step(masters, gradients, slots=slots, rule="adagrad", powers=powers))
    assert_values(slots, [[16.0, 4.0], [64.0, 16.0]], "float32")
    assert_values(masters, [[0.25, 1.0], [0.625, 1.5]], "float32")


# Mistakes.

ones = tf.ones(2)
matrix, of_rows = variables([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]], [1.0, 2.0])
MISTAKES = {
    "means_of_columns_for_rows": (
        lambda m, w: step(
            [matrix], [tf.ones((2, 3))], slots=[m[0], m[1], of_rows], rule="adafactor"
        ),
        r"slot 0 must fit the master. Received: float \[2\] for float \[2,3\]",
    ),
    "gradient_of_another_shape": (
        lambda m, w: step(m[:1], [tf.ones(3)]),
        r"gradient 0 must .* Received: .*3",
    ),
    "slot_of_16_bits": (
        lambda m, w: step(m[:1], [ones], slots=w, rule="momentum"),
        r"slot must be float32.*Received: slot 0 of master 0: half without exponents",
    ),
    "weight_of_32_bits": (
        lambda m, w: step(m[:1], [ones], [m[1]]),
        r"weight 0 must fit the master",
    ),
    "uniform_of_another_shape": (
        lambda m, w: update.cast_masters(m[:1], w, [tf.zeros(3)]),
        r"uniform 0 must .* Received: .*3",
    ),
    "no_slots": (
        lambda m, w: step(m[:1], [ones], rule="adam"),
        r"lists must match.*Received: 1 masters, 1 gradients.*0 slots for adam",
    ),
    "powers_of_another_shape": (
        lambda m, w: step(
            m[:1], [ones], slots=m[1:], rule="adagrad", powers=[ones[:1]]
        ),
        r"powers 0 must .* Received: .*1",
    ),
    "powers_for_a_rule_without": (
        lambda m, w: step(m[:1], [ones], powers=[ones]),
        r"the rule takes no powers.*Received: 1 for sgd",
    ),
    "a_weight_twice": (
        lambda m, w: update.cast_masters(m, [w[0], w[0]], []),
        r"variable of its own",
    ),
}


@pytest.mark.parametrize("mode", ["eager", "graph"])
@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes_are_told(name, mode):
    call, message = MISTAKES[name]
    masters = variables([1.0, 2.0], [3.0, 4.0])
    weights = variables([1.0, 2.0], dtype="float16")
    function = tf.function(call) if mode == "graph" else call
    with pytest.raises(tf.errors.InvalidArgumentError, match=message):
        function(masters, weights)
    assert_values(masters, [[1.0, 2.0], [3.0, 4.0]], "float32")


@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes_are_told_by_xla(name):
    call, message = MISTAKES[name]
    masters = variables([1.0, 2.0], [3.0, 4.0])
    weights = variables([1.0, 2.0], dtype="float16")
    with pytest.raises(tf.errors.InvalidArgumentError, match=message):
        tf.function(call, jit_compile=True)(masters, weights)


def test_the_hyperparameters_are_as_many_as_the_kernel_has(run):
    (master,) = variables([1.0, 2.0])

    def call():
        native.library().keras_mp_update_variables(
            finite=True,
            hyperparameters=[1.0],
            gradients=[ones],
            masters=[master.handle],
            slots=[],
            weights=[],
            exponents=[],
            uniforms=[],
            powers=[],
            weight_of=[],
            apply_weight_decay=[False],
            rule="sgd",
        )

    with pytest.raises(
        tf.errors.InvalidArgumentError, match=r"24 hyperparameters\. Received"
    ):
        run(call)
