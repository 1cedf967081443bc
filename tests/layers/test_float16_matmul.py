"""Layers under `Float16MatmulPolicy`: FP16 into products, FP32 out of them.

tests/layers/test_contract.py compares them with float64.
"""

import zipfile

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_mp
from keras_mp.ops import float16_matmul

L = keras_mp.layers
PLAIN, SCALED = (keras_mp.Float16MatmulPolicy(scaled) for scaled in (False, True))
POLICIES = {"plain": PLAIN, "scaled": SCALED}
EACH_POLICY = pytest.mark.parametrize("policy", POLICIES.values(), ids=POLICIES)
# FP16 rounds it to 1.
ABOVE_ONE = np.float32(1 + 2.0**-12)
ONES = {"use_bias": False, "kernel_initializer": "ones"}


def numbers(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype("float32")


def of_itself(layer):
    return lambda x: layer(x, x)


def of_a_pair(layer):
    return lambda x: layer([x, x])


def reverse(layer):
    return lambda x: layer(x, reverse=True)


# What multiplies, the shape of its input, and the number of its products.
PRODUCTS = {
    "dense": (lambda p: L.Dense(1, **ONES, dtype=p), (2, 1), 1),
    "dense-of-sequences": (lambda p: L.Dense(1, **ONES, dtype=p), (2, 3, 1), 1),
    "einsum-dense": (
        lambda p: L.EinsumDense(
            "abc,cd->abd", (None, 1), kernel_initializer="ones", dtype=p
        ),
        (2, 3, 1),
        1,
    ),
    "einsum-dense-with-bias": (
        lambda p: L.EinsumDense(
            "abc,cd->abd", (3, 1), "softplus", "bd", "ones", dtype=p
        ),
        (2, 3, 1),
        1,
    ),
    "reversible-embedding": (
        lambda p: reverse(
            L.ReversibleEmbedding(1, 1, embeddings_initializer="ones", dtype=p)
        ),
        (2, 1),
        1,
    ),
    "reversible-embedding-capped": (
        lambda p: reverse(L.ReversibleEmbedding(1, 1, logit_soft_cap=9.0, dtype=p)),
        (2, 1),
        1,
    ),
    "heads": (
        lambda p: of_itself(L.MultiHeadAttention(1, 1, **ONES, dtype=p)),
        (2, 3, 1),
        6,
    ),
    "groups": (
        lambda p: of_itself(L.GroupQueryAttention(1, 1, 1, **ONES, dtype=p)),
        (2, 3, 1),
        6,
    ),
    "attention": (lambda p: of_a_pair(L.Attention(dtype=p)), (2, 3, 1), 2),
    "additive-attention": (
        lambda p: of_a_pair(L.AdditiveAttention(dtype=p)),
        (2, 3, 1),
        1,
    ),
    "dot": (lambda p: of_a_pair(L.Dot(axes=1, dtype=p)), (2, 1), 1),
    "conv1d": (lambda p: L.Conv1D(1, 1, **ONES, dtype=p), (2, 3, 1), 1),
    "conv2d": (lambda p: L.Conv2D(1, 1, **ONES, dtype=p), (2, 3, 3, 1), 1),
    "conv3d": (lambda p: L.Conv3D(1, 1, **ONES, dtype=p), (2, 2, 2, 2, 1), 1),
}


@pytest.fixture
def products(monkeypatch):
    """The dtypes of the factors of each product, as they are multiplied."""
    found, multiply = [], float16_matmul.fp16_gemm

    def record(a, b, *args, **kwargs):
        found.append((a.dtype.name, b.dtype.name))
        return multiply(a, b, *args, **kwargs)

    monkeypatch.setattr(float16_matmul, "fp16_gemm", record)
    return found


@EACH_POLICY
@pytest.mark.parametrize(("make", "shape", "count"), PRODUCTS.values(), ids=PRODUCTS)
def test_every_product_is_of_fp16_numbers(make, shape, count, policy, products):
    layer = make(policy)
    expected = layer(tf.ones(shape))
    products.clear()
    found = layer(tf.fill(shape, tf.constant(ABOVE_ONE)))
    assert products == [("float16", "float16")] * count
    assert found.dtype == "float32"
    np.testing.assert_array_equal(found, expected)


OTHERS = {
    "conv": (lambda p: L.Conv2D(1, 2, **ONES, dtype=p), (2, 4, 4, 1)),
    "conv-strides": (lambda p: L.Conv2D(1, 1, 2, **ONES, dtype=p), (2, 4, 4, 1)),
    "depthwise": (lambda p: L.DepthwiseConv2D(2, dtype=p), (2, 4, 4, 16)),
    "separable": (lambda p: L.SeparableConv2D(1, 2, dtype=p), (2, 4, 4, 16)),
    "lstm": (lambda p: L.LSTM(2, dtype=p), (2, 3, 2)),
    "keras-dense": (lambda p: keras.layers.Dense(2, dtype=p), (2, 2)),
    "layer-norm": (lambda p: L.LayerNormalization(dtype=p), (2, 3)),
}


@pytest.mark.parametrize(("make", "shape"), OTHERS.values(), ids=OTHERS)
def test_all_others_compute_in_fp32(make, shape, products):
    layers = make(PLAIN), make("float32")
    x = numbers(*shape)
    for layer in layers:
        layer.build(shape)
    layers[0].set_weights(layers[1].get_weights())
    np.testing.assert_array_equal(layers[0](x), layers[1](x))
    assert not products


ACTIVATIONS = (None, "relu", "tanh", "sigmoid", "gelu", "silu", "softmax")


@EACH_POLICY
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_bias_and_activation_are_fp32(activation, policy):
    """The FP16 numbers of the product have exact sums here; the bias has 24 bits."""
    layer = L.Dense(2, activation, kernel_initializer="ones", dtype=policy)
    reference = keras.layers.Dense(2, activation, dtype="float64")
    x = np.float32([[0.5, 0.25], [-1.5, 0.125]])
    for each in (layer, reference):
        each.build(x.shape)
        each.set_weights([np.ones((2, 2)), np.float32([0.1, -0.3])])
    found, exact = layer(x), reference(x)
    assert found.dtype == "float32"
    # Two roundings on the way to an activation, and what TensorFlow's own err by.
    np.testing.assert_allclose(found, exact, rtol=2.0**-20, atol=2.0**-22)


@EACH_POLICY
def test_a_product_beyond_fp16_and_its_gradients(policy):
    layer = L.Dense(1, **ONES, dtype=policy)
    x = tf.fill((1, 4), 3e4)
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = layer(x)
    grad_x, grad_kernel = tape.gradient(y, [x, layer.kernel.value])
    assert y.numpy().tolist() == [[120_000.0]] and y.dtype == tf.float32
    assert grad_x.numpy().tolist() == [[1.0] * 4]
    assert grad_kernel.numpy().ravel().tolist() == [30_000.0] * 4


def test_an_input_beyond_fp16_needs_scales():
    x = tf.fill((1, 4), 3e5)
    results = [L.Dense(1, **ONES, dtype=p)(x).numpy().item() for p in (PLAIN, SCALED)]
    # 3e5 = 2^18 * 1.14, of whose 11 bits the last is worth 2^8.
    assert results[0] == np.inf and abs(results[1] - 1.2e6) <= 4 * 2.0**7


@EACH_POLICY
def test_scores_beyond_fp16(policy):
    query = np.full((1, 1, 2), 300.0, "float32")  # 300 * 300 * 2 = 180000
    result = L.Attention(use_scale=True, dtype=policy)([query, query])
    np.testing.assert_array_equal(result, query)


def kernel_gradient(policy, slope):
    layer = L.Dense(1, **ONES, dtype=policy)
    x = tf.ones((2, 3))
    layer.build(x.shape)
    with tf.GradientTape() as tape:
        loss = slope * tf.reduce_sum(layer(x))
    return tape.gradient(loss, layer.kernel.value).numpy().ravel().tolist()


def test_small_gradients_are_kept_without_a_loss_scale():
    assert kernel_gradient(PLAIN, 2.0**-30) == [0.0] * 3
    assert kernel_gradient(SCALED, 2.0**-30) == [2.0**-29] * 3


def test_large_gradients_are_not_clipped():
    assert kernel_gradient(PLAIN, 2.0**20) == [np.inf] * 3
    assert kernel_gradient(SCALED, 2.0**20) == [2.0**21] * 3


@EACH_POLICY
def test_a_gradient_beyond_fp16_skips_the_step_unless_it_is_scaled(policy):
    layer = L.Dense(1, **ONES, dtype=policy)
    model = keras.Sequential([keras.Input((1,)), layer])
    optimizer = keras_mp.wrap(keras.optimizers.SGD(2.0**-20), loss_scale=1)
    model.compile(optimizer, lambda y, z: 2.0**18 * keras.ops.sum(z), jit_compile=False)
    model.fit(np.ones((1, 1)), np.ones((1, 1)), verbose=0)
    is_skipped = policy is PLAIN
    assert int(optimizer.skipped_steps) == is_skipped
    assert layer.kernel.numpy().item() == (1.0 if is_skipped else 0.75)


def model_of(policy):
    """Attention, a residual sum and a pointwise convolution, each in its policy."""
    keras.utils.set_random_seed(0)
    keras.config.set_dtype_policy(policy)
    inputs = keras.Input((5, 8))
    x = L.MultiHeadAttention(2, 4)(inputs, inputs)
    x = keras.layers.LayerNormalization()(L.Dense(8, "relu")(x) + inputs)
    x = L.Conv1D(4, 1, activation="gelu")(x)
    outputs = L.Dense(1)(keras.layers.Flatten()(x))
    keras.config.set_dtype_policy("float32")
    return keras.Model(inputs, outputs)


def data():
    x = numbers(32, 5, 8)
    return x, x[:, 0, :1]


WAYS = {
    "eager": {"run_eagerly": True},
    "graph": {"jit_compile": False},
    "xla": {"jit_compile": True},
}


@pytest.mark.xslow_except("plain-xla")
@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
@EACH_POLICY
def test_a_model_trains_as_in_fp32(policy, way):
    losses = {}
    for name, each in (("ours", policy), ("fp32", "float32")):
        model = model_of(each)
        model.compile(keras_mp.wrap("adam", loss_scale=1), "mse", **way)
        losses[name] = model.fit(*data(), epochs=3, verbose=0).history["loss"]
        assert int(model.optimizer.skipped_steps) == 0
    assert losses["ours"][-1] < losses["ours"][0]
    # Products err by 2^-10 of their size, of either sign.
    np.testing.assert_allclose(losses["ours"], losses["fp32"], rtol=2.0**-8)


@pytest.mark.slow
def test_without_a_loss_scale_small_gradients_train_if_scaled():
    """A loss of 1e-9 of the error, whose gradients FP16 cannot hold."""
    changes = {}
    for name, policy, loss_scale in (
        ("fp32", "float32", 1.0),
        ("plain", PLAIN, 1.0),
        ("plain, with a loss scale", PLAIN, 2.0**20),
        ("scaled", SCALED, 1.0),
    ):
        model = model_of(policy)
        before = np.concatenate([w.ravel() for w in model.get_weights()])
        model.compile(
            keras_mp.wrap(keras.optimizers.SGD(1e7), loss_scale),
            lambda y, z: 1e-9 * keras.losses.mean_squared_error(y, z),
            jit_compile=False,
        )
        model.fit(*data(), epochs=3, verbose=0)
        after = np.concatenate([w.ravel() for w in model.get_weights()])
        changes[name] = after - before
    size = np.linalg.norm(changes["fp32"])
    # Products err by 2^-10 of their size, and a gradient goes through six of them.
    for name in ("scaled", "plain, with a loss scale"):
        assert np.linalg.norm(changes[name] - changes["fp32"]) < 0.01 * size
    assert np.linalg.norm(changes["plain"] - changes["fp32"]) > 0.5 * size


@pytest.mark.slow
@EACH_POLICY
def test_on_two_replicas(policy, strategy):
    """Each replica has scales of its own."""
    with strategy.scope():
        keras.config.set_dtype_policy(policy)
        model = keras.Sequential([keras.Input((1,)), L.Dense(1, **ONES)])
        model.compile(keras_mp.wrap(keras.optimizers.SGD(0.25), 1), "mse")
    x = np.float32([[1.0], [2.0], [4.0], [64.0]])
    model.fit(x, x - 1, batch_size=4, verbose=0)
    # The gradient is the mean of 2 * x.
    assert model.get_weights()[0].item() == 1 - 0.25 * 2 * 71 / 4


@EACH_POLICY
def test_a_model_is_loaded(policy, tmp_path):
    model = model_of(policy)
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    for before, after in zip(model.layers, loaded.layers, strict=True):
        if type(before).__module__.startswith("keras_mp"):
            assert after.dtype_policy == policy
        assert before.compute_dtype == after.compute_dtype
    x, _ = data()
    np.testing.assert_array_equal(loaded(x), model(x))
    cloned = keras.models.clone_model(model)
    cloned.set_weights(model.get_weights())
    np.testing.assert_array_equal(cloned(x), model(x))


def test_a_map_of_policies_has_one_for_each_layer(tmp_path):
    # Before a model is saved, its name is part of a path.
    policies = {"(.*/)?plain": PLAIN, "(.*/)?scaled": SCALED}
    policies = keras.dtype_policies.DTypePolicyMap("float32", policies)
    names = ("plain", "scaled", "neither")
    layers = [L.Dense(1, **ONES, name=name, dtype=policies) for name in names]
    model = keras.Sequential([keras.Input((1,)), *layers])
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    for made in (model, loaded):
        x = np.float32([[2.0**17 * ABOVE_ONE]])
        found = [layer(x).numpy().item() for layer in made.layers]
        assert found == [np.inf, 2.0**17, x.item()]


STORED = ("float32", "mixed_float16", "float16", "bfloat16")


@EACH_POLICY
@pytest.mark.parametrize("stored", STORED)
def test_the_policy_of_a_built_layer_can_be_set(stored, policy):
    layer = L.Dense(1, kernel_initializer="ones", dtype=stored)
    layer.build((1, 1))
    dtypes = [w.dtype for w in layer.weights]
    layer.dtype_policy = policy
    with tf.GradientTape() as tape:
        y = layer(np.float32([[ABOVE_ONE]]))
    gradients = tape.gradient(y, layer.trainable_variables)
    assert y.dtype == "float32" and y.numpy().item() == 1.0
    assert [w.dtype for w in layer.weights] == dtypes
    assert [g.dtype.name for g in gradients] == dtypes
    layer.dtype_policy = "float32"
    assert layer(np.float32([[ABOVE_ONE]])).numpy().item() == ABOVE_ONE


def test_weights_that_are_stored_in_fp16_stay_so_in_a_file(tmp_path):
    policy = keras_mp.Float16MatmulPolicy(variable_dtype="float16")
    model = keras.Sequential([keras.Input((1,)), L.Dense(1, dtype=policy)])
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    assert loaded.layers[0].dtype_policy == policy
    assert [w.dtype for w in loaded.weights] == ["float16"] * 2


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["int8", "float8", "int4"])
def test_quantized_is_what_keras_computes(mode):
    x, results = numbers(4, 8), []
    for package, policy in ((L, PLAIN), (keras.layers, "float32")):
        keras.utils.set_random_seed(0)
        layer = package.Dense(2, dtype=policy)
        layer.build(x.shape)
        layer.quantize(mode)
        results.append(layer(x))
    np.testing.assert_array_equal(*results)


def test_lora_is_trained():
    layer = L.Dense(2, lora_rank=1, dtype=SCALED)
    layer.build((3, 4))
    layer.lora_kernel_b.assign(tf.ones((1, 2)))
    with tf.GradientTape() as tape:
        y = layer(numbers(3, 4))
    gradients = tape.gradient(y, layer.trainable_variables)
    assert len(gradients) == 3 and all(np.all(g != 0) for g in gradients)


def test_a_conversion_makes_layers_that_multiply_in_fp16(products):
    keras.config.set_dtype_policy(PLAIN)
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1, **ONES)])
    x = np.float32([[ABOVE_ONE]])
    assert model(x).numpy().item() == ABOVE_ONE and not products
    keras_mp.convert(model)
    assert model(x).numpy().item() == 1.0 and len(products) == 1


def test_to_keras_leaves_no_policy_of_keras_mp(tmp_path):
    keras.config.set_dtype_policy(SCALED)
    model = keras.Sequential([keras.Input((3,)), L.Dense(2), keras.layers.Dropout(0.1)])
    keras_mp.to_keras(model)
    assert {type(x.dtype_policy) for x in model.layers} == {keras.DTypePolicy}
    model.save(tmp_path / "model.keras")
    with zipfile.ZipFile(tmp_path / "model.keras") as file:
        assert b"keras_mp" not in file.read("config.json")


def test_to_keras_takes_policies_out_of_maps(tmp_path):
    policies = keras.dtype_policies.DTypePolicyMap(PLAIN, {"one": SCALED})
    layers = [L.Dense(1, **ONES, name=name, dtype=policies) for name in ("one", "two")]
    model = keras.Sequential([keras.Input((1,)), *layers])
    keras_mp.to_keras(model)
    x = np.float32([[ABOVE_ONE]])
    assert model(x).numpy() == x
    model.save(tmp_path / "model.keras")
    with zipfile.ZipFile(tmp_path / "model.keras") as file:
        assert b"keras_mp" not in file.read("config.json")
    assert keras.models.load_model(tmp_path / "model.keras")(x).numpy() == x


def test_to_keras_reads_weights_that_are_stored_in_fp16():
    policy = keras_mp.Float16MatmulPolicy(variable_dtype="float16")
    layer = keras.layers.Conv1D(1, 1, **ONES, dtype=policy)
    model = keras.Sequential([keras.Input((1, 1)), layer])
    assert keras_mp.to_keras(model)(np.ones((1, 1, 1))).dtype == "float16"


def test_another_dtype_of_weights_is_refused():
    with pytest.raises(ValueError, match=r"`variable_dtype` must be.*bfloat16"):
        keras_mp.Float16MatmulPolicy(variable_dtype="bfloat16")


def test_policies_are_compared_by_what_they_say():
    policy = keras_mp.Float16MatmulPolicy
    assert policy() == policy(False, "float32") != policy(scaled=True)
    assert policy() != keras.DTypePolicy("float32") != policy()
    assert policy.from_config(SCALED.get_config()) == SCALED
    serialized = keras.dtype_policies.serialize(SCALED)
    assert keras.dtype_policies.get(serialized) == SCALED
    assert {PLAIN, SCALED, policy()} == {PLAIN, SCALED}
