"""`convert` of a float16 model whose weights every replica has a copy of."""

import keras
import numpy as np
import pytest
from replicas import copies, fit

import keras_mp
from keras_mp.keras_internals import synchronization_argument


def model_in(strategy, **options):
    keras.config.set_dtype_policy("float16")
    with strategy.scope():
        norm = keras.layers.BatchNormalization(momentum=0.5, **options)
        model = keras.Sequential([keras.Input((1,)), norm, keras.layers.Dense(1)])
        model.compile(keras_mp.wrap("sgd"), "mse")
    return model, norm


def there_and_back(model):
    return keras_mp.to_keras(keras_mp.convert(model))


@pytest.mark.xslow_except("affine-convert")
@pytest.mark.slow
@pytest.mark.parametrize("change", [keras_mp.convert, there_and_back])
@pytest.mark.parametrize("is_affine", [False, True], ids=["statistics", "affine"])
def test_outside_of_the_scope(strategy, is_affine, change):
    model, norm = model_in(strategy, center=is_affine, scale=is_affine)
    synchronization = [*map(synchronization_argument, norm.weights)]
    change(model)
    assert {w.dtype for w in norm.weights} == {"float32"}
    assert [*map(synchronization_argument, norm.weights)] == synchronization
    # The means of the replicas are 0 and 4, and the average goes halfway, in each.
    fit(model, [[0.0], [0.0], [4.0], [4.0]], 4)
    assert [copy.tolist() for copy in copies(strategy, norm.moving_mean)] == [[0], [2]]
    for weight in model.trainable_variables:
        first, second = copies(strategy, weight)
        np.testing.assert_array_equal(first, second, err_msg=weight.path)
    assert model.predict(np.ones((4, 1)), verbose=0).shape == (4, 1)
