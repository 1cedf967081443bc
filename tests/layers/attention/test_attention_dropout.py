"""The dropout of the layers with heads: by position, in every precision and way."""

import re

import keras
import numpy as np
import oracle
import pytest
import tensorflow as tf
from older_versions import needs

from keras_mp import Checkpoints, layers
from keras_mp.ops.kernels import dispatch

X = np.float16(np.random.default_rng(0).uniform(-1, 1, (2, 5, 6)))
HEADS = {
    "heads": ("MultiHeadAttention", {"num_heads": 2, "key_dim": 4}),
    "groups": (
        "GroupQueryAttention",
        {"head_dim": 4, "num_query_heads": 4, "num_key_value_heads": 2},
    ),
}
EACH = pytest.mark.parametrize("name", HEADS)


def make(name, dtype="float16", dropout=0.5, seed=1, package=layers):
    kind, arguments = HEADS[name]
    layer = getattr(package, kind)(dropout=dropout, seed=seed, dtype=dtype, **arguments)
    layer.build(X.shape, X.shape)
    rng = np.random.default_rng(1)
    layer.set_weights([rng.uniform(-1, 1, w.shape) for w in layer.weights])
    return layer


def outputs_and_gradients(layer, run=lambda f: f, **options):
    @run
    def compute(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = layer(x, x, training=True, **options)
            y = y[0] if isinstance(y, tuple) else y
        return [y, *tape.gradient(y, [x, *layer.trainable_variables])]

    found = compute(tf.cast(X, layer.compute_dtype))
    return [np.float64(tf.cast(x, "float64")) for x in found]


def assert_close(found, wanted):
    """Within 32 FP16 roundings of the largest number of each tensor, or of 1.

    There are three products in a row forward, and as many backward, each rounded once,
    and the weights on the way, of numbers that are up to twice as large by the dropout.
    """
    for one, other in zip(found, wanted, strict=True):
        most = 32 * 2.0**-11 * max(1, np.max(np.abs(other)))
        np.testing.assert_allclose(one, other, rtol=0, atol=most)


@EACH
def test_the_same_weights_are_dropped_in_every_way(name):
    """By the kernel, where the scores are returned, and in FP32; not without a seed."""
    wanted = outputs_and_gradients(make(name, "float32"))
    assert_close(outputs_and_gradients(make(name)), wanted)
    returned = outputs_and_gradients(make(name), return_attention_scores=True)
    assert_close(returned, wanted)
    without = outputs_and_gradients(make(name, dropout=0.0))
    assert np.max(np.abs(without[0] - wanted[0])) > 0.1


@pytest.mark.slow_except("heads")
@EACH
def test_graphs_and_xla_drop_what_eager_drops(name):
    eager = make(name)
    steps = [outputs_and_gradients(eager) for _ in range(2)]
    assert np.any(steps[0][0] != steps[1][0])
    for jit in (False, True):
        layer = make(name)

        @tf.function(jit_compile=jit)
        def call(x, layer=layer):
            return layer(x, x, training=True)

        for wanted, *_ in steps:
            assert_close([np.float64(call(X))], [wanted])


@pytest.mark.slow
@EACH
def test_two_trainings_with_one_seed_are_equal(name):
    found = []
    for _ in range(2):
        inputs = keras.Input(X.shape[1:], dtype="float16")
        model = keras.Model(inputs, make(name)(inputs, inputs))
        model.compile(keras.optimizers.SGD(0.1), "mse", jit_compile=False)
        model.fit(X, np.zeros_like(X), epochs=3, verbose=0)
        found.append(model.get_weights())
    for one, other in zip(*found, strict=True):
        oracle.assert_same_bits(one, other)


@EACH
def test_a_saved_layer_begins_with_its_seed(name, tmp_path):
    """As every dropout of Keras, whose files hold no seeds."""
    inputs = keras.Input(X.shape[1:], dtype="float16")
    model = keras.Model(inputs, make(name)(inputs, inputs))
    first = model(X, training=True)
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    oracle.assert_same_bits(loaded(X, training=True).numpy(), first.numpy())
    assert np.any(model(X, training=True) != first)


@EACH
def test_a_checkpoint_goes_on_with_the_next_seed(name, tmp_path):
    layer, other = make(name), make(name, seed=2)
    layer(X, X, training=True)
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(1, layer)
    assert checkpoints.restore(other) == 1
    following = [x(X, X, training=True).numpy() for x in (layer, other)]
    oracle.assert_same_bits(*following)


@EACH
def test_the_seeds_have_the_names_of_keras(name):
    """But for a number; by them checkpoints of an earlier version are read."""
    names = []
    for package in (keras.layers, layers):
        keras.utils.clear_session(free_memory=False)
        variables = make(name, package=package).non_trainable_variables
        names.append([re.sub(r"_\d+", "", variable.path) for variable in variables])
    theirs, ours = names
    assert len(ours) == 1
    assert ours == theirs


@EACH
def test_the_layers_after_it_begin_as_after_that_of_keras(name):
    """Each draws its seeds from Python's random numbers, where it is given none."""
    kernels = []
    for package in (keras.layers, layers):
        keras.utils.set_random_seed(0)
        make(name, seed=None, package=package)
        dense = keras.layers.Dense(3)
        dense.build((1, 2))
        kernels.append(dense.kernel.numpy())
    np.testing.assert_array_equal(*kernels)


@EACH
def test_on_a_gpu_it_is_the_dropout_of_keras(name, monkeypatch):
    monkeypatch.setattr(dispatch, "has_accelerator", lambda: True)
    theirs = make(name, "float32", package=keras.layers)
    found = [outputs_and_gradients(x) for x in (make(name, "float32"), theirs)]
    for one, other in zip(*found, strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=2.0**-16)


@pytest.mark.slow_except("heads")
@EACH
def test_a_replica_drops_as_a_layer_alone(name, strategy):
    with strategy.scope():
        layer = make(name)
    run = tf.function(lambda: strategy.run(lambda: layer(X, X, training=True)))
    wanted = make(name)(X, X, training=True)
    for found in strategy.experimental_local_results(run()):
        assert_close([np.float64(found)], [np.float64(wanted)])


@pytest.mark.parametrize("hidden", ["a-query", "all-before", "padding"])
def test_a_query_without_keys_is_0_with_a_causal_mask(hidden):
    """As where the scores are returned; Keras hands the causal mask on with a mask."""
    mask = np.ones((2, 5, 5), bool)
    if hidden == "a-query":
        mask[:, 2] = False
    elif hidden == "all-before":
        mask[:, 3, :4] = False
    else:
        mask = mask[:, :1]
        mask[:, :, :2] = False
    found = []
    for returns_scores in (False, True):
        layer = make("heads")
        q, k, v = (
            tf.cast(np.random.default_rng(i).normal(size=(2, 5, 2, 4)), "float16")
            for i in range(3)
        )
        y, _ = layer._compute_attention(
            *(q, k, v, tf.constant(mask), True),
            return_attention_scores=returns_scores,
            use_causal_mask=True,
        )
        found.append(np.float64(y))
    # The weights, up to 2, are rounded on one of the ways; and both results.
    np.testing.assert_allclose(*found, rtol=0, atol=5 * 4 * 2.0**-10)
    sees = (mask & np.tri(5, dtype=bool)).any(-1)
    zero = np.broadcast_to(~sees, (2, 5))
    assert zero.any()
    assert not np.any(found[0][zero])


@needs("Keras", 3, 15)  # whose own dropout takes a rate of 1
@EACH
def test_a_rate_of_1_leaves_nothing(name):
    layer = make(name, dropout=1.0)
    y = layer(X, X, training=True)
    bias = [w for w in layer.weights if "output" in w.path][-1]
    np.testing.assert_array_equal(y, np.broadcast_to(bias, y.shape).astype("float16"))
