"""`estimate_memory`: exact bytes of variables, and a step that is traced, not run."""

import itertools
import math

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_mp

BATCH = 8
COMPRESSED = {"masters": "remainders", "state": "int8"}


class Subclassed(keras.Model):
    """Two layers, a loss of its own, statistics, and random numbers."""

    def __init__(self, policy):
        super().__init__(dtype=policy)
        self.first = keras.layers.Dense(96, "relu", dtype=policy)
        self.norm = keras.layers.BatchNormalization(dtype=policy)
        self.dropout = keras.layers.Dropout(0.5, seed=1, dtype=policy)
        self.last = keras.layers.Dense(
            10, dtype=policy, kernel_regularizer=keras.regularizers.L2(1e-3)
        )

    def call(self, x, training=False):
        x = self.norm(self.first(x), training=training)
        self.add_loss(keras.ops.mean(keras.ops.cast(x, "float32")))
        return self.last(self.dropout(x, training=training))


def subclassed(policy):
    model = Subclassed(policy)
    model(np.zeros((1, 64), "float32"))
    return model


def functional(policy):
    inputs = keras.Input((64,))
    x = keras.layers.Dense(96, "relu", dtype=policy)(inputs)
    return keras.Model(inputs, keras.layers.Dense(10, dtype=policy)(x))


def sequential(policy):
    dense = [keras.layers.Dense(units, dtype=policy) for units in (96, 10)]
    return keras.Sequential([keras.Input((64,)), *dense])


def batch():
    generator = np.random.default_rng(0)
    x = generator.normal(size=(BATCH, 64))  # float64, as NumPy makes it
    return x, generator.normal(size=(BATCH, 10)).astype("float32")


def specs():
    return keras.KerasTensor((BATCH, 64)), tf.TensorSpec((BATCH, 10))


def size_of(variable):
    dtype = keras.backend.standardize_dtype(variable.dtype)
    return math.prod(variable.shape) * tf.as_dtype(dtype).size


OPTIMIZERS = {
    "bare": lambda: keras.optimizers.Adam(),
    "Keras, mixed": lambda: keras.optimizers.LossScaleOptimizer(
        keras.optimizers.Adam()
    ),
    "wrapped": lambda: keras_mp.wrap("adam"),
    "compressed": lambda: keras_mp.wrap("adam", **COMPRESSED),
    "no masters": lambda: keras_mp.wrap("sgd", masters=None, rounding="stochastic"),
    "Adafactor": lambda: keras_mp.wrap("adafactor"),
    "Muon": lambda: keras_mp.wrap(keras.optimizers.Muon()),
    "average, accumulation": lambda: keras_mp.wrap(
        keras.optimizers.Adam(use_ema=True, gradient_accumulation_steps=2), **COMPRESSED
    ),
}


@pytest.mark.slow_except("functional-wrapped", "subclassed-compressed")
@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("make_model", [subclassed, functional, sequential])
def test_variables_are_counted_as_training_makes_them(make_model, name):
    policy = "float32" if name == "bare" else "float16"
    policy = "mixed_float16" if name == "Keras, mixed" else policy
    model = make_model(policy)
    model.compile(OPTIMIZERS[name](), "mse")
    use = keras_mp.estimate_memory(model)
    model.optimizer.build(model.trainable_variables)
    assert use.weights == sum(map(size_of, model.variables))
    assert use.gradients == sum(map(size_of, model.trainable_variables))
    arrays = [v for v in model.optimizer.variables if len(v.shape) > 0]
    # The seed of stochastic rounding has an axis, too.
    seeds = sum(size_of(v) for v in arrays if "seed" in v.path)
    assert use.masters + use.state == sum(map(size_of, arrays)) - seeds
    assert use.activations is use.step is None
    assert use.total == use.weights + use.masters + use.state + use.gradients


# Bytes a parameter of Adam and FP16 weights, and of weights in FP32: kernels of 4,096
# elements and more have compressed state.
@pytest.mark.parametrize(
    ("policy", "forms", "masters", "state"),
    [
        ("float16", {}, 4, 8),
        ("bfloat16", {}, 4, 8),
        ("mixed_float16", {}, 0, 8),
        ("float32", {}, 0, 8),
        ("float16", {"masters": "remainders"}, 2, 8),
        ("float16", COMPRESSED, 2, 2 + 2 / 32),
    ],
)
def test_bytes_of_a_parameter(policy, forms, masters, state):
    dense = keras.layers.Dense(64, use_bias=False, dtype=policy)
    model = keras.Sequential([keras.Input((64,)), dense])
    use = keras_mp.estimate_memory(model, keras_mp.wrap("adam", **forms))
    element = 4 if policy in ("mixed_float16", "float32") else 2
    assert use.weights == use.gradients == 64**2 * element
    assert (use.masters, use.state) == (64**2 * masters, 64**2 * state)


@pytest.mark.parametrize("make_batch", [batch, specs])
def test_a_step_of_one_layer(make_batch):
    """Its gradient is written over by its product with the learning rate."""
    dense = keras.layers.Dense(10, use_bias=False)
    model = keras.Sequential([keras.Input((64,)), dense])
    model.compile(keras.optimizers.SGD(), "mse")
    use = keras_mp.estimate_memory(model, None, *make_batch())
    given, kernel = BATCH * (64 + 10) * 4, 64 * 10 * 4
    # The kernel's gradient, and that of the results.
    assert given + kernel + BATCH * 10 * 4 <= use.step <= given + kernel + 500
    assert use.activations < use.step
    assert use.total == use.weights + use.step


@pytest.mark.xslow_except("*-float16", "*-mixed_float16", "functional-*")
@pytest.mark.slow_except("functional-float16", "subclassed-float16")
@pytest.mark.parametrize("policy", ["float16", "bfloat16", "mixed_float16", "float32"])
@pytest.mark.parametrize("make_model", [subclassed, functional, sequential])
def test_activations_of_each_policy(make_model, policy):
    model = make_model(policy)
    model.compile(keras_mp.wrap("adam"), "mse")
    small = keras_mp.estimate_memory(model, None, *specs())
    shapes = [keras.KerasTensor((4 * BATCH, size)) for size in (64, 10)]
    large = keras_mp.estimate_memory(model, None, *shapes)
    assert 0 < small.activations <= small.step <= small.gradients + small.activations
    # At least the inputs, the targets, and the results of the first layer.
    element = 4 if policy == "float32" else 2
    grown = 3 * BATCH * (4 * 64 + 4 * 10 + 96 * element)
    assert large.activations - small.activations >= grown
    assert large.weights == small.weights and large.state == small.state


@pytest.mark.slow
@pytest.mark.xslow_except("subclassed-True", "functional-False")
@pytest.mark.parametrize("is_built", [False, True])
@pytest.mark.parametrize("make_model", [subclassed, functional])
def test_nothing_changes(make_model, is_built):
    keras.utils.set_random_seed(0)
    model, other = make_model("float16"), make_model("float16")
    other.set_weights(model.get_weights())
    model.compile(keras_mp.wrap("adam"), "mse", metrics=["mae"])
    other.compile(keras_mp.wrap("adam"), "mse", metrics=["mae"])
    if is_built:
        for each in (model, other):
            keras.utils.set_random_seed(1)
            each.optimizer.build(each.trainable_variables)
            each.train_on_batch(*batch())
    before = [v.numpy() for v in (*model.variables, *model.optimizer.variables)]
    penalties = [v.regularizer for v in model.trainable_variables]
    keras_mp.estimate_memory(model, None, *batch())
    keras_mp.estimate_memory(model, keras_mp.wrap("sgd"), *specs())
    after = [v.numpy() for v in (*model.variables, *model.optimizer.variables)]
    for one, two in itertools.zip_longest(before, after):
        np.testing.assert_array_equal(one, two, strict=True)
    assert penalties == [v.regularizer for v in model.trainable_variables]
    assert model.optimizer.built == is_built
    assert all(not tf.is_symbolic_tensor(loss) for loss in model.losses)
    logs = []
    for each in (model, other):
        each.optimizer.build(each.trainable_variables)
        keras.utils.set_random_seed(2)
        logs.append(each.train_on_batch(*batch()))
    assert logs[0] == logs[1]


def test_the_optimizer_that_is_passed():
    model = functional("float16")
    model.compile("sgd", "mse")
    use = keras_mp.estimate_memory(model, keras_mp.wrap("adam"))
    assert use.masters == 2 * use.weights and use.state == 4 * use.weights
    assert not model.optimizer.built


def test_optimizers_that_share_a_loss_scale():
    """A copy of one of them shares it with none, of which a config warns."""
    first = keras_mp.wrap("adam")
    second = keras_mp.wrap("adam", loss_scale=first)
    model = functional("float16")
    uses = [keras_mp.estimate_memory(model, each) for each in (first, second)]
    assert uses[0] == uses[1]


def test_a_table():
    use = keras_mp.MemoryUse(2**20, 0, 2**21, 2**20, 3 * 2**29, 2**30)
    assert str(use).splitlines() == [
        "weights              1.0 MiB",
        "masters              0.0 MiB",
        "state                2.0 MiB",
        "gradients            1.0 MiB",
        "activations      1,536.0 MiB",
        "step             1,024.0 MiB",
        "total            1,027.0 MiB",
    ]


def compiled():
    model = functional("float16")
    model.compile(keras_mp.wrap("adam"), "mse")
    return model


ERRORS = {
    "no model": (lambda: ("model",), TypeError, "must be a keras.Model"),
    "not built": (
        lambda: (keras.Sequential([keras.layers.Dense(1)]),),
        ValueError,
        "must be built",
    ),
    "no optimizer": (
        lambda: (functional("float16"),),
        ValueError,
        "Pass keras_mp.wrap",
    ),
    "a name": (
        lambda: (functional("float16"), "adam"),
        TypeError,
        r"Try keras_mp.wrap\('adam'\)",
    ),
    "not compiled": (
        lambda: (functional("float16"), keras_mp.wrap("adam"), *specs()),
        ValueError,
        "must be compiled",
    ),
    "unknown size": (
        lambda: (compiled(), None, keras.KerasTensor((None, 64)), specs()[1]),
        ValueError,
        "All sizes of a batch must be known. Received: the shape",
    ),
    "numbers": (
        lambda: (compiled(), None, [[1.0] * 64], specs()[1]),
        TypeError,
        "must have a shape and a dtype. Received: 1.0",
    ),
    "devices": (
        lambda: (compiled(), None, None, None, None, 0),
        ValueError,
        "`devices` must be at least 1",
    ),
}


@pytest.mark.parametrize("name", ERRORS)
def test_errors(name):
    make_arguments, kind, message = ERRORS[name]
    with pytest.raises(kind, match=message):
        keras_mp.estimate_memory(*make_arguments())
