"""Export of weights: values known by hand, from masters and from what is stored."""

import keras
import ml_dtypes
import numpy as np
import pytest

import keras_mp

DTYPES = {
    "float16": np.float16,
    "bfloat16": ml_dtypes.bfloat16,
    "float32": np.float32,
    "float64": np.float64,
}
EACH_DTYPE = pytest.mark.parametrize("dtype", DTYPES)


def one_weight(policy="float16", optimizer=None):
    """A model of a (1, 2) kernel, with an optimizer that is built."""
    layer = keras.layers.Dense(2, use_bias=False, dtype=policy)
    model = keras.Sequential([keras.Input((1,)), layer])
    model.compile(optimizer or keras_mp.wrap("sgd", 1), "mse")
    model.optimizer.build(model.trainable_variables)
    return model


def set_master(model, value):
    """Gives the only master a value, and the weight with it."""
    with model.optimizer.fp32_weights():
        model.optimizer.master_weights[0].assign(value)


# 1 + 2**-12 lies in the first quarter between two halves, and in float32 exactly;
# -1.5 is a number of all four formats.
MASTER = np.array([[1 + 2.0**-12, -1.5]])


@EACH_DTYPE
def test_a_weight_is_exported_from_its_master(dtype):
    model = one_weight()
    set_master(model, MASTER)
    (stored,) = model.get_weights()
    np.testing.assert_array_equal(stored, np.float16([[1, -1.5]]), strict=True)

    (weight,) = keras_mp.export_weights(model, dtype)
    np.testing.assert_array_equal(weight, MASTER.astype(DTYPES[dtype]), strict=True)
    # The model itself is as it was.
    np.testing.assert_array_equal(model.get_weights()[0], stored, strict=True)


def test_float32_is_the_default():
    model = one_weight()
    set_master(model, MASTER)
    (weight,) = keras_mp.export_weights(model)
    np.testing.assert_array_equal(weight, MASTER.astype(np.float32), strict=True)


def test_a_weight_that_was_changed_since_is_exported_as_changed():
    model = one_weight()
    set_master(model, MASTER)
    # Only the second entry is no rounding of its master.
    model.set_weights([np.float16([[1, 3]])])
    (weight,) = keras_mp.export_weights(model)
    np.testing.assert_array_equal(weight, np.float32([[1 + 2.0**-12, 3]]), strict=True)


def test_a_weight_under_stochastic_rounding_is_exported_from_its_master():
    model = one_weight(optimizer=keras_mp.wrap("sgd", 1, rounding="stochastic"))
    model.optimizer.master_weights[0].assign(MASTER)
    for stored in (1.0, 1 + 2.0**-10):  # both are roundings of 1 + 2**-12
        model.set_weights([np.float16([[stored, -1.5]])])
        (weight,) = keras_mp.export_weights(model)
        np.testing.assert_array_equal(weight, MASTER.astype(np.float32), strict=True)


@EACH_DTYPE
@pytest.mark.parametrize(
    ("policy", "optimizer"),
    [
        ("float32", None),
        ("mixed_float16", None),
        ("float32", keras.optimizers.SGD),
        ("float64", keras.optimizers.SGD),
    ],
)
def test_a_weight_without_a_master_is_exported_as_stored(policy, optimizer, dtype):
    model = one_weight(policy, optimizer() if optimizer else None)
    model.set_weights([MASTER])
    (weight,) = keras_mp.export_weights(model, dtype)
    np.testing.assert_array_equal(weight, MASTER.astype(DTYPES[dtype]), strict=True)


@EACH_DTYPE
@pytest.mark.parametrize("compiled", [True, False])
def test_a_model_whose_optimizer_knows_no_weights_yet(compiled, dtype):
    layer = keras.layers.Dense(2, use_bias=False, dtype="float16")
    model = keras.Sequential([keras.Input((1,)), layer])
    if compiled:
        model.compile(keras_mp.wrap("sgd"), "mse")
    model.set_weights([np.float16([[0.5, -1.5]])])
    (weight,) = keras_mp.export_weights(model, dtype)
    expected = np.array([[0.5, -1.5]], DTYPES[dtype])
    np.testing.assert_array_equal(weight, expected, strict=True)


@pytest.mark.parametrize("policy", ["float16", "mixed_float16", "bfloat16"])
def test_float16_saturates(policy):
    model = one_weight(policy)
    set_master(model, [[1e6, -65520.0]])
    (weight,) = keras_mp.export_weights(model, "float16")
    np.testing.assert_array_equal(weight, np.float16([[65504, -65504]]), strict=True)
    (weight,) = keras_mp.export_weights(model, "float32")
    np.testing.assert_array_equal(weight, np.float32([[1e6, -65520]]), strict=True)


def test_bfloat16_rounds_the_master_not_the_stored_half():
    # 1 + 2**-8 is the midpoint of two bfloat16 and goes to 1, the even one. Just
    # above it the master goes to 1 + 2**-7, while the stored half is the midpoint.
    model = one_weight()
    set_master(model, [[1 + 2.0**-8 + 2.0**-16, 0]])
    assert model.get_weights()[0][0, 0] == np.float16(1 + 2.0**-8)
    (weight,) = keras_mp.export_weights(model, "bfloat16")
    assert weight[0, 0] == ml_dtypes.bfloat16(1 + 2.0**-7)


# A model with weights of every kind.


class CountsBatches(keras.layers.Layer):
    """Has a weight that is an integer."""

    def build(self, input_shape):
        self.count = self.add_weight(
            shape=(2,), initializer="ones", dtype="int32", trainable=False, name="count"
        )

    def call(self, inputs):
        return inputs


def many_kinds(policy):
    """Trained, frozen and non-trainable weights, and integers."""
    keras.utils.set_random_seed(1)
    model = keras.Sequential(
        [
            keras.Input((3,)),
            keras.layers.Dense(4, dtype=policy),
            keras.layers.BatchNormalization(dtype=policy),
            CountsBatches(dtype=policy),
            keras.layers.Dense(4, dtype=policy, trainable=False),
            keras.layers.Dense(1, dtype=policy),
        ]
    )
    optimizer = keras_mp.wrap(keras.optimizers.SGD(0.01), 8)
    model.compile(optimizer, "mse", jit_compile=False)
    return model


def trained(policy):
    model = many_kinds(policy)
    x = np.random.default_rng(0).random((8, 3), "float32")
    model.fit(x, x[:, :1], epochs=2, verbose=0)
    return model


def dtypes_of(weights):
    return [w.dtype.name for w in weights]


@pytest.mark.parametrize("policy", ["float16", "mixed_float16"])
def test_order_and_dtype_of_every_weight(policy):
    model = trained(policy)
    stored = model.get_weights()
    integers = [w.dtype.kind in "iu" for w in stored]
    assert sum(integers) == 1
    for dtype in DTYPES:
        exported = keras_mp.export_weights(model, dtype)
        assert len(exported) == len(stored) == len(model.weights)
        for weight, one, integer in zip(exported, stored, integers, strict=True):
            assert isinstance(weight, np.ndarray)
            assert weight.shape == one.shape
            if integer:
                np.testing.assert_array_equal(weight, one, strict=True)
                continue
            assert weight.dtype == DTYPES[dtype]
            # One rounding of the master to float16, and one to `dtype`: a relative
            # 2**-11 and 2**-8, or half the smallest float16.
            np.testing.assert_allclose(
                weight.astype("float64"),
                one.astype("float64"),
                rtol=2.0**-11 + 2.0**-8,
                atol=2.0**-25,
            )


@pytest.mark.slow
def test_an_export_is_taken_by_the_same_model_under_another_policy():
    model = trained("float16")
    masters = {
        w.path: m.numpy()
        for w, m in zip(
            model.trainable_variables, model.optimizer.master_weights, strict=True
        )
    }
    exported = keras_mp.export_weights(model, "float32")

    single = many_kinds("float32")
    single.set_weights(exported)
    assert dtypes_of(single.get_weights()).count("float32") == len(single.weights) - 1
    for old, new in zip(model.weights, single.weights, strict=True):
        expected = masters.get(old.path, old.numpy())
        np.testing.assert_array_equal(new.numpy(), expected.astype(new.dtype))
    # More than float16 was carried over.
    assert any(np.any(m != m.astype(np.float16)) for m in masters.values())

    half = many_kinds("float16")
    half.set_weights(keras_mp.export_weights(model, "float16"))
    for old, new in zip(model.get_weights(), half.get_weights(), strict=True):
        np.testing.assert_array_equal(old, new, strict=True)


def test_an_export_of_a_shared_weight_stands_once():
    dense = keras.layers.Dense(2, use_bias=False, dtype="float16")
    inputs = keras.Input((2,))
    model = keras.Model(inputs, dense(dense(inputs)))
    model.compile(keras_mp.wrap("sgd"), "mse")
    model.optimizer.build(model.trainable_variables)
    (weight,) = keras_mp.export_weights(model)
    np.testing.assert_array_equal(weight, dense.kernel.numpy().astype(np.float32))


def test_the_arrays_are_copies():
    model = one_weight("float32")
    model.set_weights([MASTER])
    (weight,) = keras_mp.export_weights(model)
    model.set_weights([np.zeros((1, 2))])
    np.testing.assert_array_equal(weight, MASTER.astype(np.float32))


@pytest.mark.parametrize(
    "dtype",
    ["float8", "int32", "half", "mixed_float16", "", None, np.float32],
    ids=str,
)
def test_another_dtype_is_refused(dtype):
    with pytest.raises(ValueError) as caught:
        keras_mp.export_weights(one_weight(), dtype)
    message = str(caught.value)
    assert "`dtype` must be one of" in message
    assert f"Received: dtype={dtype!r}" in message
    assert "float16" in message and "float32" in message
