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


@pytest.mark.slow_except("(4, 0)-*")
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


@pytest.mark.xslow_except("adagrad-*", "*-None", "*-both")
@pytest.mark.slow_except("adagrad-dense-*")
@pytest.mark.parametrize("form", WITH_NONE)
@pytest.mark.parametrize("is_sparse", [False, True], ids=["dense", "sparse"])
@pytest.mark.parametrize(
    ("inner", "change"),
    [
        pytest.param(lambda: optimizers.SGD(0.5), 1.0, id="sgd"),
        pytest.param(lambda: optimizers.SGD(0.5, clipnorm=1.0), 0.5, id="clipnorm"),
        pytest.param(
            # 12 has a code of 8 and of 4 bits.
            lambda: optimizers.Adagrad(
                0.5, initial_accumulator_value=12.0, epsilon=0.0
            ),
            0.5 * 2 / 4,
            id="adagrad",
        ),
    ],
)
def test_variables_in_float64_stay_in_float64(inner, change, is_sparse, form):
    wide = keras.Variable([[1.0 + 2.0**-40]], dtype="float64")
    weight = keras.Variable([2.0], dtype="float16")
    optimizer = wrapped(inner(), form)
    gradient = scaled([[2.0]], "float64")
    if is_sparse:
        gradient = tf.IndexedSlices(gradient, tf.constant([0]), tf.constant([1, 1]))
    optimizer.apply([gradient, scaled([1.0])], [wide, weight])
    assert keras.backend.standardize_dtype(wide.dtype) == "float64"
    # The hyperparameters are exact in FP32; gradient and variable are float64.
    np.testing.assert_array_equal(wide.numpy(), [[1.0 + 2.0**-40 - change]])


RUNS = [(form, "eager") for form in WITH_NONE]
RUNS += [(form, mode) for form in (None, "remainders") for mode in ("graph", "xla")]


@pytest.mark.xslow_except("*-eager", "rmsprop-*", "adagrad-remainders-*")
@pytest.mark.slow_except("adagrad-*-eager", "norm-both-eager")
@pytest.mark.parametrize(("form", "mode"), RUNS)
@pytest.mark.parametrize(
    ("inner", "expected"),
    [
        pytest.param(lambda: optimizers.SGD(0.5, global_clipnorm=1.5), 1.25, id="norm"),
        pytest.param(
            lambda: optimizers.Adagrad(
                0.5, initial_accumulator_value=12.0, epsilon=0.0
            ),
            2.0 - 0.5 * 2 / 4,
            id="adagrad",
        ),
        pytest.param(
            lambda: optimizers.RMSprop(0.5, rho=0.75, epsilon=2.0**-30),
            1.0,
            id="rmsprop",
        ),
    ],
)
def test_rows_without_the_shape_of_their_matrix(inner, expected, form, mode):
    table = keras.Variable(np.full((3, 1), 2.0), dtype="float16")
    optimizer = wrapped(inner(), form)
    optimizer.build([table])

    def step():
        rows = tf.IndexedSlices(scaled([[2.0]]), tf.constant([1]))
        optimizer.apply([rows], [table])

    if mode != "eager":
        step = tf.function(step, jit_compile=mode == "xla")
    step()
    assert table.numpy().tolist() == [[2.0], [expected], [2.0]]


@pytest.mark.slow_except("*-float16")
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


@pytest.mark.parametrize("form", WITH_NONE)
def test_a_variable_that_is_listed_twice_accumulates_both_gradients(form):
    weight = keras.Variable([16.0], dtype="float16")
    optimizer = wrapped(optimizers.SGD(1.0, gradient_accumulation_steps=2), form)
    for first, second in ((1.0, 0.25), (2.0, 0.5)):
        optimizer.apply([scaled([first]), scaled([second])], [weight, weight])
    # Means of the last gradient of each place and of the sum of the first two.
    assert weight.numpy().tolist() == [16.0 - (2.0 + 1.25) / 2 - (0.5 + 1.25) / 2]


@pytest.mark.parametrize("form", FORMS)
def test_a_variable_that_its_gradient_replaces_is_refused(form):
    amax = keras.Variable([1.0], dtype="float32", name="amax")
    amax.overwrite_with_gradient = True
    weight = keras.Variable([2.0], dtype="float16")
    with pytest.raises(
        ValueError, match=r"optimizer moves\. Received: amax, which its"
    ):
        wrapped(optimizers.SGD(0.5, momentum=0.9), form).apply(
            [tf.constant([7.0]), scaled([1.0])], [amax, weight]
        )
    assert amax.numpy().tolist() == [1.0]
    assert weight.numpy().tolist() == [2.0]
