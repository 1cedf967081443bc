"""What the paper says happens in FP16, with its techniques and without them."""

import keras
import numpy as np
import oracle
import pytest
import tensorflow as tf
from keras import optimizers

import keras_mp


class GradientProbe(keras.layers.Layer):
    """Passes its input on, and remembers the gradient that comes back."""

    def build(self, input_shape):
        self.seen = self.add_weight(shape=input_shape[1:], trainable=False)

    def call(self, inputs):
        @tf.custom_gradient
        def probe(x):
            def backward(gradient):
                self.seen.assign(tf.cast(gradient[0], self.seen.dtype))
                return gradient

            return tf.identity(x), backward

        return probe(inputs)


class SumOfOutputs(keras.losses.Loss):
    """Its gradient is `factor` for every output."""

    def __init__(self, factor=1.0):
        super().__init__(reduction="sum")
        self.factor = factor

    def call(self, y_true, y_pred):
        return keras.ops.cast(y_pred, "float32") * self.factor


# Section 3.1, and figure 2b: updates that are too small for FP16.


@pytest.mark.parametrize("mode", ["graph", "xla"])
def test_a_thousand_small_updates_with_masters(mode):
    weight = keras.Variable([1.0], dtype="float16")
    optimizer = keras_mp.wrap(optimizers.SGD(1e-4), loss_scale=1)
    step = oracle.make_step(optimizer, [weight], mode)
    for _ in range(1000):
        step([tf.ones(1, "float16")])
    # Each step rounds once, by 2^-25 at most below 1; the learning rate, once.
    master = oracle.value(optimizer.master_weights[0])
    np.testing.assert_allclose(master, [0.9], rtol=0, atol=1001 * 2.0**-25)
    assert oracle.value(weight).tolist() == [float(np.float16(0.9))]
    assert weight.dtype == "float16"


def test_a_thousand_small_updates_without_masters():
    weight = keras.Variable([1.0], dtype="float16")
    optimizer = optimizers.SGD(1e-4)
    step = oracle.make_step(optimizer, [weight], "graph")
    for _ in range(1000):
        step([tf.ones(1, "float16")])
    assert oracle.value(weight).tolist() == [1.0]


@pytest.mark.parametrize("mode", ["eager", "xla"])
def test_stochastic_rounding_without_bias(mode):
    """Appendix A: 4,096 weights, each half way between two FP16 numbers."""
    weight = keras.Variable(np.ones(4096), dtype="float16")
    optimizer = keras_mp.wrap(
        optimizers.SGD(2.0**-11), loss_scale=1, rounding="stochastic"
    )
    step = oracle.make_step(optimizer, [weight], mode)
    step([-tf.ones(4096, "float16")])
    found = oracle.value(weight)
    assert set(found.tolist()) == {1.0, 1 + 2.0**-10}
    # 4,096 coins: the standard deviation of the count is 32; six of them.
    assert abs(np.count_nonzero(found > 1) - 2048) < 6 * 32
    masters = oracle.value(optimizer.master_weights[0])
    assert set(masters.tolist()) == {1 + 2.0**-11}


# Section 3.2, and figure 3: gradients below the smallest FP16 number.


@pytest.mark.slow_except("*-eager", "float16-dynamic-*-xla")
@pytest.mark.parametrize("mode", ["eager", "xla"])
@pytest.mark.parametrize(
    ("policy", "loss_scale", "expected"),
    [
        ("float16", 1, 0.0),
        ("float16", 8, 2.0**-26),
        ("float16", "dynamic", 2.0**-26),
        ("mixed_float16", 1, 0.0),
        ("mixed_float16", 8, 2.0**-26),
        ("mixed_float16", 2**15, 2.0**-26),
        ("float32", 1, 2.0**-26),
        ("float32", 2**15, 2.0**-26),
    ],
)
def test_small_gradients_survive_a_backward_pass(policy, loss_scale, expected, mode):
    dense = keras.layers.Dense(1, use_bias=False, dtype=policy)
    dense.build((1, 1))
    dense.set_weights([np.zeros((1, 1))])
    # A learning rate of 2^26 makes the update 1 for a gradient of 2^-26.
    optimizer = keras_mp.wrap(optimizers.SGD(2.0**26), loss_scale=loss_scale)
    optimizer.build(dense.trainable_variables)

    def step(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.cast(dense(x), "float32")) * 2.0**-26
            scaled_loss = optimizer.scale_loss(loss)
        gradients = tape.gradient(scaled_loss, dense.trainable_variables)
        optimizer.apply(gradients)
        return gradients[0]

    step = step if mode == "eager" else tf.function(step, jit_compile=True)
    gradient = oracle.value(step(tf.ones((1, 1))))
    scale = optimizer.loss_scale_rule.initial_scale
    assert gradient.tolist() == [[expected * scale]]
    assert gradient.dtype == dense.variable_dtype
    assert oracle.value(dense.kernel).tolist() == [[-(2.0**26) * expected]]


@pytest.mark.xslow_except(
    "*-8", "*-dynamic", "float16-1024", "float16-8-xla", "mixed_float16-8-xla"
)
@pytest.mark.slow_except("*float16-8", "float32-8")
@pytest.mark.parametrize(
    ("loss_scale", "xla"),
    [(8, False), (1024.0, False), ("dynamic", False), (8, True)],
    ids=["8", "1024", "dynamic", "8-xla"],
)
@pytest.mark.parametrize(
    "policy", ["float32", "mixed_float16", "float16", "mixed_bfloat16", "bfloat16"]
)
def test_fit_honours_the_loss_scale(policy, loss_scale, xla):
    """Keras drops a constant scale, and scales twice what it does not know."""
    keras.config.set_dtype_policy(policy)
    probe = GradientProbe()
    dense = keras.layers.Dense(1, use_bias=False, kernel_initializer="ones")
    model = keras.Sequential([keras.Input((1,)), dense, probe])
    optimizer = keras_mp.wrap(optimizers.SGD(0.25), loss_scale=loss_scale)
    model.compile(optimizer, loss=SumOfOutputs(), jit_compile=xla)
    assert model.optimizer is optimizer
    model.fit(np.ones((1, 1)), np.zeros((1, 1)), verbose=0)
    assert oracle.value(probe.seen).tolist() == [
        2.0**15 if loss_scale == "dynamic" else loss_scale
    ]
    assert oracle.value(dense.kernel).tolist() == [[0.75]]
    assert int(optimizer.iterations) == 1


@pytest.mark.parametrize("dtype", ["mixed_float16", "float16"])
def test_a_layer_in_fp16_in_a_float32_model(dtype):
    """Keras decides on scaling by the policy of the model, and here does not scale."""
    layers = [
        keras.Input((1,)),
        keras.layers.Dense(1, use_bias=False, kernel_initializer="ones"),
        keras.layers.Dense(1, use_bias=False, kernel_initializer="ones", dtype=dtype),
    ]

    def kernels_after_a_step(optimizer):
        model = keras.models.clone_model(keras.Sequential(layers))
        model.compile(optimizer, loss=SumOfOutputs(2.0**-26), jit_compile=False)
        assert model.dtype_policy.name == "float32"
        model.fit(np.ones((1, 1)), np.zeros((1, 1)), verbose=0)
        return [float(kernel[0, 0]) for kernel in model.trainable_variables]

    # The gradient of 2^-26 times 2^15 is one step between FP16 numbers below 1.
    moved = 1 - 2.0**-11
    assert kernels_after_a_step(optimizers.SGD(2.0**15)) == [1.0, 1.0]
    wrapped = keras_mp.wrap(optimizers.SGD(2.0**15))
    assert kernels_after_a_step(wrapped) == [moved, moved]


# Section 3.2: "weight gradient magnitudes" include those of the regularizer.


def regularized_model():
    """Input 0, so that the regularizer's gradient is the only one."""
    dense = keras.layers.Dense(
        1,
        use_bias=False,
        dtype="float16",
        kernel_initializer=keras.initializers.Constant(1e-4),
        kernel_regularizer=keras.regularizers.L2(1e-5),
    )
    return keras.Sequential([keras.Input((1,)), dense])


@pytest.mark.xslow_except("*-graph", "1-False-xla", "dynamic-True-xla")
@pytest.mark.slow_except("1-False-graph", "dynamic-True-graph")
@pytest.mark.parametrize("xla", [False, True], ids=["graph", "xla"])
@pytest.mark.parametrize(
    ("loss_scale", "survives"),
    [(1, False), (2.0**15, True), (2.0**17, True), ("dynamic", True)],
)
def test_l2_on_small_fp16_weights(loss_scale, survives, xla):
    model = regularized_model()
    # 2 * 1e-5 * 1e-4 = 2e-9 is less than half of the smallest FP16 number, 2^-24.
    optimizer = keras_mp.wrap(optimizers.SGD(1e4), loss_scale=loss_scale)
    model.compile(optimizer, loss="mse", jit_compile=xla)
    optimizer.build(model.trainable_variables)
    weight = float(model.weights[0][0, 0])
    history = model.fit(np.zeros((1, 1)), np.zeros((1, 1)), verbose=0)
    # The loss is computed in FP32: four roundings.
    np.testing.assert_allclose(
        history.history["loss"], [1e-5 * weight**2], rtol=4 * 2.0**-24
    )
    assert int(optimizer.skipped_steps) == 0
    update = weight - float(optimizer.master_weights[0][0, 0])
    if not survives:
        assert update == 0
        return
    # The scaled gradient is rounded to FP16 once, the master to FP32 once.
    expected = 1e4 * 2e-5 * weight
    error = 2.0**-11 * expected + 4 * 2.0**-24 * weight
    np.testing.assert_allclose(update, expected, rtol=0, atol=error)


def test_keras_alone_cannot_fit_fp16_with_a_regularizer():
    model = regularized_model()
    model.compile("sgd", loss="mse", jit_compile=False)
    with pytest.raises(TypeError, match="'float16'> to <dtype: 'float32'>"):
        model.fit(np.zeros((1, 1)), np.zeros((1, 1)), verbose=0)


def test_fp16_regularizer_alone_is_zero():
    """The same L2 in FP16, as Keras evaluates it: (1e-4)^2 is below 2^-24 there."""
    model = regularized_model()
    (loss,) = model.losses
    assert loss.dtype == "float16"
    assert float(loss) == 0.0
    keras_mp.wrap("sgd").build(model.trainable_variables)
    (loss,) = model.losses
    assert loss.dtype == "float32"
    np.testing.assert_allclose(float(loss), 1e-13, rtol=2.0**-10)


# Beyond the range of FP16.


@pytest.mark.xslow_except("*-eager", "1.0-*-xla")
@pytest.mark.slow_except("*-eager", "1.0-nearest-xla")
@pytest.mark.parametrize("mode", ["eager", "xla"])
@pytest.mark.parametrize("rounding", ["nearest", "stochastic"])
@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_a_master_outside_the_range_of_fp16(sign, rounding, mode):
    weight = keras.Variable([sign * 60000.0], dtype="float16")
    optimizer = keras_mp.wrap(optimizers.SGD(4.0), loss_scale=1, rounding=rounding)
    step = oracle.make_step(optimizer, [weight], mode)
    master = optimizer.master_weights[0]
    initial = float(weight[0])
    gradient = tf.constant([sign * 4096.0], "float16")
    found = []
    for direction in (-1, -1, 1, 1):
        step([direction * gradient])
        found.append((float(master[0]), float(weight[0])))
    assert found == [
        (initial + sign * 16384, sign * 65504),
        (initial + sign * 32768, sign * 65504),
        (initial + sign * 16384, sign * 65504),
        (initial, initial),
    ]


def test_bare_fp16_weights_become_inf():
    weight = keras.Variable([60000.0], dtype="float16")
    optimizers.SGD(4.0).apply([tf.constant([-4096.0], "float16")], [weight])
    assert float(weight[0]) == np.inf
