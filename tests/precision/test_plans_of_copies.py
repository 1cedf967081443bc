"""A plan fits every copy of its model: loaded, cloned, made again in one process."""

import copy

import keras
import numpy as np
import pytest

import keras_mp

L = keras.layers
X = np.random.default_rng(0).normal(size=(8, 4)).astype("float32")
Y = np.ones((8, 1), "float32")


@keras.saving.register_keras_serializable("copies")
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
    assert plan.precisions == {
        path: "float32"
        for block in ("residual", "residual_1")
        for path in (block, f"{block}/rescaling", f"{block}/layer_normalization")
    }
    other = make(planned, tmp_path)
    assert not np.all(np.isfinite(other(X)))
    expected = plan.apply(planned)(X)
    np.testing.assert_array_equal(plan.apply(other)(X), expected)
    assert keras_mp.plan_precision(other, X, Y).precisions == plan.precisions


def graph():
    """A model whose layers are saved with what a plan has given them."""
    keras.utils.set_random_seed(0)
    layers = [L.Dense(8, "gelu"), L.LayerNormalization(), L.Dropout(0.1), L.Dense(1)]
    each = compiled(keras.Sequential([keras.Input((4,)), *layers]))
    each.layers[0].bias.assign(np.full(8, 3e4))
    return each


def without_a_plan(each):
    return keras_mp.PrecisionPlan((), 1.0, 0.0, 4.0).apply(each)


def policies(each):
    return [layer.dtype_policy for layer in each._flatten_layers()]


@pytest.mark.slow
@pytest.mark.xslow_except("model-deep-*", "graph-loaded-*", "model-cloned-to_keras")
@pytest.mark.parametrize("undo", [without_a_plan, keras_mp.to_keras])
@pytest.mark.parametrize("make", [cloned, deep, loaded])
@pytest.mark.parametrize("make_model", [graph, model])
def test_the_plan_of_a_copy_is_undone(make_model, make, undo, tmp_path):
    keras.config.set_dtype_policy("mixed_float16")
    planned = undo(make_model())
    before, expected = policies(planned), planned(X)
    plan = keras_mp.plan_precision(planned, X, Y)
    assert plan.precisions
    plan.apply(planned)
    other = make(planned, tmp_path)
    for each in (undo(other), undo(planned)):
        assert policies(each) == before
        np.testing.assert_array_equal(each(X), expected)
        assert keras_mp.plan_precision(each, X, Y).precisions == plan.precisions


def test_a_layer_that_loses_its_name_in_a_file_is_missed(tmp_path):
    keras.config.set_dtype_policy("mixed_float16")
    inputs = keras.Input((4,), name="x")
    planned = compiled(keras.Model(inputs, L.Dense(1)(Residual(name="a")(inputs))))
    plan = keras_mp.plan_precision(planned, X, Y)
    assert "a" in plan.precisions
    other = loaded(planned, tmp_path)
    with pytest.raises(ValueError, match=r"(?s)without the layers \['a/.*`name`"):
        plan.apply(other)


def test_a_layer_that_was_quantized_with_a_plan_is_as_accurate_without():
    """Its int8 kernel under `mixed_float16` would be wrong, without a warning."""
    keras.config.set_dtype_policy("mixed_float16")
    planned = graph()
    keras_mp.plan_precision(planned, X, Y).apply(planned)
    dense = planned.layers[0]
    assert dense.compute_dtype == "float32"
    expected = dense(X)
    dense.quantize("int8")
    without_a_plan(planned)
    assert dense.quantization_mode == "int8"
    # Below the rounding of sums around 3e4 to FP16, 16, which FP32 does not do.
    np.testing.assert_allclose(dense(X), expected, atol=0.1)
