"""Layers under `Float16ProductsPolicy`: FP16 into products, FP32 out of them."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_mp

L = keras_mp.layers
PLAIN, SCALED = (keras_mp.Float16ProductsPolicy(scaled) for scaled in (False, True))
POLICIES = {"plain": PLAIN, "scaled": SCALED}


def rounded(x):
    return np.asarray(x, np.float32).astype(np.float16).astype(np.float64)


def numbers(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype("float32")


def dense(policy):
    return L.Dense(4, "gelu", dtype=policy), numbers(3, 5)


def dense_of_sequences(policy):
    return L.Dense(4, "softmax", dtype=policy), numbers(2, 3, 5)


def einsum_dense(policy):
    return L.EinsumDense("abc,cde->abde", (None, 2, 3), dtype=policy), numbers(2, 3, 5)


def einsum_dense_with_bias(policy):
    layer = L.EinsumDense("abc,cd->abd", (3, 4), bias_axes="bd", dtype=policy)
    return layer, numbers(2, 3, 5)


def attention(policy):
    attends = L.MultiHeadAttention(2, 4, dtype=policy)
    x = numbers(2, 3, 5)
    attends.build(x.shape, x.shape)
    return keras.layers.Lambda(lambda x: attends(x, x), dtype="float32"), x


def grouped_attention(policy):
    attends = L.GroupQueryAttention(4, 2, 1, dtype=policy)
    x = numbers(2, 3, 5)
    attends.build(x.shape, x.shape)
    return keras.layers.Lambda(lambda x: attends(x, x), dtype="float32"), x


LAYERS = {
    "dense": dense,
    "dense-of-sequences": dense_of_sequences,
    "einsum-dense": einsum_dense,
    "einsum-dense-with-bias": einsum_dense_with_bias,
    "attention": attention,
    "grouped-attention": grouped_attention,
}
MODES = {
    "eager": lambda f: f,
    "graph": tf.function,
    "xla": lambda f: tf.function(f, jit_compile=True),
}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("name", LAYERS)
def test_results_are_fp32_and_near_those_of_fp32(name, policy, mode):
    layer, x = LAYERS[name](POLICIES[policy])
    keras.utils.set_random_seed(0)
    result = MODES[mode](layer)(tf.constant(x))
    keras.utils.set_random_seed(0)
    expected = LAYERS[name]("float32")[0](x)
    assert result.dtype == "float32"
    # Factors err by 2^-11; no product here has more than 12 summands of that size.
    np.testing.assert_allclose(result, expected, atol=12 * 2.0**-10)
    assert not np.array_equal(result, expected)  # FP16 has gone in


@pytest.mark.parametrize("policy", POLICIES)
def test_a_product_beyond_fp16_and_its_gradients(policy):
    layer = L.Dense(
        1, use_bias=False, kernel_initializer="ones", dtype=POLICIES[policy]
    )
    x = tf.fill((1, 4), 3e4)
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = layer(x)
    grad_x, grad_kernel = tape.gradient(y, [x, layer.kernel.value])
    assert y.numpy().tolist() == [[120_000.0]] and y.dtype == tf.float32
    assert grad_x.numpy().tolist() == [[1.0] * 4]
    assert grad_kernel.numpy().ravel().tolist() == [30_000.0] * 4


def test_small_gradients_are_kept_without_a_loss_scale():
    def kernel_gradient(policy):
        layer = L.Dense(1, use_bias=False, kernel_initializer="ones", dtype=policy)
        x = tf.ones((2, 3))
        layer.build(x.shape)
        with tf.GradientTape() as tape:
            loss = 1e-9 * tf.reduce_sum(tf.cast(layer(x), tf.float32))
        return tape.gradient(loss, layer.kernel.value).numpy().ravel()

    assert kernel_gradient(PLAIN).tolist() == [0.0] * 3
    np.testing.assert_allclose(kernel_gradient(SCALED), [2e-9] * 3, rtol=2.0**-10)


@pytest.mark.parametrize("jit_compile", [False, True], ids=["graph", "xla"])
@pytest.mark.parametrize("policy", POLICIES)
def test_a_model_trains_and_is_loaded(policy, jit_compile, tmp_path):
    keras.config.set_dtype_policy(POLICIES[policy])
    inputs = keras.Input((5, 8))
    x = L.MultiHeadAttention(2, 4)(inputs, inputs)
    x = keras.layers.LayerNormalization()(L.Dense(8, "relu")(x) + inputs)
    model = keras.Model(inputs, L.Dense(1)(keras.layers.Flatten()(x)))
    model.compile(keras_mp.wrap("adam"), "mse", jit_compile=jit_compile)
    x = numbers(32, 5, 8)
    y = x[:, 0, :1]
    losses = model.fit(x, y, epochs=3, verbose=0).history["loss"]
    assert losses[-1] < losses[0] and int(model.optimizer.skipped_steps) == 0
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    assert loaded.layers[1].dtype_policy == POLICIES[policy]
    np.testing.assert_array_equal(loaded(x), model(x))


def test_to_keras_leaves_no_policy_of_keras_mp():
    keras.config.set_dtype_policy(PLAIN)
    model = keras.Sequential([keras.Input((3,)), L.Dense(2)])
    keras_mp.to_keras(model)
    assert type(model.layers[0].dtype_policy) is keras.DTypePolicy


def test_another_dtype_of_weights_is_refused():
    with pytest.raises(ValueError, match=r"`variable_dtype` must be.*bfloat16"):
        keras_mp.Float16ProductsPolicy(variable_dtype="bfloat16")


def test_policies_are_compared_by_what_they_say():
    policy = keras_mp.Float16ProductsPolicy
    assert policy() == policy(False, "float32") != policy(scaled=True)
    assert policy() != keras.DTypePolicy("float32")
    assert policy.from_config(SCALED.get_config()) == SCALED
