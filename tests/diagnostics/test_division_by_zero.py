"""A vector of zeros is normalized: the tools name the division by zero."""

import keras
import numpy as np
import pytest

import keras_mp

L = keras.layers
# Without a bias the third vector stays zeros until the normalization.
X = np.array([[1, 2], [3, -1], [0, 0], [2, 2]], "float32")
Y = np.ones((4, 3), "float32")


class CosineSimilarity(keras.layers.Layer):
    """Divides by the length in its own code, without an epsilon."""

    def call(self, x):
        return x / keras.ops.sqrt(keras.ops.sum(x * x, axis=-1, keepdims=True))


class Shortened(keras.layers.Layer):
    """Divides by the length and 2**-30."""

    def call(self, x):
        length = keras.ops.sqrt(keras.ops.sum(x * x, axis=-1, keepdims=True) + 2.0**-60)
        return x / length


class Inverse(keras.layers.Layer):
    """Divides twice by the length or 1e-20; the gradient of zeros is 1e40 in FP32."""

    def call(self, x):
        length = keras.ops.sqrt(keras.ops.sum(x * x, axis=-1, keepdims=True))
        length = keras.ops.maximum(length, 1e-20)
        return x / length / length


def model_of(divisor, policy="mixed_float16", bias=0.0):
    keras.config.set_dtype_policy(policy)
    dense = L.Dense(3, name="dense", bias_initializer=keras.initializers.Constant(bias))
    model = keras.Sequential(
        [keras.Input((2,)), dense, divisor, L.Dense(3, name="head")]
    )
    model.compile(keras_mp.wrap("sgd"), "mse")
    return model


BACKWARD = {
    "keras, FP16": lambda: L.UnitNormalization(name="divisor"),
    "keras": lambda: L.UnitNormalization(name="divisor", dtype="float32"),
    "own code": lambda: Shortened(name="divisor", dtype="float32"),
}


def test_find_overflow_names_the_division_in_the_forward_pass():
    found = keras_mp.find_overflow(model_of(CosineSimilarity(name="divisor")), X, Y)
    assert (found.path, found.where, found.divisor) == ("divisor", "forward", "divisor")
    assert "'divisor' divides by zero" in str(found)
    assert "No loss scale helps" not in str(found)


@pytest.mark.parametrize("make", BACKWARD.values(), ids=BACKWARD)
def test_find_overflow_names_the_division_in_the_backward_pass(make):
    found = keras_mp.find_overflow(model_of(make()), X, Y, loss_scale=2.0**15)
    assert (found.path, found.where, found.divisor) == ("dense", "backward", "divisor")
    assert "Train with a smaller loss scale" not in str(found)


@pytest.mark.parametrize("make", BACKWARD.values(), ids=BACKWARD)
def test_no_loss_scale_is_suggested(make):
    with pytest.raises(ValueError, match=r"division by zero in batch 1\. 'divisor'"):
        keras_mp.suggest_loss_scale(
            model_of(make()), [(X[:2], Y[:2]), (X, Y)], batches=2
        )


def test_a_plan_that_fails_for_it_says_so():
    plan = keras_mp.plan_precision(
        model_of(Inverse(name="divisor", dtype="float32")), X, Y
    )
    assert "'divisor' divides by zero" in str(plan)


@pytest.mark.parametrize("name", ["keras, FP16", "keras"])
def test_a_plan_holds_where_the_conversion_mends_it(name):
    model = model_of(BACKWARD[name]())
    plan = keras_mp.plan_precision(model, X, Y)
    assert not plan.notes and plan.gradient_error <= 0.02
    plan.apply(model).fit(X, Y, verbose=0)
    assert int(model.optimizer.skipped_steps) == 0


OTHER_VECTORS = {
    "no zeros": (X[:2], 0.0),
    "zeros, and a bias": (X, 1.0),
    "all zeros behind a bias": (np.zeros_like(X), 1.0),
}


@pytest.mark.parametrize(("x", "bias"), OTHER_VECTORS.values(), ids=OTHER_VECTORS)
def test_other_vectors_divide_by_no_zero(x, bias):
    model = model_of(L.UnitNormalization(name="divisor", dtype="float32"), bias=bias)
    y = Y[: len(x)]
    assert keras_mp.find_overflow(model, x, y, loss_scale=1.0) is None
    assert keras_mp.suggest_loss_scale(model, [(x, y)]).initial_scale > 1
    overflow = keras_mp.find_overflow(model, x, y, loss_scale=2.0**40)
    assert (overflow.where, overflow.divisor) == ("backward", None)
    assert "Train with a smaller loss scale" in str(overflow)


def test_zeros_of_relu_before_a_large_matrix_are_no_division():
    """Their gradients overflow as those of other rows do."""
    keras.config.set_dtype_policy("mixed_float16")
    head = L.Dense(
        1, kernel_initializer=keras.initializers.Constant(100.0), name="head"
    )
    model = keras.Sequential(
        [keras.Input((2,)), L.Dense(2, "relu", kernel_initializer="ones"), head]
    )
    model.compile("sgd", "mse")
    x = np.array([[-1, -1], [1, 1]], "float32")
    found = keras_mp.find_overflow(model, x, np.ones((2, 1)), loss_scale=2.0**10)
    assert (found.where, found.divisor) == ("backward", None)


@pytest.mark.parametrize("policy", ["mixed_float16", "float16", "float32"])
def test_a_converted_model_has_a_gradient_of_0_there(policy):
    model = keras_mp.convert(model_of(L.UnitNormalization(), policy))
    assert keras_mp.find_overflow(model, X, Y, loss_scale=2.0**10) is None
    assert keras_mp.suggest_loss_scale(model, [(X, Y)]).initial_scale > 1
    if policy != "float32":
        assert keras_mp.plan_precision(model, X, Y).precisions == {}
