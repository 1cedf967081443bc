"""The pooling layers: means of numbers whose sum is inf or inexact in FP16."""

import os
import subprocess
import sys

import keras
import numpy as np
import pytest
import tensorflow as tf
from older_versions import needs

from keras_mp import layers

POLICIES = pytest.mark.parametrize("policy", ["mixed_float16", "float16"])
FIRST = {"data_format": "channels_first"}
# Sums of 100,000 equal numbers are exact in FP32, in any order: integers below 2**24,
# times a power of two.
GLOBAL = {
    "global-1d": ("GlobalAveragePooling1D", {}, (1, 100_000, 2)),
    "global-1d-first": ("GlobalAveragePooling1D", FIRST, (1, 2, 100_000)),
    "global-2d": ("GlobalAveragePooling2D", {}, (1, 250, 400, 2)),
    "global-2d-first": ("GlobalAveragePooling2D", FIRST, (1, 2, 250, 400)),
    "global-3d": ("GlobalAveragePooling3D", {}, (1, 50, 40, 50, 2)),
    "global-3d-first": ("GlobalAveragePooling3D", FIRST, (1, 2, 50, 40, 50)),
}
# The mean of N equal numbers errs by N * 2**-24 of it at most, here by 2**-12: too
# little to be rounded to another number.
WINDOWS = {
    "1d": ("AveragePooling1D", {"pool_size": 4095}, (1, 8192, 2)),
    "1d-first": ("AveragePooling1D", {"pool_size": 4096} | FIRST, (1, 2, 8192)),
    "2d": ("AveragePooling2D", {"pool_size": (63, 65)}, (1, 64, 130, 2)),
    "2d-first": ("AveragePooling2D", {"pool_size": 64} | FIRST, (1, 2, 64, 128)),
    "3d": ("AveragePooling3D", {"pool_size": (15, 17, 16)}, (1, 15, 17, 32, 2)),
    "3d-first": ("AveragePooling3D", {"pool_size": 16} | FIRST, (1, 2, 16, 16, 16)),
}
SHAPES = GLOBAL | WINDOWS


def made(name, policy="mixed_float16", package=layers, **options):
    return getattr(package, name)(dtype=policy, **options)


@POLICIES
@pytest.mark.parametrize("number", [1.0, 2.0**15], ids=str)
@pytest.mark.parametrize(("name", "options", "shape"), SHAPES.values(), ids=SHAPES)
def test_means_of_numbers_without_a_sum_in_fp16(name, options, shape, number, policy):
    y = made(name, policy, **options)(tf.fill(shape, tf.constant(number, tf.float16)))
    assert y.dtype == tf.float16
    np.testing.assert_array_equal(y, np.full(y.shape, number))


@pytest.mark.parametrize("name", ["1d", "2d"])
def test_a_sum_in_fp16_is_inf(name):
    name, options, shape = SHAPES[name]
    layer = made(name, "float16", keras.layers, **options)
    assert np.all(np.isinf(layer(tf.fill(shape, tf.constant(2.0**15, tf.float16)))))


@pytest.mark.parametrize("name", ["GlobalAveragePooling2D", "AveragePooling2D"])
def test_a_mean_is_rounded_once(name):
    layer = made(name, **({} if "Global" in name else {"pool_size": 64}))
    # 2048 and 2050, and 2050 and 2052 in turn; ties are rounded to even.
    x = np.resize([2048, 2050, 2050, 2052], (1, 64, 64, 2))
    y = layer(tf.constant(x, tf.float16))
    np.testing.assert_array_equal(np.ravel(y), [2048, 2052])


@pytest.mark.parametrize(
    ("name", "options", "shape"),
    [(n, o | {"keepdims": True}, s) for n, o, s in GLOBAL.values()],
    ids=GLOBAL,
)
def test_the_gradient_of_a_mean_is_spread(name, options, shape):
    """Each of 8 elements gets 1 / 8 of the upstream gradient, in XLA too."""
    inner = {1: [8], 2: [2, 4], 3: [2, 2, 2]}[len(shape) - 2]
    channels_first = "data_format" in options
    shape = [3, 2, *inner] if channels_first else [3, *inner, 2]
    layer = made(name, **options)

    @tf.function(jit_compile=True)
    def gradient(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = layer(x)
        return y, tape.gradient(y, x, upstream)

    kept = [1] * len(inner)
    slope = np.arange(6.0).reshape(3, 2)
    upstream = slope.reshape([3, 2, *kept] if channels_first else [3, *kept, 2])
    upstream = tf.constant(upstream, tf.float16)
    y, found = gradient(tf.ones(shape, tf.float16))
    assert y.shape == upstream.shape
    assert found.dtype == tf.float16
    np.testing.assert_array_equal(found, np.broadcast_to(upstream / 8, shape))


def gradient_of(layer, x, upstream, **arguments):
    """The outputs and the gradient of the inputs."""
    x = tf.constant(x, layer.compute_dtype)
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = layer(x, **arguments)
    gradient = tape.gradient(y, x, tf.reshape(tf.cast(upstream, y.dtype), y.shape))
    assert y.dtype == gradient.dtype == layer.compute_dtype
    return y.numpy().ravel().tolist(), gradient.numpy().ravel().tolist()


OVERLAPPING = {
    # Two windows that share the second element.
    "valid": ("valid", 2, [1, 3, 5], [1, 2], [2, 4], [0.5, 1.5, 1]),
    # Padding does not count: the last window has one element.
    "same": ("same", 2, [1, 3, 5], [1, 2, 4], [2, 4, 5], [0.5, 1.5, 5]),
    # 2048 + 1 + 1 + 1 is 2052 after one rounding, and 2048 after one each.
    "one-rounding": (
        "valid",
        4,
        [0, 0, 0, 2048, 1, 1, 1],
        [8192, 4, 4, 4],
        [512, 512.25, 512.5, 512.75],
        [2048, 2049, 2050, 2051, 3, 2, 1],
    ),
}


@pytest.mark.parametrize("dimensions", [1, 2, 3])
@pytest.mark.parametrize(
    ("padding", "size", "x", "upstream", "expected", "slopes"),
    OVERLAPPING.values(),
    ids=OVERLAPPING,
)
def test_windows_that_overlap(padding, size, x, upstream, expected, slopes, dimensions):
    ones = [1] * (dimensions - 1)
    layer = made(
        f"AveragePooling{dimensions}D",
        pool_size=[*ones, size],
        strides=1,
        padding=padding,
    )
    x = np.reshape(x, [1, *ones, len(x), 1])
    y, gradient = gradient_of(layer, x, upstream)
    assert y == np.float16(expected).tolist()
    assert gradient == np.float16(slopes).tolist()


# GlobalAveragePooling1D with a mask.


@pytest.mark.parametrize("hidden", [6e4, np.inf, np.nan], ids=str)
@pytest.mark.parametrize("channels_first", [False, True])
@POLICIES
def test_what_is_masked_does_not_count(policy, channels_first, hidden):
    x = np.reshape([3e4, 6e4, hidden, 1, hidden, hidden], (2, 3, 1))
    mask = np.array([[1, 1, 0], [1, 0, 0]], bool)
    options = {}
    if channels_first:
        x, options = np.swapaxes(x, 1, 2), {"data_format": "channels_first"}
    layer = made("GlobalAveragePooling1D", policy, **options)
    y, gradient = gradient_of(layer, x, [1, 2], mask=tf.constant(mask))
    assert y == [np.float16(4.5e4), 1]
    assert gradient == [0.5, 0.5, 0, 2, 0, 0]


def test_5000_steps_of_10_000_count():
    # Steps counted in FP16 stop at 2048.
    x = np.resize([3, 6e4], (1, 10_000, 1))
    y = made("GlobalAveragePooling1D")(tf.constant(x, tf.float16), mask=x[..., 0] == 3)
    assert y.numpy().tolist() == [[3]]


@pytest.mark.parametrize(
    "package",
    [pytest.param(keras.layers, marks=needs("Keras", 3, 15)), layers],
    ids=["keras", "ours"],
)
def test_a_mean_of_nothing_is_not_a_number(package):
    layer = made("GlobalAveragePooling1D", package=package)
    x = [[[1], [2]], [[3], [4]]]
    y, gradient = gradient_of(layer, x, [1, 1], mask=tf.constant([[0, 0], [1, 1]]))
    np.testing.assert_array_equal(y, [np.nan, 3.5])
    assert gradient == [0, 0, 0.5, 0.5]


def test_the_mask_of_an_embedding_reaches_the_mean():
    model = keras.Sequential(
        [
            keras.layers.Embedding(4, 1, mask_zero=True, dtype="mixed_float16"),
            layers.GlobalAveragePooling1D(dtype="mixed_float16"),
        ]
    )
    model.build((None, 3))
    model.set_weights([np.reshape([6e4, 1, 2, 4], (4, 1))])
    assert model(np.array([[1, 3, 0]])).numpy().tolist() == [[2.5]]


@pytest.mark.parametrize("dimensions", [1, 2, 3])
@pytest.mark.parametrize("data_format", ["channels_last", "channels_first"])
@pytest.mark.parametrize("kind", ["Average", "GlobalAverage"])
def test_sizes_that_are_not_known_while_a_graph_is_made(kind, data_format, dimensions):
    options = {"pool_size": 3} if kind == "Average" else {}
    layer = made(f"{kind}Pooling{dimensions}D", data_format=data_format, **options)
    inner = [3] * dimensions
    if data_format == "channels_last":
        shape, unknown = [2, *inner, 2], [None] * (dimensions + 1) + [2]
    else:
        shape, unknown = [2, 2, *inner], [None, 2] + [None] * dimensions
    call = tf.function(layer, input_signature=[tf.TensorSpec(unknown, tf.float16)])
    for rows in (0, 2):
        expected = np.full(layer.compute_output_shape([rows, *shape[1:]]), 2)
        y = call(tf.fill([rows, *shape[1:]], tf.constant(2, tf.float16)))
        np.testing.assert_array_equal(y, expected)
        assert y.shape == expected.shape


@pytest.mark.parametrize("jit", [None, False, True], ids=["eager", "graph", "xla"])
@pytest.mark.parametrize("rank", [1, 2, 3])
def test_windows_that_skip_numbers(rank, jit):
    # Of 0 to 4 the windows of 2 at a distance of 3 are [0, 1] and [3, 4].
    x = np.arange(5, dtype="float16").reshape(1, 5, *[1] * rank)
    x = np.broadcast_to(x, (1, 5, *[2] * (rank - 1), 1))
    layer = getattr(layers, f"AveragePooling{rank}D")(
        (2, *[1] * (rank - 1)), (3, *[1] * (rank - 1)), "same", dtype="float16"
    )

    def run(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = layer(x)
        return y, tape.gradient(y, x)

    y, gradient = (run if jit is None else tf.function(run, jit_compile=jit))(
        tf.constant(x)
    )
    first = (0, slice(None), *[0] * rank)
    np.testing.assert_array_equal(y.numpy()[first], [0.5, 3.5])
    np.testing.assert_array_equal(gradient.numpy()[first], [0.5, 0.5, 0, 0.5, 0.5])


@pytest.mark.slow
def test_where_tensorflow_chooses_what_xla_compiles():
    """It is told by an environment variable, when it is imported."""
    code = """
import keras, keras_mp, numpy as np
layers = [
    keras.layers.Conv2D(1, 1, use_bias=False, kernel_initializer="ones"),
    keras_mp.layers.AveragePooling2D(2, dtype="float16"),
    keras.layers.Flatten(),
]
model = keras.Sequential([keras.Input((2, 2, 1)), *layers])
model.compile(keras.optimizers.SGD(0.25), "mse", jit_compile=False)
model.fit(np.ones((5, 2, 2, 1)), np.zeros((5, 1)), batch_size=4, verbose=0)
print(model.get_weights()[0].item())
"""
    flags = {"TF_XLA_FLAGS": "--tf_xla_auto_jit=2 --tf_xla_cpu_global_jit"}
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        env=os.environ | flags,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    # The loss is the square of the weight, which each of the two steps halves.
    assert float(done.stdout) == 0.25


# Adaptive pooling.
ADAPTIVE = {
    "one": ("AdaptiveAveragePooling1D", 1, (1, 7, 2)),
    "1d": ("AdaptiveAveragePooling1D", 3, (1, 8192, 2)),
    "2d": ("AdaptiveAveragePooling2D", (2, 3), (1, 64, 130, 2)),
    "3d": ("AdaptiveAveragePooling3D", (1, 2, 3), (1, 15, 17, 32, 2)),
}


@POLICIES
@pytest.mark.parametrize("data_format", ["channels_last", "channels_first"])
@pytest.mark.parametrize(("name", "size", "shape"), ADAPTIVE.values(), ids=ADAPTIVE)
def test_adaptive_means_of_numbers_without_a_sum_in_fp16(
    name, size, shape, data_format, policy
):
    if data_format == "channels_first":
        shape = (shape[0], shape[-1], *shape[1:-1])
    layer = made(name, policy, output_size=size, data_format=data_format)
    y = layer(tf.fill(shape, tf.constant(2.0**15, tf.float16)))
    assert y.dtype == tf.float16
    np.testing.assert_array_equal(y, np.full(layer.compute_output_shape(shape), 2**15))


def test_adaptive_sums_in_fp16_are_inf():
    layer = made("AdaptiveAveragePooling2D", "float16", keras.layers, output_size=2)
    assert np.all(np.isinf(layer(tf.fill((1, 5, 5, 1), tf.constant(4e4, tf.float16)))))


def means_in_float64(x, counts):
    """Adaptive means of `[batch, ..., channels]`, and the matrix of each axis."""
    matrices = []
    for axis, count in enumerate(counts, start=1):
        size = x.shape[axis]
        matrix = np.zeros((count, size))
        for i in range(count):
            window = slice(i * size // count, -(-(i + 1) * size // count))
            matrix[i, window] = 1 / (window.stop - window.start)
        x = np.moveaxis(np.tensordot(matrix, x, (1, axis)), 0, axis)
        matrices.append(matrix)
    return x, matrices


@pytest.mark.xslow_except("*-float16-*", "*-bfloat16-eager")
@pytest.mark.slow_except("*-float16-eager")
@pytest.mark.parametrize("jit", [None, False, True], ids=["eager", "graph", "xla"])
@pytest.mark.parametrize("half", ["float16", "bfloat16"])
@pytest.mark.parametrize(
    ("sizes", "counts"),
    [
        *[((size,), (3,)) for size in (1, 2, 3, 7, 17, 111, 989)],
        *[((217,), (count,)) for count in (1, 7, 16, 64, 216, 217, 218, 500)],
        ((17, 7), (7, 3)),
        ((7, 5, 4), (2, 5, 3)),
    ],
    ids=str,
)
def test_windows_of_any_size(sizes, counts, half, jit):
    rng = np.random.default_rng(0)
    shape = (2, *sizes, 3)
    x = tf.cast(rng.uniform(-1, 1, shape), half)
    layer = made(
        f"AdaptiveAveragePooling{len(sizes)}D", f"mixed_{half}", output_size=counts
    )
    upstream = tf.cast(rng.uniform(-1, 1, (2, *counts, 3)), half)

    def run(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = layer(x)
        return y, tape.gradient(y, x, upstream)

    found = (run if jit is None else tf.function(run, jit_compile=jit))(x)
    mean, matrices = means_in_float64(np.float64(x), counts)
    slope = np.float64(upstream)
    for axis, matrix in enumerate(matrices, start=1):
        slope = np.moveaxis(np.tensordot(matrix.T, slope, (1, axis)), 0, axis)
    unit = {"float16": 2.0**-11, "bfloat16": 2.0**-8}[half]
    for actual, expected in zip(found, (mean, slope), strict=True):
        assert actual.dtype == half
        # One rounding, and FP32 sums along each axis: of as many terms as there are,
        # whose absolute values sum to at most that many.
        terms = max(*sizes, *counts) + 2
        size = max(1, np.max(np.abs(expected)))
        atol = unit * size + len(sizes) * terms * 2.0**-24 * size
        np.testing.assert_allclose(np.float64(actual), expected, rtol=0, atol=atol)


def test_an_inf_stays_in_its_window():
    layer = made("AdaptiveAveragePooling1D", output_size=2)
    y = layer(np.float16([[[1], [2], [3], [4], [np.inf]]]))
    assert y.numpy().ravel().tolist() == [2, np.inf]


def test_adaptive_pooling_of_an_unknown_size_is_refused():
    layer = made("AdaptiveAveragePooling1D", output_size=2)
    call = tf.function(layer, input_signature=[tf.TensorSpec((1, None, 1), "float16")])
    with pytest.raises(ValueError, match=r"Received: shape=\(1, None, 1\)"):
        call(tf.ones((1, 5, 1), "float16"))


def test_adaptive_pooling_of_nothing_is_refused():
    layer = made("AdaptiveAveragePooling1D", output_size=2)
    with pytest.raises(ValueError, match=r"not 0, .*Received: shape=\(1, 0, 1\)"):
        layer(tf.ones((1, 0, 1), "float16"))
