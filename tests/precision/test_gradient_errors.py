"""Plans for gradients: of a loss scale, of a layer's rounding, of FP32 itself."""

import math

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import ops

import keras_mp
from keras_mp.diagnostics.statistics import TensorStatistics
from keras_mp.precision.measurement import largest_loss_scale, smallest_loss_scale

L = keras.layers
RANDOM = np.random.default_rng(0)
X = RANDOM.normal(size=(32, 16)).astype("float32")
IDS = np.random.default_rng(0).integers(0, 50, (16, 8)).astype("int32")


@pytest.fixture(autouse=True)
def mixed_float16():
    keras.config.set_dtype_policy("mixed_float16")
    keras.utils.set_random_seed(0)


class Amplified(L.Layer):
    """An identity: inside it gradients are `factor` times as large as at its ends."""

    def __init__(self, factor, **options):
        super().__init__(**options)
        self.factor = factor

    def call(self, x):
        return (x / self.factor) * self.factor


def with_large_gradients(factor):
    inputs = keras.Input((16,))
    x = L.Dense(32, "gelu", name="a")(inputs)
    x = Amplified(factor, name="inside")(x)
    model = keras.Model(inputs, L.Dense(4, name="b")(x))
    model.compile(keras_mp.wrap("sgd"), "mse")
    return model


@pytest.mark.parametrize("factor", [2.0**6, 2.0**12])
def test_a_smaller_loss_scale_comes_before_fp32(factor):
    model, y = with_large_gradients(factor), 200.0 * X[:, :4]
    scale = keras_mp.suggest_loss_scale(model, [(X, y)]).initial_scale
    plan = keras_mp.plan_precision(model, X, y)
    assert plan.precisions == {} and plan.float16_share == 1.0 and not plan.notes
    assert plan.gradient_error <= 0.02
    assert scale / (4 * factor) <= plan.loss_scale < scale
    assert f"loss scale up to {plan.loss_scale:g}" in str(plan)
    # At four times the scale they overflow.
    for each, overflows in ((plan.loss_scale, False), (4 * plan.loss_scale, True)):
        found = keras_mp.find_overflow(model, X, y, loss_scale=each)
        assert (found is not None) == overflows


def test_a_loss_scale_below_1():
    """The gradients are larger than FP16 holds, before they are scaled."""
    model = with_large_gradients(1.0)
    plan = keras_mp.plan_precision(model, X, 1e6 * X[:, :4])
    assert plan.precisions == {} and 2.0**-14 <= plan.loss_scale < 1.0
    assert plan.gradient_error <= 0.02


RULES = {
    "dynamic": ("dynamic", 2.0**-4),
    "dynamic, of a floor": (keras_mp.DynamicLossScale(min_scale=0.5), 0.5),
    "dynamic, below": (keras_mp.DynamicLossScale(2.0**-6), 2.0**-6),
    "constant": (128.0, 128.0),
}


@pytest.mark.parametrize("name", RULES)
def test_apply_lowers_a_dynamic_loss_scale(name):
    rule, expected = RULES[name]
    model = with_large_gradients(1.0)
    model.compile(keras_mp.wrap("sgd", loss_scale=rule), "mse")
    keras_mp.PrecisionPlan((), 1.0, 0.0, 4.0, (), 2.0**-4).apply(model)
    assert float(model.optimizer.loss_scale) == expected


def gradients(*magnitudes):
    return TensorStatistics.of(tf.constant(magnitudes, "float32"))


SMALL = [2.0**-20] * 2 + [1.0] * 98  # at 2^-4 two of a hundred are 2^-24, at 2^-5 none

# Name of the case: the gradients, the smallest loss scale, and the largest.
SCALES = {
    "nothing": (None, 1.0, 1.0),
    "zeros": (gradients(0.0, 0.0), 2.0**-14, 1.0),
    "what FP16 holds at each scale": (gradients(1.0, 2.0**-10), 2.0**-14, 2.0**14),
    "small ones": (gradients(*SMALL), 2.0**-4, 2.0**14),
    "small ones, beside a large one": (gradients(*SMALL, 2.0**40), 2.0**-4, 2.0**-4),
    "1% small ones": (gradients(*SMALL[1:], 1.0, 2.0**20), 2.0**-14, 2.0**-6),
    "what is lost at 1, too": (gradients(2.0**-30, 1.0), 2.0**-14, 2.0**14),
    "one that is not finite": (gradients(1.0, math.inf), 2.0**-14, 1.0),
}


@pytest.mark.parametrize("name", SCALES)
def test_loss_scales_that_follow_from_gradients(name):
    statistics, smallest, largest = SCALES[name]
    assert smallest_loss_scale(statistics) == smallest
    assert largest_loss_scale(statistics) == largest


class OverflowsBackward(L.Layer):
    """An identity whose gradient is multiplied by 1e9 and divided by it."""

    def call(self, x):
        @tf.custom_gradient
        def scaled(x, factor):
            return tf.identity(x), lambda up: (up * tf.cast(factor, up.dtype), None)

        return scaled(scaled(x, 1e-9), 1e9)


def test_the_layer_that_overflows_at_every_loss_scale_alone_leaves_fp16():
    inputs = keras.Input((16,))
    x = OverflowsBackward(name="own")(L.Dense(16, name="a")(inputs))
    model = keras.Model(inputs, L.Dense(4, name="b")(x))
    model.compile(keras_mp.wrap("sgd"), "mse")
    plan = keras_mp.plan_precision(model, X, X[:, :4])
    assert plan.precisions == {"own": "float32"} and plan.gradient_error <= 0.02
    assert plan.loss_scale > 1.0  # the one before: a lower one did not help


class Attention(L.Layer):
    """Its softmax is nearly a step, so that it amplifies the errors of its scores."""

    def __init__(self, **options):
        super().__init__(**options)
        self.norm = L.LayerNormalization(name="norm")
        self.qkv = L.Dense(48, name="qkv")
        self.out = L.Dense(16, name="out")

    def build(self, shape):
        for each in (self.norm, self.qkv, self.out):
            each.build(shape)
        self.built = True

    def call(self, x):
        y = ops.reshape(self.qkv(self.norm(x)), (-1, 8, 3, 4, 4))
        q, k, v = ops.unstack(y, 3, axis=2)
        scores = ops.softmax(ops.einsum("bqhd,bkhd->bhqk", q, k))
        y = ops.einsum("bhqk,bkhd->bqhd", scores, v)
        return x + self.out(ops.reshape(y, (-1, 8, 16)))

    def compute_output_shape(self, shape):
        return shape


def with_sharp_attention(seed, sharpness=200.0):
    keras.utils.set_random_seed(seed)
    inputs = keras.Input((8,), dtype="int32")
    x = L.Embedding(50, 16, name="words")(inputs)
    x = Attention(name="second")(Attention(name="first")(x))
    x = L.LayerNormalization(name="norm")(x)
    model = keras.Model(inputs, L.Dense(50, name="logits")(x))
    for name in ("first", "second"):
        kernel = model.get_layer(name).qkv.kernel
        factors = np.r_[np.full(32, sharpness), np.ones(16)]
        kernel.assign(kernel.numpy() * factors)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras_mp.wrap("adamw"), loss)
    return model


@pytest.mark.xslow_except("1")
@pytest.mark.slow_except("4")
@pytest.mark.parametrize("seed", [1, 3, 4])
def test_the_layers_before_one_that_amplifies_errors_leave_fp16(seed):
    model, y = with_sharp_attention(seed), (IDS + 1) % 50
    plan = keras_mp.plan_precision(model, IDS, y)
    assert plan.gradient_error <= 0.02 and not plan.notes
    assert plan.verify(model, IDS, y).after.gradient_error == plan.gradient_error
    assert 0.0 < plan.fp32_noise < 0.01
    # Nothing is rounded before the scores of the first block, and what is behind stays.
    assert plan.precisions["first/qkv"] == plan.precisions["words"] == "float32"
    assert not {"first/out", "second/out", "norm", "logits"} & plan.precisions.keys()
    reason = {each.path: each.reason for each in plan.layers}["first/qkv"]
    assert "from float16 in only this layer" in reason


class Chaotic(L.Layer):
    """Multiplies by numbers that the smallest error of its input changes."""

    def __init__(self, times, **options):
        super().__init__(**options)
        self.times = times

    def call(self, x):
        chaos = ops.sigmoid(ops.stop_gradient(x))
        for _ in range(self.times):
            chaos = 4.0 * chaos * (1.0 - chaos)  # errors grow by up to 4 each time
        return x * chaos


def with_chaos(times):
    inputs = keras.Input((16,))
    x = Chaotic(times, name="chaotic")(L.Dense(16, name="a")(inputs))
    model = keras.Model(inputs, L.Dense(4, name="b")(x))
    model.compile(keras_mp.wrap("sgd"), "mse")
    return model


def test_no_layer_leaves_fp16_for_an_error_that_fp32_has_itself():
    plan = keras_mp.plan_precision(with_chaos(30), X, X[:, :4])
    assert plan.precisions == {} and plan.fp32_noise > 0.02
    assert 0.02 < plan.gradient_error <= 3 * plan.fp32_noise
    (note,) = plan.notes
    assert note.startswith(f"FP32 itself has a gradient error of {plan.fp32_noise:.2%}")
    assert f"of FP32 itself {plan.fp32_noise:.2%}" in str(plan)


def test_the_tolerance_is_at_least_three_times_the_error_of_fp32():
    plan = keras_mp.plan_precision(with_chaos(8), X, X[:, :4], tolerance=1e-6)
    assert plan.fp32_noise > 1e-6 and plan.gradient_error <= 3 * plan.fp32_noise
    assert plan.precisions["chaotic"] == plan.precisions["a"] == "float32"
    (note,) = plan.notes
    assert note.endswith(f"{3 * plan.fp32_noise:.2%} is tolerated instead of 0.00%")


def test_an_error_of_stored_weights_is_named():
    """FP16 rounds the kernels by up to 2**-11 whatever the layers compute in."""
    keras.config.set_dtype_policy("float16")
    model = keras.Sequential([keras.Input((16,)), L.Dense(8), L.Dense(4)])
    model.compile(keras_mp.wrap(keras.optimizers.SGD(1e-2)), "mse")
    model.fit(X, X[:, :4], verbose=0)  # the masters have digits below those of FP16
    plan = keras_mp.plan_precision(model, X, X[:, :4], tolerance=1e-5)
    assert plan.precisions == {}
    assert 1e-5 < plan.gradient_error < 2.0**-11 * 4
    assert "the stored weights unchanged, it is 0.0" in plan.notes[-1]


def test_what_a_plan_measured_is_saved(tmp_path):
    plan = keras_mp.plan_precision(with_large_gradients(64.0), X, 200.0 * X[:, :4])
    plan.save(tmp_path / "plan.json")
    loaded = keras_mp.PrecisionPlan.load(tmp_path / "plan.json")
    assert loaded == plan and loaded.loss_scale == plan.loss_scale
    older = plan.to_dict()
    del older["loss_scale"], older["fp32_noise"]
    assert keras_mp.PrecisionPlan.from_dict(older).loss_scale is None
