"""The normalization layers: values beyond FP16, overflows, and replicas.

`tests/layers/test_contract.py` compares each of them with the Keras layer in float64.
"""

import keras
import numpy as np
import pytest
import tensorflow as tf
from older_versions import INSTALLED

from keras_mp import keras_internals, layers

UNIT = 2.0**-11  # a rounding to FP16, of a number below 1
# A few FP32 operations on a few numbers.
FP32 = 16 * 2.0**-24
MODES = pytest.mark.parametrize("mode", ["eager", "graph", "jit"])
# Where a graph and eager execution run the same.
TWO_MODES = pytest.mark.parametrize("mode", ["eager", "jit"])
FP16 = pytest.mark.parametrize("policy", ["mixed_float16", "float16"])
NEEDS_RENORM = pytest.mark.skipif(
    keras_internals.KERAS < (3, 14), reason="needs Keras 3.14: before it has no renorm"
)


def made(function, mode):
    """A function of tensors: eager, in a graph or compiled by XLA."""
    return (
        function
        if mode == "eager"
        else tf.function(function, jit_compile=mode == "jit")
    )


def with_gradients(layer, x, upstream, mode="eager", **arguments):
    """The outputs; the gradients of the inputs and of the weights.

    Args:
        upstream: the gradient of the outputs, in their dtype.
    """

    def run(x, upstream):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = layer(x, **arguments)
        return y, tape.gradient(y, [x, *layer.trainable_variables], upstream)

    x = tf.constant(x, layer.compute_dtype)
    y, (of_x, *of_weights) = made(run, mode)(x, tf.cast(upstream, x.dtype))
    assert y.dtype == of_x.dtype == x.dtype
    return y.numpy(), of_x.numpy(), [gradient.numpy() for gradient in of_weights]


def trained(layer, x, mode="eager", **arguments):
    """The outputs for a batch in training."""
    x = tf.constant(x, layer.compute_dtype)
    return made(lambda x: layer(x, training=True, **arguments), mode)(x).numpy()


def built(channels=1, policy="mixed_float16", package=layers, renorm=False, **options):
    """BatchNormalization of rows."""
    if renorm:
        options["renorm"] = True  # an argument that not every Keras has
    layer = package.BatchNormalization(dtype=policy, **options)
    layer.build((None, channels))
    return layer


def moving(layer):
    """The moving statistics, all of them FP32."""
    assert {weight.dtype for weight in layer.non_trainable_variables} == {"float32"}
    return [weight.numpy() for weight in layer.non_trainable_variables]


def column(*numbers):
    return np.reshape(numbers, (-1, 1))


# BatchNormalization: the statistics.

# Of mean 300 and deviation 400, both beyond what FP16 can square.
WIDE = column(-100, 700, 700, -100)


@pytest.mark.parametrize(
    ("policy", "mode"),
    [
        ("mixed_float16", "eager"),
        ("mixed_float16", "graph"),
        ("mixed_float16", "jit"),
        ("float16", "eager"),
    ],
)
def test_a_variance_of_160_000(policy, mode):
    layer = built(policy=policy, momentum=0)
    y = trained(layer, WIDE, mode)
    assert y.dtype == np.float16
    np.testing.assert_array_equal(y, column(-1, 1, 1, -1))
    mean, variance = moving(layer)
    assert mean == 300
    np.testing.assert_allclose(variance, 1.6e5, rtol=FP32)


def after_2000_steps(layer):
    @tf.function
    def run(x):
        for _ in tf.range(2000):
            layer(x, training=True)

    run(tf.constant(WIDE, layer.compute_dtype))
    return np.float64([layer.moving_mean.numpy(), layer.moving_variance.numpy()])


@FP16
def test_averages_of_2000_steps_are_those_of_fp32(policy):
    decay = 0.9999**2000
    expected = column(300 * (1 - decay), 1.6e5 * (1 - decay) + decay)
    # In a step the momentum, two products and their sum are rounded, each by 2**-24 of
    # at most the average.
    bound = 2000 * 4 * 2.0**-24
    found = after_2000_steps(built(policy=policy, momentum=0.9999))
    np.testing.assert_allclose(found, expected, rtol=bound)
    fp32 = built(policy="float32", momentum=0.9999, package=keras.layers)
    np.testing.assert_allclose(found, after_2000_steps(fp32), rtol=2 * bound)


def test_averages_of_2000_steps_in_fp16_are_off_by_a_tenth():
    # From 32 on FP16 moves by 1/32 or not at all, and the step is 0.027.
    fp16 = built(policy="float16", momentum=0.9999, package=keras.layers)
    mean, _ = after_2000_steps(fp16)
    assert abs(mean / 54.4 - 1) > 0.1


@MODES
def test_a_constant_channel_becomes_beta(mode):
    if mode == "jit" and INSTALLED["TensorFlow"] < (2, 19):
        pytest.skip("needs TensorFlow 2.19, whose XLA gives the formula")
    # E[x**2] - E[x]**2 of 100 numbers of 1000 is -0.02 in FP32, and its root NaN.
    layer = built(2, momentum=0, beta_initializer="ones")
    x = np.stack([np.full(100, 1000), np.tile([-1, 1], 50)], axis=1)
    y, of_x, (of_gamma, _) = with_gradients(
        layer, x, np.ones_like(x), mode, training=True
    )
    np.testing.assert_array_equal(y[:, 0], 1)
    mean, variance = moving(layer)
    assert (mean[0], variance[0]) == (1000, 0)
    # Slopes of 1 less their mean, which errs by 100 * 2**-24, over sqrt(epsilon).
    np.testing.assert_allclose(of_x, 0, atol=32 * 100 * 2.0**-24)
    assert of_gamma[0] == 0


# BatchNormalization: steps that a loss scaler skips.

BAD = {
    "inf": ("mixed_float16", [np.inf, 1], np.nan),
    "nan": ("float16", [1, np.nan], np.nan),
    # The mean is 0, the variance inf, and so x / sqrt(variance) is 0.
    "variance": ("mixed_bfloat16", [2.0**127, -(2.0**127)], 0),
}


@pytest.mark.parametrize(
    ("renorm", "mode"),
    [
        (False, "eager"),
        (False, "graph"),
        (False, "jit"),
        pytest.param(True, "eager", marks=NEEDS_RENORM),
    ],
)
@pytest.mark.parametrize(("policy", "bad", "result"), BAD.values(), ids=BAD)
def test_an_overflow_leaves_the_statistics_of_its_channel(
    policy, bad, result, renorm, mode
):
    layer = built(2, policy, momentum=0.5, renorm=renorm, epsilon=0.0)
    before = moving(layer)
    y = trained(layer, np.stack([[-1, 5], bad], axis=1), mode)
    # Of mean 2 and deviation 3, but renorm takes 0 and 1, with which it starts.
    good = [-1, 5] if renorm else [-1, 1]
    np.testing.assert_array_equal(y[:, 0].astype("float64"), good)
    np.testing.assert_array_equal(y[:, 1].astype("float64"), result)
    for weight, was in zip(layer.non_trainable_variables, before, strict=True):
        now = weight.numpy()
        assert now[1] == was[1], weight.name
        assert now[0] != was[0], weight.name
    assert layer.moving_mean.numpy()[0] == 1


@NEEDS_RENORM
def test_an_overflow_leaves_the_first_statistics_of_renorm():
    # The variance follows the deviation: 1 and not 1 - epsilon.
    layer = built(renorm=True)
    trained(layer, column(np.nan, 1))
    assert [weight.item() for weight in moving(layer)] == [0, 1, 1, 0, 1]


@pytest.mark.parametrize(
    ("renorm", "mode"),
    [
        (False, "eager"),
        (False, "graph"),
        (False, "jit"),
        pytest.param(True, "eager", marks=NEEDS_RENORM),
    ],
)
def test_a_batch_without_rows_changes_nothing(renorm, mode):
    layer = built(2, renorm=renorm)
    before = moving(layer)
    nothing = np.zeros((0, 2))
    y, of_x, of_weights = with_gradients(layer, nothing, nothing, mode, training=True)
    assert y.shape == of_x.shape == (0, 2)
    np.testing.assert_array_equal(of_weights, np.zeros((2, 2)))
    np.testing.assert_array_equal(moving(layer), before)


# BatchNormalization: inference.


@MODES
def test_gradients_of_inference(mode):
    layer = built(epsilon=0.25, policy="float16")
    layer.set_weights(np.reshape([4, 1, 1, 3.75], (4, 1)))  # a deviation of 2
    y, of_x, (of_gamma, of_beta) = with_gradients(
        layer, column(3, -3), column(1, 2), mode, training=False
    )
    np.testing.assert_array_equal(y, column(5, -7))
    np.testing.assert_array_equal(of_x, column(2, 4))
    np.testing.assert_allclose(of_gamma, [1 * 1 - 2 * 2], rtol=FP32)
    np.testing.assert_array_equal(of_beta, [3])
    assert of_gamma.dtype == of_beta.dtype == np.float32


def test_a_layer_that_is_not_trainable_is_in_inference():
    layer = built(epsilon=0.25)
    layer.trainable = False
    layer.set_weights(np.reshape([4, 1, 1, 3.75], (4, 1)))
    before = moving(layer)
    np.testing.assert_array_equal(trained(layer, column(3, -3)), column(5, -7))
    np.testing.assert_array_equal(moving(layer)[-2:], before[-2:])


# BatchNormalization: masks.

ROWS = np.reshape([-1, 5, 6e4, 6e4, 5, -1], (2, 3, 1))
COUNTED = np.array([[1, 1, 0], [0, 1, 1]])


@pytest.mark.parametrize(
    ("dtype", "mode"), [("bool", "eager"), ("bool", "jit"), ("float32", "eager")]
)
def test_what_is_masked_does_not_count(dtype, mode):
    layer = layers.BatchNormalization(momentum=0, epsilon=0.0, dtype="float16")
    layer.build(ROWS.shape)
    mask = COUNTED.astype(dtype)
    y, of_x, _ = with_gradients(
        layer, ROWS, ROWS == 6e4, mode, mask=tf.constant(mask), training=True
    )
    # Of mean 2 and deviation 3: 19999 is rounded to 20000, and a slope of 1 to 1/3.
    np.testing.assert_array_equal(y.ravel(), [-1, 1, 20000, 20000, 1, -1])
    mean, variance = moving(layer)
    np.testing.assert_allclose([*mean, *variance], [2, 9], rtol=FP32)
    third = np.float16(1 / 3)
    assert of_x[0, 2] == of_x[1, 0] == third
    # What counts gets the slopes through mean and deviation of the two that do not:
    # each -(1 + y * 19999) / 3, divided by the 4 that count.
    expected = -2 * (1 + y[0, :2] * 19999.33) / 4 / 3
    np.testing.assert_allclose(of_x[0, :2], expected, rtol=UNIT + FP32)


def test_nothing_that_counts_is_what_it_is_in_keras():
    results = []
    for package, policy in ((keras.layers, "float32"), (layers, "mixed_float16")):
        layer = built(2, policy, package, momentum=0.5)
        y = trained(layer, np.ones((2, 2)), mask=tf.zeros(2, tf.bool))
        results.append([y, *moving(layer)])
    for theirs, ours in zip(*results, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=UNIT)


@pytest.mark.parametrize("shape", [(2,), (2, 3, 1), ()], ids=str)
def test_a_mask_of_another_rank_is_refused(shape):
    layer = layers.BatchNormalization(dtype="float16")
    message = r"one dimension less.*Received: mask.shape=.*inputs.shape=\(2, 3, 1\)"
    with pytest.raises(ValueError, match=message):
        layer(tf.zeros((2, 3, 1), "float16"), mask=tf.ones(shape, tf.bool))


# BatchNormalization: renorm and synchronization.


@NEEDS_RENORM
@TWO_MODES
def test_renorm_is_that_of_keras_in_float64(mode):
    options = {
        "renorm": True,
        "renorm_clipping": {"rmax": 2.0, "rmin": 0.5, "dmax": 1.0},
        "momentum": 0.5,
        "renorm_momentum": 0.25,
    }
    ours = built(3, "mixed_float16", **options)
    theirs = built(3, "float64", keras.layers, **options)
    step = made(lambda x: ours(x, training=True), mode)
    for x in np.random.default_rng(0).normal(1, 2, (3, 8, 3)).astype("float16"):
        # Statistics below 8 of 8 numbers; outputs are rounded once.
        expected = trained(theirs, x)
        size = np.max(np.abs(expected))
        np.testing.assert_allclose(
            step(tf.constant(x)), expected, rtol=0, atol=(UNIT + FP32) * size
        )
        for actual, wanted in zip(
            moving(ours), theirs.non_trainable_variables, strict=True
        ):
            np.testing.assert_allclose(actual, wanted.numpy(), rtol=0, atol=8 * FP32)


def on_replicas(strategy, layer, x, upstream, sizes, mask=None):
    """What `with_gradients` returns, of the rows that each replica has."""
    limits = [slice(0, sizes[0]), slice(sizes[0], sum(sizes))]

    def share(rows):
        return strategy.experimental_distribute_values_from_function(
            lambda context: tf.constant(rows[limits[context.replica_id_in_sync_group]])
        )

    def run(x, upstream, *mask):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = layer(x, training=True, mask=mask[0] if mask else None)
        return y, *tape.gradient(y, [x, *layer.trainable_variables], upstream)

    arguments = [share(rows) for rows in (x, upstream, mask) if rows is not None]
    results = tf.function(lambda *a: strategy.run(run, a))(*arguments)
    y, of_x, *of_weights = (
        [part.numpy() for part in strategy.experimental_local_results(result)]
        for result in results
    )
    return np.concatenate(y), np.concatenate(of_x), [sum(g) for g in of_weights]


@pytest.mark.parametrize(
    ("sizes", "masked"), [((5, 1), True), ((6, 0), False)], ids=["masked", "empty"]
)
def test_synchronized_replicas_are_one_batch(strategy, sizes, masked):
    rng = np.random.default_rng(0)
    x, upstream = rng.normal(2, 3, (2, 6, 4, 2)).astype("float16")
    mask = rng.uniform(size=(6, 4)) < 0.5 if masked else None
    with strategy.scope():
        layer = layers.BatchNormalization(
            momentum=0.5, synchronized=True, dtype="mixed_float16"
        )
        layer.build(x.shape)
    alone = layers.BatchNormalization(momentum=0.5, dtype="float64")
    alone.build(x.shape)
    found = on_replicas(strategy, layer, x, upstream, sizes, mask)
    expected = with_gradients(
        alone,
        x,
        upstream,
        training=True,
        mask=None if mask is None else tf.constant(mask),
    )
    assert found[0].dtype == found[1].dtype == np.float16
    for actual, wanted in zip(found[:2], expected[:2], strict=True):
        size = np.max(np.abs(wanted))
        np.testing.assert_allclose(actual, wanted, rtol=0, atol=(UNIT + FP32) * size)
    # Sums of 24 numbers, of which none exceeds 10.
    for actual, wanted in zip(found[2], expected[2], strict=True):
        assert actual.dtype == np.float32
        np.testing.assert_allclose(actual, wanted, rtol=0, atol=24 * 10 * FP32)
    for ours, theirs in zip(
        layer.non_trainable_variables, alone.non_trainable_variables, strict=True
    ):
        for copy in strategy.experimental_local_results(ours.value):
            np.testing.assert_allclose(copy, theirs.numpy(), rtol=0, atol=10 * FP32)


# All of them: values.


def twos(shape):
    """-100 and 700 in turn along the last axis, of mean 300 and deviation 400."""
    return np.resize([-100, 700], shape)


VALUES = {
    "layer": (lambda: layers.LayerNormalization(dtype="float16"), (2, 4096)),
    "layer-axes": (
        lambda: layers.LayerNormalization(axis=[1, 2], dtype="float16"),
        (2, 64, 64),
    ),
    "group": (lambda: layers.GroupNormalization(2, dtype="float16"), (2, 1024, 4)),
    "group-first": (
        lambda: layers.GroupNormalization(-1, axis=1, dtype="float16"),
        (2, 2, 1024),
    ),
    "batch": (lambda: layers.BatchNormalization(axis=1, dtype="float16"), (2, 3, 64)),
}


@pytest.mark.parametrize(
    ("name", "mode"), [*((name, "eager") for name in VALUES), ("layer", "jit")]
)
def test_numbers_of_mean_300_and_deviation_400(name, mode):
    make, shape = VALUES[name]
    layer = make()
    training = {"training": True} if "Batch" in type(layer).__name__ else {}
    x = tf.constant(twos(shape), tf.float16)
    layer(x, **training)
    y = made(lambda x: layer(x, **training), mode)(x)
    assert y.dtype == tf.float16
    np.testing.assert_array_equal(y, np.resize([-1, 1], shape))


@TWO_MODES
def test_vectors_get_length_1(mode):
    # The squares, 9e6 and 3.6e-15, are beyond FP16. Zeros have no direction.
    layer = layers.UnitNormalization(dtype="mixed_float16")
    small = 2.0**-24
    x = [[3000, 4000], [3 * small, -4 * small], [0, 0]]
    y, of_x, _ = with_gradients(layer, x, [[1, 0], [2.0**-13, 0], [1, 1]], mode)
    np.testing.assert_array_equal(y, np.float16([[0.6, 0.8], [0.6, -0.8], [0, 0]]))
    # (upstream - y * (y . upstream)) / length
    first, second = 0.64 / 5000, 2.0**-13 / (5 * small)
    expected = [[first, -0.48 / 5000], [0.64 * second, 0.48 * second], [0, 0]]
    np.testing.assert_allclose(of_x, expected, rtol=UNIT + FP32)


def test_root_mean_squares_of_3000():
    layer = layers.RMSNormalization(dtype="float16")
    x = tf.constant(np.resize([3000, -3000], (2, 4096)), tf.float16)
    np.testing.assert_array_equal(layer(x), np.resize([1, -1], x.shape))


NAN, INFINITY = float("nan"), float("inf")
# Rows with a number that is none, and what becomes of their finite numbers: a mean that
# is not finite makes all NaN, and a finite number over an infinite length is 0.
OVERFLOWS = {
    "layer-nan": (layers.LayerNormalization, NAN, NAN),
    "layer-inf": (layers.LayerNormalization, INFINITY, NAN),
    "rms-nan": (lambda dtype: layers.RMSNormalization(dtype=dtype), NAN, NAN),
    "rms-inf": (lambda dtype: layers.RMSNormalization(dtype=dtype), INFINITY, 0),
    "unit-nan": (layers.UnitNormalization, NAN, NAN),
    "unit-inf": (layers.UnitNormalization, -INFINITY, 0),
}


@MODES
@pytest.mark.parametrize(("make", "bad", "rest"), OVERFLOWS.values(), ids=OVERFLOWS)
def test_an_overflow_stays_in_its_row(make, bad, rest, mode):
    layer = make(dtype="mixed_float16")
    x = np.ones((3, 9), "float16")
    x[1, 4] = bad
    y, of_x, _ = with_gradients(layer, x, np.resize([1, 2], x.shape), mode)
    expected = np.full(9, rest, "float16")
    expected[4] = NAN
    np.testing.assert_array_equal(y[1], expected)
    assert np.isnan(of_x[1]).any()
    assert np.isfinite([y[::2], of_x[::2]]).all()


def test_the_scale_of_rms_lies_along_the_axis_that_is_normalized():
    layer = layers.RMSNormalization(axis=1, dtype="mixed_float16")
    x = tf.ones((2, 3, 3), tf.float16)
    layer(x)
    layer.scale.assign([1, 2, 3])
    np.testing.assert_array_equal(layer(x)[0], [[1] * 3, [2] * 3, [3] * 3])


@pytest.mark.skipif(INSTALLED["Keras"] < (3, 9), reason="needs Keras 3.9")
def test_rms_scaling_of_a_layer_normalization_is_that_of_keras():
    x = tf.constant([[1, 2, 4]], tf.float16)
    results = []
    for package in (keras.layers, layers):
        with pytest.warns(UserWarning, match="rms_scaling=True"):
            layer = package.LayerNormalization(rms_scaling=True, dtype="mixed_float16")
            results.append(layer(x))
    assert results[0].dtype == results[1].dtype == tf.float16
    np.testing.assert_array_equal(*results)


UNKNOWN = {
    "batch": lambda: layers.BatchNormalization(dtype="float16"),
    "batch-first": lambda: layers.BatchNormalization(axis=1, dtype="float16"),
    "batch-synchronized": lambda: layers.BatchNormalization(
        synchronized=True, dtype="float16"
    ),
    "layer": lambda: layers.LayerNormalization(axis=-1, dtype="float16"),
    "group": lambda: layers.GroupNormalization(2, dtype="float16"),
    "group-first": lambda: layers.GroupNormalization(2, axis=1, dtype="float16"),
    "rms": lambda: layers.RMSNormalization(dtype="float16"),
    "unit": lambda: layers.UnitNormalization(axis=(1, 2), dtype="float16"),
}


@pytest.mark.parametrize("make", UNKNOWN.values(), ids=UNKNOWN)
def test_sizes_that_are_not_known_while_a_graph_is_made(make):
    layer = make()
    axis = getattr(layer, "axis", -1)
    training = {"training": True} if "Batch" in type(layer).__name__ else {}
    x = tf.constant(np.random.default_rng(0).normal(size=(2, 4, 4)), tf.float16)
    shape = [None, 4, None] if axis == 1 else [None, None, 4]
    expected = layer(x, **training)
    found = tf.function(
        lambda x: layer(x, **training),
        input_signature=[tf.TensorSpec(shape, tf.float16)],
    )
    assert found.get_concrete_function().output_shapes.as_list() == shape
    # A graph may sum in another order; both are rounded, and below 4.
    atol = 4 * 2 * (UNIT + FP32)
    np.testing.assert_allclose(found(x), expected, rtol=0, atol=atol)
    assert found(x[:1]).shape == (1, 4, 4)


# All of them: weights and their gradients.

WEIGHTS = {
    "batch": lambda package: package.BatchNormalization(dtype="float16"),
    "renorm": lambda package: package.BatchNormalization(renorm=True, dtype="float16"),
    "layer": lambda package: package.LayerNormalization(dtype="float16"),
    "group": lambda package: package.GroupNormalization(2, dtype="float16"),
    "rms": lambda package: package.RMSNormalization(dtype="float16"),
    "spectral": lambda package: package.SpectralNormalization(
        keras.layers.Dense(2, dtype="float16"), dtype="float16"
    ),
}


@pytest.mark.parametrize(
    "make",
    [
        pytest.param(make, id=name, marks=NEEDS_RENORM if name == "renorm" else ())
        for name, make in WEIGHTS.items()
    ],
)
def test_weights_are_fp32_under_float16_too(make, tmp_path):
    path = tmp_path / "model.weights.h5"
    models = [
        keras.Sequential([keras.Input((4,), dtype="float16"), make(package)])
        for package in (keras.layers, layers)
    ]
    theirs, ours = (model.layers[0] for model in models)
    # The weights of a layer inside are its own matter.
    inside = ours.layer.weights if hasattr(ours, "layer") else []
    outer = [w for w in ours.weights if all(w is not other for other in inside)]
    assert outer and {weight.dtype for weight in outer} == {"float32"}
    assert {weight.dtype for weight in theirs.weights} == {"float16"}
    theirs.set_weights([np.full(w.shape, 3 + 2.0**-9) for w in theirs.weights])
    models[0].save_weights(path)
    models[1].load_weights(path)
    assert {weight.dtype for weight in outer} == {"float32"}
    for weight in ours.get_weights():
        np.testing.assert_array_equal(weight, 3 + 2.0**-9)


# With epsilon 1, numbers of 2**-15 stay what they are in FP32.
TINY = {
    "batch": (
        lambda package: package.BatchNormalization(epsilon=1.0, dtype="float16"),
        {"training": True},
    ),
    "inference": (
        lambda package: package.BatchNormalization(
            epsilon=1.0, moving_variance_initializer="zeros", dtype="float16"
        ),
        {"training": False},
    ),
    "layer": (
        lambda package: package.LayerNormalization(epsilon=1.0, dtype="float16"),
        {},
    ),
    "group": (
        lambda package: package.GroupNormalization(1, epsilon=1.0, dtype="float16"),
        {},
    ),
    "rms": (
        lambda package: package.RMSNormalization(epsilon=1.0, dtype="float16"),
        {},
    ),
}


@pytest.mark.parametrize(("make", "arguments"), TINY.values(), ids=TINY)
def test_the_gradient_of_gamma_is_not_flushed(make, arguments):
    # The smallest FP16 number is 2**-24.
    x = np.float16([[1, -1], [-1, 1]]) * 2.0**-15
    for package in (keras.layers, layers):
        layer = make(package)
        layer.build(x.shape)
        _, _, of_weights = with_gradients(layer, x, x, **arguments)
        gradient = of_weights[0].astype("float64")
        if package is keras.layers:
            np.testing.assert_array_equal(gradient, 0)
            continue
        assert of_weights[0].dtype == np.float32
        np.testing.assert_allclose(gradient, [2 * 2.0**-30] * 2, rtol=FP32)


SCALED = {
    "layer": lambda package, dtype: package.LayerNormalization(dtype=dtype),
    "group": lambda package, dtype: package.GroupNormalization(2, dtype=dtype),
    "rms": lambda package, dtype: package.RMSNormalization(dtype=dtype),
}


@FP16
@pytest.mark.parametrize("make", SCALED.values(), ids=SCALED)
def test_gradients_of_a_scaled_loss_are_those_of_float64(make, policy):
    # Slopes of 2**-20 have 4 bits in FP16, or 11 after a loss scale of 2**10.
    rng = np.random.default_rng(0)
    x, upstream = rng.normal(size=(2, 2, 5, 4)).astype("float16")
    gamma = rng.uniform(0.5, 1.5, 4).astype("float16")
    found = []
    for package, dtype, scale in (
        (layers, policy, 2.0**10),
        (keras.layers, "float64", 1.0),
    ):
        layer = make(package, dtype)
        layer.build(x.shape)
        layer.trainable_variables[0].assign(gamma)
        slopes = upstream.astype("float64") * (2.0**-20 * scale)
        _, of_x, of_weights = with_gradients(layer, x, slopes, "eager")
        found.append([np.float64(g) / scale for g in (of_x, *of_weights)])
    (of_x, *of_weights), (x_expected, *expected) = found
    # A scaled slope is rounded to a multiple of 2**-24 where it is small. Each gradient
    # of an input takes in that of its own slope and of means of slopes, and of slopes
    # times outputs, which are below 2.5, all times gamma / deviation, which is below 5;
    # then it is rounded too. A gradient of a weight takes in those of 10 rows.
    lost = 2.0**-25 / 2.0**10
    size = np.max(np.abs(x_expected))
    atol = UNIT * size + (5 * (1 + 1 + 2.5 * 2.5) + 1) * lost
    np.testing.assert_allclose(of_x, x_expected, rtol=0, atol=atol)
    for actual, wanted in zip(of_weights, expected, strict=True):
        atol = FP32 * np.max(np.abs(wanted)) + 10 * 2.5 * lost
        np.testing.assert_allclose(actual, wanted, rtol=0, atol=atol)


# SpectralNormalization.

KERNELS = {
    "dense": (lambda dtype: keras.layers.Dense(4, dtype=dtype), (3, 5)),
    "conv2d": (lambda dtype: keras.layers.Conv2D(4, 2, dtype=dtype), (2, 3, 3, 2)),
    "embedding": (lambda dtype: keras.layers.Embedding(5, 4, dtype=dtype), (3,)),
}


def spectral(inner, policy, package=layers):
    """A layer around another, and its kernel, all of whose numbers are positive."""
    make, shape = KERNELS[inner]
    layer = package.SpectralNormalization(make(policy), 10, dtype=policy)
    layer.build(shape)
    kernel = np.random.default_rng(0).uniform(1, 2, layer.kernel.shape)
    layer.kernel.assign(kernel)
    return layer, np.float64(layer.kernel.numpy()), tf.zeros(shape, layer.compute_dtype)


@pytest.mark.parametrize(
    ("inner", "mode"), [*((name, "eager") for name in KERNELS), ("dense", "jit")]
)
def test_an_fp32_kernel_is_divided_by_its_singular_value(inner, mode):
    layer, before, x = spectral(inner, "mixed_float16")
    made(lambda x: layer(x, training=True), mode)(x)
    # Of numbers from 1 to 2 the second singular value is at most 0.36 of the first, and
    # after 10 iterations what is left of it 0.36**20.
    sigma = np.linalg.norm(before.reshape(-1, 4), 2)
    after = layer.kernel.numpy()
    assert after.dtype == np.float32
    np.testing.assert_allclose(after, before / sigma, rtol=1e-5)
    assert np.any(after != after.astype("float16"))
    assert layer.vector_u.dtype == "float32"
    theirs, _, _ = spectral(inner, "mixed_float16", keras.layers)
    theirs(x, training=True)
    rounded = theirs.kernel.numpy()
    np.testing.assert_array_equal(rounded, rounded.astype("float16"))


@pytest.mark.parametrize("inner", KERNELS)
def test_an_fp16_kernel_is_rounded_once(inner):
    layer, before, x = spectral(inner, "float16")
    layer(x, training=True)
    after = layer.kernel.numpy()
    assert (after.dtype, layer.vector_u.dtype) == (np.float16, "float32")
    expected = before / np.linalg.norm(before.reshape(-1, 4), 2)
    np.testing.assert_allclose(after, expected, rtol=UNIT + 1e-5)


def test_a_second_step_starts_from_the_vector_of_the_first():
    layer, before, x = spectral("dense", "mixed_float16")
    layer.power_iterations = 1
    for _ in range(10):
        layer(x, training=True)
    expected = before / np.linalg.norm(before, 2)
    np.testing.assert_allclose(layer.kernel, expected, rtol=1e-5)


@FP16
def test_a_kernel_of_zeros_stays(policy):
    layer, _, x = spectral("dense", policy)
    layer.kernel.assign(tf.zeros_like(layer.kernel.value))
    before = layer.vector_u.numpy()
    y = layer(x, training=True)
    np.testing.assert_array_equal(y, np.zeros((3, 4)))
    np.testing.assert_array_equal(layer.kernel, np.zeros((5, 4)))
    np.testing.assert_array_equal(layer.vector_u, before)


def test_a_kernel_stays_in_inference():
    layer, before, x = spectral("dense", "mixed_float16")
    layer(x)
    np.testing.assert_array_equal(layer.kernel, before)


@FP16
def test_the_embeddings_of_integers_are_not_integers(policy):
    layer, before, _ = spectral("embedding", policy)
    y = layer(tf.constant([3, 0, 4]))
    assert y.dtype == tf.float16
    np.testing.assert_array_equal(y, before[[3, 0, 4]].astype("float16"))


def test_batch_norm_without_channels():
    layer = layers.BatchNormalization(dtype="mixed_float16")
    assert layer(tf.zeros((3, 0), "float16"), training=True).shape == (3, 0)


@pytest.mark.parametrize("jit", [False, True], ids=["graph", "xla"])
def test_a_vector_shorter_than_epsilon_is_divided_by_it(jit):
    x = tf.constant([[3e-13, 4e-13]], "bfloat16")
    layer = layers.UnitNormalization(dtype="bfloat16")

    @tf.function(jit_compile=jit)
    def run(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = layer(x)
        return y, tape.gradient(y, x, tf.constant([[1.0, 0.0]], "bfloat16"))

    y, gradient = run(x)
    # One rounding each to 8 bits, and that of the inputs.
    np.testing.assert_allclose(np.float32(y), [[0.3, 0.4]], rtol=2.0**-7)
    np.testing.assert_allclose(np.float32(gradient), [[1e12, 0.0]], rtol=2.0**-7)
