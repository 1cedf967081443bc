"""Stored state of variables and gradients that a model rarely has."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import optimizers
from stored_forms import FORMS, wrap

SCALE = 1024.0
WITH_NONE = [None, *FORMS]


def wrapped(inner, form):
    return wrap(inner, **(FORMS[form] if form else {}))


def scaled(values, dtype="float16"):
    return tf.constant(np.asarray(values) * SCALE, dtype)


@pytest.mark.parametrize("form", WITH_NONE)
@pytest.mark.parametrize("shape", [(0,), (0, 4), (4, 0)], ids=str)
def test_variables_without_elements_accumulate_gradients(shape, form):
    empty = keras.Variable(np.zeros(shape), dtype="float16")
    weight = keras.Variable([2.0], dtype="float16")
    optimizer = wrapped(optimizers.SGD(0.5, gradient_accumulation_steps=2), form)
    for value in (1.0, 3.0):
        gradients = [tf.zeros(shape, "float16"), scaled([value])]
        optimizer.apply(gradients, [empty, weight])
    assert empty.numpy().shape == shape
    assert weight.numpy().tolist() == [2.0 - 0.5 * 2.0]


@pytest.mark.parametrize("form", WITH_NONE)
@pytest.mark.parametrize("is_sparse", [False, True], ids=["dense", "sparse"])
@pytest.mark.parametrize(
    ("inner", "change"),
    [
        pytest.param(lambda: optimizers.SGD(0.5), 1.5, id="sgd"),
        pytest.param(lambda: optimizers.SGD(0.5, clipnorm=1.0), 0.5, id="clipnorm"),
        pytest.param(
            lambda: optimizers.Adagrad(0.5, initial_accumulator_value=7.0, epsilon=0.0),
            0.5 * 3 / 4,
            id="adagrad",
        ),
    ],
)
def test_variables_in_float64_stay_in_float64(inner, change, is_sparse, form):
    wide = keras.Variable([[1.0 + 2.0**-40]], dtype="float64")
    weight = keras.Variable([2.0], dtype="float16")
    optimizer = wrapped(inner(), form)
    gradient = scaled([[3.0]], "float64")
    if is_sparse:
        gradient = tf.IndexedSlices(gradient, tf.constant([0]), tf.constant([1, 1]))
    optimizer.apply([gradient, scaled([1.0])], [wide, weight])
    assert keras.backend.standardize_dtype(wide.dtype) == "float64"
    # FP32 hyperparameters and gradients; what is added to is float64.
    np.testing.assert_array_equal(wide.numpy(), [[1.0 + 2.0**-40 - change]])


@pytest.mark.parametrize("form", WITH_NONE)
@pytest.mark.parametrize(
    ("inner", "expected"),
    [
        pytest.param(lambda: optimizers.SGD(0.5), 0.5, id="sgd"),
        pytest.param(lambda: optimizers.Lion(0.5), 1.5, id="lion"),
        pytest.param(lambda: optimizers.SGD(0.5, global_clipnorm=1.5), 1.25, id="norm"),
    ],
)
def test_rows_without_the_shape_of_their_matrix(inner, expected, form):
    table = keras.Variable(np.full((3, 1), 2.0), dtype="float16")
    rows = tf.IndexedSlices(scaled([[3.0]]), tf.constant([1]))
    wrapped(inner(), form).apply([rows], [table])
    assert table.numpy().tolist() == [[2.0], [expected], [2.0]]


@pytest.mark.parametrize("dtype", ["float16", "float64"])
@pytest.mark.parametrize("form", WITH_NONE)
def test_a_variable_that_is_listed_twice_decays_before_its_updates(form, dtype):
    first = keras.Variable([2.0], dtype=dtype)
    second = keras.Variable([2.0], dtype="float16")
    optimizer = wrapped(optimizers.SGD(0.5, weight_decay=1.0), form)
    gradients = [scaled([0.25], dtype), scaled([1.0]), scaled([0.5], dtype)]
    optimizer.apply(gradients, [first, second, first])
    # It decays by a half twice, and then moves by a half of both gradients.
    assert first.numpy().tolist() == [2.0 / 4 - 0.375]
    assert second.numpy().tolist() == [2.0 / 2 - 0.5]
