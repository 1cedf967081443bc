"""Plans for models inside layers whose own code goes on with what they return."""

import keras
import numpy as np
import pytest

import keras_mp

L = keras.layers
X = np.random.default_rng(0).normal(size=(8, 16)).astype("float32")
Y = np.ones((8, 4), "float32")


def sequential():
    return keras.Sequential([L.Dense(32, "gelu"), L.Dense(16)])


def sequential_with_input():
    return keras.Sequential([keras.Input((16,)), L.Dense(32, "gelu"), L.Dense(16)])


def functional():
    inputs = keras.Input((16,))
    return keras.Model(inputs, L.Dense(16)(L.Dense(32, "gelu")(inputs)))


def in_another():
    return keras.Sequential([sequential()])


INNER = (sequential, sequential_with_input, functional, in_another)


class Block(L.Layer):
    """Adds what a model returns to its inputs, in FP16 or FP32."""

    def __init__(self, make, **options):
        super().__init__(**options)
        self.norm, self.net = L.LayerNormalization(), make()

    def build(self, shape):
        self.norm.build(shape)
        self.net.build(shape)
        self.built = True

    def call(self, x):
        return x + self.net(self.norm(x))

    def compute_output_shape(self, shape):
        return shape


class Residual(keras.Model):
    def __init__(self, make):
        super().__init__(name="residual")
        self.first, self.net = L.Dense(16), make()
        self.norm, self.out = (
            L.LayerNormalization(),
            L.Dense(4, dtype="float32", name="out"),
        )

    def call(self, x):
        x = self.first(x)
        return self.out(self.norm(x + 1e-3 * self.net(x)))


def block(make):
    inputs = keras.Input((16,))
    x = L.LayerNormalization()(Block(make, name="block")(L.Dense(16)(inputs)))
    return keras.Model(inputs, L.Dense(4, dtype="float32", name="out")(x))


def subclassed(make):
    model = Residual(make)
    model(X)
    return model


def last_dense(model):
    """Returns the last layer inside the models inside, from 32 units to 16."""
    layers = [x for x in model._flatten_layers() if isinstance(x, L.Dense)]
    return [x for x in layers if x.kernel.shape == (32, 16)][-1]


def overflow(model):
    """Has the last layer inside add up more than FP16 holds, of what it does hold."""
    last = last_dense(model)
    last.bias.assign(np.full(16, 6e4))
    last.kernel.assign(3e4 * last.kernel.numpy())


def compiled(model):
    model.compile(keras_mp.wrap(keras.optimizers.Adam(1e-3)), "mse", jit_compile=False)
    return model


def losses(model):
    return [float(model.train_on_batch(X, Y)) for _ in range(3)]


@pytest.mark.xslow_except("*-mixed_float16-sequential")
@pytest.mark.slow
@pytest.mark.parametrize("inner", INNER)
@pytest.mark.parametrize("policy", ["mixed_float16", "float16"])
@pytest.mark.parametrize("make", [block, subclassed])
def test_a_plan_holds_where_a_model_inside_overflows(make, policy, inner):
    keras.utils.set_random_seed(0)
    in_fp32 = compiled(make(inner))
    overflow(in_fp32)
    keras.config.set_dtype_policy(policy)
    model = compiled(make(inner))
    model.set_weights(in_fp32.get_weights())
    found = keras_mp.find_overflow(model, X, Y)
    assert found is not None and found.where == "forward"
    plan = keras_mp.plan_precision(model, X, Y)
    assert plan.precisions and not plan.notes
    # What is FP32 in the model does not become less by a plan.
    assert plan.precisions.get(model.layers[-1].name, "float32") == "float32"
    check = plan.verify(model, X, Y)
    assert check.after.gradient_error <= 0.02
    assert plan.apply(model) is model
    # The tolerance of a plan, for the gradients of which each step makes an update.
    np.testing.assert_allclose(losses(model), losses(in_fp32), rtol=0.02)
    assert int(model.optimizer.skipped_steps) == 0
    keras_mp.to_keras(model)
    again = keras_mp.find_overflow(model, X, Y)
    assert (again.path, again.where) == (found.path, found.where)


def vitdet():
    """A backbone of keras-hub, each block of which has a Sequential model inside."""
    models = pytest.importorskip("keras_hub", reason="needs keras-hub").models
    backbone = models.ViTDetBackbone(
        hidden_size=16,
        num_layers=2,
        intermediate_dim=32,
        num_heads=2,
        global_attention_layer_indices=[1],
        image_shape=(32, 32, 3),
        patch_size=8,
        num_output_channels=8,
        window_size=2,
    )
    x = L.GlobalAveragePooling2D()(backbone.outputs[0])
    return keras.Model(backbone.inputs, L.Dense(3, dtype="float32", name="head")(x))


@pytest.mark.slow
def test_vitdet_trains_as_in_fp32():
    rng = np.random.default_rng(0)
    x, y = (
        rng.normal(size=shape).astype("float32") for shape in ((4, 32, 32, 3), (4, 3))
    )
    in_fp32 = compiled(vitdet())
    first = next(x for x in in_fp32.layers if "encoder" in x.name)
    outliers = last_dense(first).bias
    outliers.assign(np.r_[3e5, -3e5, np.zeros(14)])
    keras.config.set_dtype_policy("mixed_float16")
    model = compiled(vitdet())
    model.set_weights(in_fp32.get_weights())
    plan = keras_mp.plan_precision(model, x, y)
    assert plan.float16_share >= 0.95 and not plan.notes
    plan.apply(model)
    for _ in range(30):
        expected = float(in_fp32.train_on_batch(x, y))
        assert float(model.train_on_batch(x, y)) == pytest.approx(expected, rel=0.01)
    assert int(model.optimizer.skipped_steps) == 0


class WithDropout(L.Layer):
    """Adds large numbers to what its sublayers in FP16 return."""

    def __init__(self, **options):
        super().__init__(**options)
        self.dense, self.dropout = L.Dense(16, name="dense"), L.Dropout(0.5, seed=0)

    def build(self, shape):
        self.dense.build(shape)
        self.built = True

    def call(self, x, training=False):
        return 1e5 * x + self.dropout(self.dense(x), training=training)

    def compute_output_shape(self, shape):
        return shape


def test_dropout_in_fp16_inside_code_in_fp32():
    """Runs of the tools draw its mask in FP32: the code still receives one dtype."""
    keras.config.set_dtype_policy("mixed_float16")
    inputs = keras.Input((16,))
    x = L.LayerNormalization(name="norm")(WithDropout(name="own")(inputs))
    model = keras.Model(inputs, L.Dense(4, name="out")(x))
    model.compile(keras_mp.wrap("sgd", loss_scale=1.0), "mse", jit_compile=False)
    plan = keras_mp.plan_precision(model, X, Y)
    assert plan.precisions == {"own": "float32", "norm": "float32"} and not plan.notes
    plan.apply(model)
    assert keras_mp.find_overflow(model, X, Y) is None
    model.fit(X, Y, verbose=0)
    assert int(model.optimizer.skipped_steps) == 0
