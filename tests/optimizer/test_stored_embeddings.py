"""Stored state of embeddings, whose gradients are sparse: tokens may share a row."""

import keras
import numpy as np
import oracle
import pytest
import tensorflow as tf
from keras import optimizers
from stored_forms import FORMS, NOT_IN_8_BITS, RULES, wrap

# What the first step at a rate of 1 adds to a row of zeros, for two tokens of which the
# gradients are 3 and -4: the sum of their squares is 25, that of their magnitudes 7.
OF_TWO_TOKENS = {
    "sgd": (optimizers.SGD(1.0), 1),
    "lion": (optimizers.Lion(1.0), 1),
    "adagrad": (optimizers.Adagrad(1.0, initial_accumulator_value=0.0), 1 / 5),
    "rmsprop": (optimizers.RMSprop(1.0, rho=0.75), 1 / (25 / 4) ** 0.5),
    "centered": (
        optimizers.RMSprop(1.0, rho=0.75, centered=True),
        1 / (25 / 4 - 1 / 16) ** 0.5,
    ),
    "adam": (optimizers.Adam(1.0), 1 / 5),
    "amsgrad": (optimizers.Adam(1.0, amsgrad=True), 1 / 5),
    "nadam": (optimizers.Nadam(1.0, beta_1=0.0), 1 / 5),
    "adamax": (optimizers.Adamax(1.0), 1 / 7),
    "ftrl": (optimizers.Ftrl(1.0, initial_accumulator_value=11.0), 1 / 6),
    "adadelta": (
        optimizers.Adadelta(1.0, rho=0.75, epsilon=1.0),
        1 / (25 / 4 + 1) ** 0.5,
    ),
    "lamb": (optimizers.Lamb(1.0), 1 / 5),
    "adafactor": (optimizers.Adafactor(1.0, epsilon_2=1.0), 1 / 5),
    "value": (optimizers.Adam(1.0, clipvalue=1.0), 0),
    "norm": (optimizers.Adam(1.0, clipnorm=5.0), 1 / 5),
    "global norm": (optimizers.Adam(1.0, global_clipnorm=1.0), 1),
}


CASES = [
    (rule, form, "eager")
    for rule in OF_TWO_TOKENS
    for form in [None, *FORMS]
    if form is None or "state" not in FORMS[form] or rule not in NOT_IN_8_BITS
]
CASES += [("adam", form, mode) for form in FORMS for mode in ("graph", "xla")]


@pytest.mark.xslow_except(
    "adam-*-eager",
    "adam-None-*",
    "adam-both-*",
    "adam-int8 remainders, int4-*",
    "*-both-eager",
    "*-remainders-eager",
)
@pytest.mark.slow_except("adam-*-eager", "adagrad-both-eager")
@pytest.mark.parametrize(("rule", "form", "mode"), CASES)
def test_a_rule_takes_the_square_of_each_token(rule, form, mode):
    """As by Keras's own optimizers on TensorFlow, which do the step without forms."""
    inner, expected = OF_TWO_TOKENS[rule]
    inner = type(inner).from_config(inner.get_config())
    table = keras.Variable(np.zeros((3, 1)), dtype="float16", name="table")
    optimizer = wrap(inner, **(FORMS[form] if form else {}))
    step = oracle.make_step(optimizer, [table], mode)
    tokens = tf.constant([[3 * 1024.0], [-4 * 1024.0]], "float16")
    step([tf.IndexedSlices(tokens, tf.constant([1, 1]), tf.constant([3, 1]))])
    found = np.asarray(optimizer.master_weights[0])
    # A weight without a master is rounded up or down; 1 - 0.999 is rounded by 2^-14.
    atol = 2.0**-10 if form and form.startswith("no masters") else 2.0**-14
    np.testing.assert_allclose(found, [[0], [expected], [0]], rtol=0, atol=atol)


# Where Keras adds up the tokens before it computes anything else but squares.
TO_THE_BIT = {"adam", "adamw", "amsgrad", "adamax", "clipvalue"}
WITH_OPTIONS = {
    "momentum, value": lambda: optimizers.SGD(0.2, momentum=0.9, clipvalue=0.0625),
    "momentum, norm": lambda: optimizers.SGD(0.2, momentum=0.9, global_clipnorm=0.5),
}


@pytest.mark.xslow_except(
    "sgd-4",
    "adam-4",
    "adamw-4",
    "lamb-4",
    "adafactor-4",
    "adagrad-4",
    "rmsprop_momentum-4",
    "global_clipnorm-4",
)
@pytest.mark.slow_except("adam-4", "adafactor-4", "sgd-4")
@pytest.mark.parametrize("times", [1, 4])
@pytest.mark.parametrize("rule", [*RULES, *WITH_OPTIONS])
def test_remainders_are_fp32_masters(rule, times):
    """To the bit where no two tokens share a row, else except for the order of sums."""
    rows = np.tile([3, 0, 2], times)

    def masters(**forms):
        weights = oracle.make_weights("float16", (("table", (5, 4)), ("kernel", (3,))))
        optimizer = wrap({**RULES, **WITH_OPTIONS}[rule](), **forms)
        optimizer.build(weights)
        random = np.random.default_rng(0)
        for _ in range(3):
            values, dense = random.normal(size=(rows.size, 4)), random.normal(size=3)
            slices = tf.IndexedSlices(tf.constant(values, "float16"), rows, [5, 4])
            optimizer.apply([slices, tf.constant(dense, "float16")], weights)
        return [np.asarray(master) for master in optimizer.master_weights]

    exact = times == 1 or rule in TO_THE_BIT
    # Of each step and row the products and sums of four tokens: 3 * (4 + 3).
    roundings = 0 if exact else 21
    if rule == "ftrl":  # Keras's power of 1/2 is not the square root.
        roundings = 3 * 80
    check = oracle.same_or_close(roundings)
    for found, expected in zip(masters(masters="remainders"), masters(), strict=True):
        check(found, expected, "master")


# The options, and where a 2 goes in a row of two tokens and in a row of one, by
# gradients of 3 and a rate of 1/2: clipped to 1, and by norms of 6 and 8 to a half.
CLIPPING = {
    "none": ({}, -1.0, 0.5),
    "value": ({"clipvalue": 1.0}, 1.0, 1.5),
    "norm": ({"clipnorm": 3.0}, 0.5, 1.25),
    "global norm": ({"global_clipnorm": 4.0}, 0.5, 1.25),
    "accumulation": ({"gradient_accumulation_steps": 2}, 2.0, 2.0),
}


@pytest.mark.xslow_except(
    "*-both-*", "*-int8-eager", "norm-remainders-graph", "accumulation-remainders-graph"
)
@pytest.mark.slow_except("*-both-eager", "norm-remainders-graph")
@pytest.mark.parametrize("mode", ["eager", "graph"])
@pytest.mark.parametrize("form", [None, *FORMS])
@pytest.mark.parametrize("clipping", CLIPPING)
def test_rows_that_tokens_have_in_common_are_clipped_one_by_one(clipping, form, mode):
    """As in Keras, which adds them up after that."""
    options, of_two_tokens, of_one = CLIPPING[clipping]
    table = keras.Variable(np.full((4, 2), 2.0), dtype="float16", name="table")
    kernel = keras.Variable(np.full(4, 2.0), dtype="float16", name="kernel")
    inner = optimizers.SGD(0.5, momentum=0.5, **options)
    optimizer = wrap(inner, **(FORMS[form] if form else {}))
    rows = np.array([[3, 0], [3, 0], [0, 3], [3, 0]], "float16")
    indices, shape = tf.constant([1, 1, 2, 3]), tf.constant([4, 2])
    slices = tf.IndexedSlices(tf.constant(1024 * rows), indices, shape)
    dense = tf.constant(1024 * np.sqrt(np.full(4, 7.0)), "float16")
    step = oracle.make_step(optimizer, [table, kernel], mode)
    step([slices, dense])
    expected = np.full((4, 2), 2.0)
    expected[1, 0], expected[2, 1], expected[3, 0] = of_two_tokens, of_one, of_one
    found = np.asarray(optimizer.master_weights[0])
    # A weight without a master is rounded up or down.
    np.testing.assert_allclose(found, expected, rtol=0, atol=2.0**-10)


def test_rows_are_added_up_in_fp32():
    """In FP16, 2048 + 1 is 2048, and 40,000 + 40,000 is inf."""
    table = keras.Variable(np.zeros((2, 1)), dtype="float16", name="table")
    optimizer = wrap(optimizers.SGD(1.0), masters="remainders")
    rows = tf.constant([[2048.0], [1.0], [40_000.0], [40_000.0]], "float16")
    slices = tf.IndexedSlices(rows, [0, 0, 1, 1], [2, 1])
    optimizer.apply([slices], [table])
    expected = [[-2049 / 1024], [-80_000 / 1024]]
    np.testing.assert_array_equal(np.asarray(optimizer.master_weights[0]), expected)
    assert int(optimizer.skipped_steps) == 0
