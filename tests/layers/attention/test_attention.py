"""The attention layers: scores that overflow in FP16."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from older_versions import needs

from keras_mp import layers
from keras_mp.ops.attention import has_kernel


def attend(package, policy, jit):
    """Scores of 180,000 and 90,000: the first key takes all the attention."""
    query = np.full((1, 2, 2), 300.0, "float16")
    key = np.float16([[[300, 300], [150, 150]]])
    value = np.float16([[[1, 2], [3, 4]]])
    layer = package.Attention(dtype=policy)
    run = tf.function(lambda: layer([query, value, key]), jit_compile=jit)
    return run().numpy()


def attend_with_heads(package, policy, jit, **arguments):
    """The same with one head, whose projections are the identity."""
    query = np.full((1, 2, 2), 300.0, "float16")
    key = np.float16([[[300, 300], [150, 150]]])
    value = np.float16([[[1, 2], [3, 4]]])
    layer = package.MultiHeadAttention(1, 2, use_bias=False, dtype=policy)
    layer.build(query.shape, value.shape)
    layer.set_weights([np.eye(2).reshape(w.shape) for w in layer.weights])
    run = tf.function(lambda: layer(query, value, key, **arguments), jit_compile=jit)
    return run()


@pytest.mark.parametrize("policy", ["mixed_float16", "float16"])
@pytest.mark.parametrize("attention", [attend, attend_with_heads])
def test_scores_beyond_65504(attention, policy):
    assert np.isnan(attention(keras.layers, policy, False)).any()
    for jit in (False, True):
        result = np.array(attention(layers, policy, jit))
        assert result.dtype == np.float16
        assert result.tolist() == [[[1, 2], [1, 2]]]


@pytest.mark.parametrize("hidden", [[0, 1], [1, 0]])
def test_masked_scores_beyond_65504(hidden):
    mask = np.array([[hidden, hidden]], bool)
    output, weights = attend_with_heads(
        layers, "float16", False, attention_mask=mask, return_attention_scores=True
    )
    row = [1, 2] if hidden[0] else [3, 4]
    assert output.numpy().tolist() == [[row, row]]
    assert weights.numpy().tolist() == [[[hidden, hidden]]]
    assert weights.dtype == tf.float16


# An older Keras with dropout takes the mean of the values that are masked.
@pytest.mark.parametrize(
    "dropout", [0.0, pytest.param(0.5, marks=needs("Keras", 3, 10))]
)
@pytest.mark.parametrize("scores", [False, True])
def test_a_query_without_keys_is_what_it_is_in_keras(scores, dropout):
    x = np.float16([[[1, 0], [0, 1]]])
    mask = np.array([[[0, 0], [1, 1]]], bool)
    results = []
    for package in (keras.layers, layers):
        layer = package.MultiHeadAttention(1, 2, dropout=dropout, dtype="mixed_float16")
        layer.build(x.shape, x.shape)
        layer.set_weights([np.full(w.shape, 0.5) for w in layer.weights])
        found = layer(x, x, attention_mask=mask, return_attention_scores=scores)
        results.append(found[0] if scores else found)
    # Numbers of few bits: nothing is rounded.
    np.testing.assert_array_equal(*results)


HEADS = {
    "heads": ("MultiHeadAttention", {"num_heads": 2, "key_dim": 4}),
    "groups": (
        "GroupQueryAttention",
        {"head_dim": 4, "num_query_heads": 4, "num_key_value_heads": 2},
    ),
}


@pytest.mark.slow_except("heads-0.0")
@pytest.mark.parametrize("dropout", [0.0, 0.5])
@pytest.mark.parametrize("name", HEADS)
def test_the_kernel_makes_no_tensor_of_the_scores(name, dropout):
    kind, arguments = HEADS[name]
    layer = getattr(layers, kind)(dropout=dropout, dtype="float16", **arguments)

    @tf.function
    def slopes(query, value, **more):
        with tf.GradientTape() as tape:
            y = layer(query, value, **more)
            y = y[0] if isinstance(y, tuple) else y
        return tape.gradient(y, layer.trainable_variables)

    def has_scores(**more):
        specs = [tf.TensorSpec([1, length, 6], "float16") for length in (33, 35)]
        graph = slopes.get_concrete_function(*specs, **more).graph
        shapes = [x.shape for op in graph.get_operations() for x in op.outputs]
        return any({33, 35} <= set(shape) for shape in shapes)

    layer.build((1, 33, 6), (1, 35, 6))
    is_plain = not has_kernel("float16")
    for training in (False, True):
        assert has_scores(training=training) == is_plain
    assert has_scores(training=False, return_attention_scores=True)


def attend_inside(dtype, mask, **options):
    """The result of `_compute_attention` for 3 tokens and one head of size 1."""
    layer = layers.MultiHeadAttention(1, 1, dtype=dtype)
    layer.build((1, 3, 1), (1, 3, 1))
    x = tf.constant([[[[1.0]], [[2.0]], [[4.0]]]], dtype)
    output, _ = layer._compute_attention(
        tf.zeros_like(x), tf.zeros_like(x), x, mask, False, **options
    )
    return output[0, :, 0, 0].numpy().tolist()


@pytest.mark.parametrize("scores", [False, True])
@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_a_causal_mask_inside_the_layer(dtype, scores):
    """Equal scores: the mean of the values up to a token."""
    options = {"return_attention_scores": scores, "use_causal_mask": True}
    assert attend_inside(dtype, None, **options)[:2] == [1, 1.5]
    without_the_second = tf.constant([[[True, False, True]] * 3])
    assert attend_inside(dtype, without_the_second, **options) == [1, 1, 2.5]


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_an_unknown_option_inside_the_layer(dtype):
    with pytest.raises(TypeError, match="causal"):
        attend_inside(dtype, None, causal=True)


def test_a_sum_of_4096_values():
    # Weights of 2**-12; an FP16 sum of 4096 products of 2**-12 is exact, so have one
    # value of 2048 in front: 2048 * 2**-12 + 4095 * 2**-12 = 1.4997.
    value = np.ones((1, 4096, 1), "float16")
    value[0, 0] = 2048
    zeros = np.zeros_like(value)
    layer = layers.AdditiveAttention(use_scale=False, dtype="float16")
    result = np.float64(layer([zeros[:, :1], value, zeros]))
    expected = (2048 + 4095) / 4096
    assert abs(result - expected) <= expected * (2.0**-11 + 4096 * 2.0**-24)


def test_dropout_of_additive_attention_has_the_masks_of_keras():
    x = np.float16(np.random.default_rng(0).uniform(-1, 1, (2, 5, 3)))
    made = [
        package.AdditiveAttention(dropout=0.5, seed=1, dtype="float16")
        for package in (keras.layers, layers)
    ]
    for layer in made:
        layer.build([x.shape, x.shape])
        layer.set_weights([np.ones(w.shape) for w in layer.weights])
    theirs, ours = (layer([x, x], training=True) for layer in made)
    # Keras rounds scores (at most 3), weights and each of the 5 terms, doubled.
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=2 * 12 * 2.0**-11)
    assert np.any(np.abs(ours - made[1]([x, x])) > 0.05)


@pytest.mark.slow
@pytest.mark.parametrize("jit", [False, True])
@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("Attention", {"use_scale": True}),
        ("Attention", {"score_mode": "concat"}),
        ("AdditiveAttention", {}),
    ],
)
def test_attention_of_a_tensor_to_itself_has_its_gradient(name, options, jit):
    rng = np.random.default_rng(0)
    x, slopes = (np.float16(rng.uniform(-1, 1, (2, 5, 3))) for _ in range(2))
    found = []
    for package, dtype in ((keras.layers, "float64"), (layers, "float16")):
        layer = getattr(package, name)(dtype=dtype, **options)
        layer.build([x.shape, x.shape])
        layer.set_weights([np.full(w.shape, 0.5) for w in layer.weights])

        @tf.function(jit_compile=jit)
        def gradient(x, slopes, layer=layer):
            with tf.GradientTape() as tape:
                tape.watch(x)
                y = layer([x, x])
            return tape.gradient(y, x, slopes)

        found.append(gradient(tf.cast(x, dtype), tf.cast(slopes, dtype)))
    # As in test_contract.py: 6 roundings of numbers below 1, there and back.
    np.testing.assert_allclose(*found, rtol=0, atol=12 * 2.0**-11)


class Regularizer(keras.regularizers.Regularizer):
    """An initializer that is not registered and cannot be saved."""

    def __call__(self, x):
        return keras.ops.sum(x)


def test_heads_take_objects_that_cannot_be_saved():
    layer = layers.MultiHeadAttention(
        1,
        2,
        kernel_initializer="ones",
        kernel_regularizer=Regularizer(),
        dtype="mixed_float16",
    )
    layer(np.ones((1, 1, 2)), np.ones((1, 1, 2)))
    assert [float(loss) for loss in layer.losses] == [4.0] * 4  # four kernels of 2 x 2


@pytest.mark.parametrize("batches", [(1, 3), (3, 1)], ids=str)
@pytest.mark.parametrize(
    ("dtype", "tolerance"),
    # FP32 is computed by Keras, which adds up to 8 numbers below 4 in another order for
    # another batch; the bits of fp16_gemm do not depend on it.
    [("float32", 8 * 4 * 2**-24), ("mixed_float16", 0)],
)
def test_heads_broadcast_a_batch_of_one(batches, dtype, tolerance):
    rng = np.random.default_rng(0)
    query, value = (rng.normal(size=(batch, 2, 4)) for batch in batches)
    layer = layers.MultiHeadAttention(2, 3, dropout=0.1, dtype=dtype)
    outputs = layer(query, value)
    repeated = layer(*(np.broadcast_to(x, (3, 2, 4)) for x in (query, value)))
    np.testing.assert_allclose(outputs, repeated, rtol=0, atol=tolerance)


def test_masks_of_an_embedding_reach_the_attention():
    tokens = np.array([[3, 1, 0, 0], [2, 0, 0, 0]])
    results = []
    for package in (keras.layers, layers):
        keras.utils.set_random_seed(0)
        inputs = keras.Input((4,))
        x = keras.layers.Embedding(5, 4, mask_zero=True, dtype="mixed_float16")(inputs)
        x = package.MultiHeadAttention(2, 2, dtype="mixed_float16")(x, x)
        x = package.LSTM(3, dtype="mixed_float16")(x)
        results.append(keras.Model(inputs, x)(tokens).numpy())
    np.testing.assert_allclose(*results, rtol=0, atol=60 * 2.0**-11)


CAUSAL_LAYERS = {
    "heads": lambda cls=layers.MultiHeadAttention: cls(2, 4, dtype="float16"),
    "groups": lambda cls=layers.GroupQueryAttention: cls(4, 2, 1, dtype="float16"),
}


@pytest.mark.parametrize("masked", [False, True], ids=["causal", "causal-and-mask"])
@pytest.mark.parametrize("name", CAUSAL_LAYERS)
def test_a_causal_mask_is_no_tensor(name, masked):
    """The kernel gets the other mask alone; the result is that of the whole mask."""
    layer = CAUSAL_LAYERS[name]()
    x = tf.cast(np.random.default_rng(0).normal(size=(2, 5, 8)), "float16")
    other = np.ones((2, 1, 5), bool)
    other[0, :, 3] = False
    mask = tf.constant(other) if masked else None
    whole = np.tri(5, dtype=bool)[None] & (other if masked else True)
    wanted = layer(x, x, attention_mask=tf.constant(whole))
    graph = tf.function(
        lambda: layer(x, x, attention_mask=mask, use_causal_mask=True)
    ).get_concrete_function()
    for y in (graph(), layer(x, x, attention_mask=mask, use_causal_mask=True)):
        np.testing.assert_array_equal(y, wanted)
    if has_kernel("float16"):
        operations = graph.graph.get_operations()
        kernels = [op for op in operations if op.type == "KerasMp>Attention"]
        assert not [op for op in operations if op.type == "Cumsum"]
        assert [op.get_attr("is_causal") for op in kernels] == [True]
        assert len(kernels[0].inputs) == 3 + masked


def test_a_subclass_gets_the_causal_mask_as_a_tensor():
    """Whatever of the three methods it overrides, and with Keras's `call`."""
    base = layers.MultiHeadAttention
    x = tf.cast(np.random.default_rng(0).normal(size=(2, 5, 8)), "float16")

    class Masks(base):
        def _compute_attention_mask(self, *args, **options):
            return super()._compute_attention_mask(*args, **options) & True

    class Attends(base):
        def _compute_attention(self, query, key, value, attention_mask=None, *args):
            seen.append(attention_mask)
            return super()._compute_attention(query, key, value, attention_mask, *args)

    class Looks(base):
        def _compute_causal_mask(self, query, value=None):
            return super()._compute_causal_mask(query, value) | True

    for cls in (Masks, Attends, Looks):
        seen = []
        keras.utils.set_random_seed(0)
        layer = CAUSAL_LAYERS["heads"](cls)
        hides = np.ones((5, 5), bool) if cls is Looks else np.tri(5, dtype=bool)
        wanted = layer(x, x, attention_mask=tf.constant(hides[None]))
        del seen[:]
        np.testing.assert_array_equal(layer(x, x, use_causal_mask=True), wanted)
        assert all(mask.dtype == bool for mask in seen)
        assert len(seen) == (cls is Attends)
