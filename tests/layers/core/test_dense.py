"""Dense and EinsumDense: tests beyond those of tests/layers/test_contract.py."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_mp import layers

PAIRS = pytest.mark.parametrize(
    "package", [keras.layers, layers], ids=["keras", "ours"]
)
LAYERS = {
    "dense": lambda package, dtype: package.Dense(1, dtype=dtype),
    "einsum": lambda package, dtype: package.EinsumDense(
        "ab,bc->ac", 1, bias_axes="c", dtype=dtype
    ),
}
EACH = pytest.mark.parametrize("name", LAYERS)


def kernel_gradient(layer, x, slope):
    x = tf.constant(x, "float16")
    layer(x)
    with tf.GradientTape() as tape:
        y = layer(x)
    return tape.gradient(y, layer.trainable_variables, tf.fill(y.shape, slope))


@EACH
@PAIRS
def test_the_gradient_of_an_fp32_kernel_is_not_flushed(name, package):
    # 2**-15 * 2**-15 = 9.3e-10; the smallest FP16 number is 2**-24 = 6e-8.
    layer = LAYERS[name](package, "mixed_float16")
    slope = tf.constant(2.0**-15, "float16")
    kernel, bias = kernel_gradient(layer, [[2.0**-15]], slope)
    assert kernel.dtype == bias.dtype == tf.float32
    assert kernel.numpy() == (0.0 if package is keras.layers else 2.0**-30)
    assert bias.numpy() == 2.0**-15


@EACH
def test_a_sum_of_4096_terms(name):
    # An FP16 sum of 0.1 stops at 256, where the spacing is 0.25. Here: one rounding,
    # and an FP32 sum of 4096 terms of one sign.
    layer = LAYERS[name](layers, "mixed_float16")
    x = np.full((1, 4096), 0.1, "float16")
    layer(x)
    layer.set_weights([np.ones((4096, 1)), np.zeros(1)])
    expected = np.sum(x, dtype="float64")
    found = np.float64(layer(x))
    assert abs(found - expected) <= expected * (2.0**-11 + 4096 * 2.0**-24)


@EACH
def test_the_bias_gradient_of_4096_rows(name):
    # In FP16 the 2049th row would not count: 2048 + 1 is rounded to 2048.
    layer = LAYERS[name](layers, "mixed_float16")
    _, bias = kernel_gradient(layer, np.ones((4097, 1)), tf.constant(1.0, "float16"))
    assert bias.numpy() == 4097.0


def test_an_activation_is_applied_before_the_rounding():
    # relu(2049 - 2048) is 1; rounded before the bias, 2049 is 2048.
    layer = layers.Dense(1, activation="relu", dtype="float16")
    layer.build((None, 3))
    layer.set_weights([np.ones((3, 1)), np.array([-2048.0])])
    assert layer(np.float16([[1024, 1024, 1]])).numpy() == 1.0


def test_lora_is_that_of_keras():
    made = [
        package.Dense(3, lora_rank=2, dtype="mixed_float16")
        for package in (keras.layers, layers)
    ]
    x = np.float16(np.eye(4, 5))
    rng = np.random.default_rng(0)
    weights = []
    for layer in made:
        layer.build(x.shape)
        weights = weights or [rng.uniform(-1, 1, w.shape) for w in layer.weights]
        layer.set_weights(weights)
    theirs, ours = made
    assert [w.trainable for w in ours.weights] == [w.trainable for w in theirs.weights]
    # Keras rounds A, B, A @ B and the sum; ours the sum. None exceeds 3, and A @ B has
    # two terms. The last rounding is that of the result.
    np.testing.assert_allclose(ours(x), theirs(x), rtol=0, atol=3 * 8 * 2.0**-11)


@pytest.mark.slow
@EACH
@pytest.mark.parametrize("mode", ["int8", "float8"])
def test_quantized_is_what_keras_computes(name, mode):
    x = np.float32(np.random.default_rng(0).uniform(-1, 1, (4, 8)))
    results = []
    for package in (keras.layers, layers):
        keras.utils.set_random_seed(0)
        layer = LAYERS[name](package, "mixed_bfloat16")
        layer.build(x.shape)
        layer.quantize(mode)
        results.append(layer(x).numpy())
    np.testing.assert_array_equal(*results)


def test_a_subclass_is_not_quantized():
    class Mine(layers.Dense):
        pass

    layer = Mine(2)
    layer.build((1, 2))
    with pytest.raises(NotImplementedError):
        layer.quantize("int8")


@pytest.mark.parametrize("outer", ["float32", "mixed_float16"])
def test_inside_a_layer_of_another_policy(outer):
    # TimeDistributed calls the inner layer in its own dtype, and Keras promotes.
    results = []
    for package in (keras.layers, layers):
        keras.utils.set_random_seed(0)
        inner = package.Dense(2, dtype="mixed_float16")
        layer = keras.layers.TimeDistributed(inner, dtype=outer)
        results.append(layer(np.float32(np.eye(3))[None]))
    assert results[0].dtype == results[1].dtype
    # Of a unit vector: the kernel itself, rounded or not, in both.
    np.testing.assert_array_equal(*results)


@pytest.mark.parametrize("known", [True, False])
def test_summed_dimensions_that_changed_places_are_refused(known):
    """Sizes 6 x 4 and 4 x 6 do not match, though both have 24 values."""
    layer = layers.EinsumDense("abc,bcd->ad", (5,), dtype="mixed_float16")
    layer.build((None, 4, 6))
    shape = [2, 6, 4] if known else [None, None, None]
    call = tf.function(layer, input_signature=[tf.TensorSpec(shape, tf.float16)])
    message = "one size. Received: 4 and 6" if known else "not compatible"
    with pytest.raises((ValueError, tf.errors.InvalidArgumentError), match=message):
        call(tf.ones((2, 6, 4), tf.float16))


def test_sparse_inputs_are_those_of_keras():
    x = tf.sparse.from_dense(tf.constant([[0.0, 2.0]], "float16"))
    layer = layers.Dense(1, kernel_initializer="ones", dtype="float16")
    assert np.array(layer(x)) == 2.0


EQUATIONS = {
    "transposed-kernel": ("abc,dc->abd", (None, 3)),
    "output-transposed": ("abc,cd->adb", (3, None)),
    "inner-first": ("abc,bd->acd", (None, 3)),
    "a-sum-of-one-operand": ("abc,cd->ad", 3),
}


@pytest.mark.parametrize(("equation", "shape"), EQUATIONS.values(), ids=EQUATIONS)
@pytest.mark.parametrize("with_bias", [False, True])
def test_equations(equation, shape, with_bias):
    bias = "d" if with_bias else None
    made = [
        package.EinsumDense(equation, shape, bias_axes=bias, dtype=dtype)
        for package, dtype in ((keras.layers, "float64"), (layers, "mixed_float16"))
    ]
    x = np.float16(np.random.default_rng(0).uniform(-1, 1, (2, 4, 5)))
    rng = np.random.default_rng(1)
    weights = []
    for layer in made:
        layer.build(x.shape)
        weights = weights or [
            np.float16(rng.uniform(-1, 1, w.shape)) for w in layer.weights
        ]
        layer.set_weights(weights)
    expected, found = made[0](x.astype("float64")), made[1](x)
    assert found.dtype == tf.float16 and found.shape == expected.shape
    # One rounding of at most 6, and an FP32 sum of 6 terms of at most 1.
    np.testing.assert_allclose(
        found, expected, rtol=0, atol=6 * 2.0**-11 + 6 * 6 * 2.0**-24
    )


@EACH
@pytest.mark.parametrize("rows", [0, 1, 217])
def test_any_number_of_rows(name, rows):
    layer = LAYERS[name](layers, "mixed_float16")
    model = keras.Sequential([keras.Input((3,)), layer])
    assert model(np.zeros((rows, 3))).shape == (rows, 1)
