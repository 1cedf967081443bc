"""A plan fits every copy of its model: loaded, cloned, made again in one process."""

import copy

import keras
import numpy as np
import pytest

import keras_mp

L = keras.layers
X = np.random.default_rng(0).normal(size=(8, 4)).astype("float32")
Y = np.ones((8, 1), "float32")


@keras.saving.register_keras_serializable("tests")
class Residual(L.Layer):
    """Its sublayers have no names but those that Keras makes."""

    def __init__(self, **options):
        super().__init__(**options)
        self.small, self.large = L.Dense(4), L.Rescaling(1e6)
        self.norm = L.LayerNormalization()

    def build(self, shape):
        for each in (self.small, self.norm):
            each.build(shape)
        self.built = True

    def call(self, x):
        return self.norm(x + self.large(self.small(x)))

    def compute_output_shape(self, shape):
        return shape


def model():
    keras.utils.set_random_seed(0)
    inputs = keras.Input((4,), name="x")
    outputs = L.Dense(1)(Residual()(Residual()(inputs)))
    return compiled(keras.Model(inputs, outputs))


def compiled(each):
    each.compile(keras_mp.wrap("sgd", loss_scale=1.0), "mse", jit_compile=False)
    return each


def made_again(planned, _):
    return model()


def cloned(planned, _):
    clone = keras.models.clone_model(planned)
    clone.set_weights(planned.get_weights())
    return compiled(clone)


def deep(planned, _):
    return copy.deepcopy(planned)


def loaded(planned, tmp_path):
    planned.save(tmp_path / "model.keras")
    return keras.saving.load_model(tmp_path / "model.keras")


COPIES = (made_again, cloned, deep, loaded)


@pytest.mark.parametrize("make", COPIES)
def test_a_plan_is_applied_to_a_copy(make, tmp_path):
    keras.config.set_dtype_policy("mixed_float16")
    planned = model()
    plan = keras_mp.plan_precision(planned, X, Y)
    assert plan.ways == {
        path: "float32"
        for block in ("residual", "residual_1")
        for path in (block, f"{block}/rescaling", f"{block}/layer_normalization")
    } | {f"{block}/dense": "float16_products" for block in ("residual", "residual_1")}
    other = make(planned, tmp_path)
    assert not np.all(np.isfinite(other(X)))
    expected = plan.apply(planned)(X)
    np.testing.assert_array_equal(plan.apply(other)(X), expected)
    assert keras_mp.plan_precision(other, X, Y).ways == plan.ways
