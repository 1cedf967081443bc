"""Plans for models that overflow FP16: measured, applied, trained, undone."""

import json

import keras
import numpy as np
import pytest
import tensorflow as tf
from older_versions import needs

import keras_mp

POLICIES = ("mixed_float16", "float16", "float32")
WORDS = np.random.default_rng(0).integers(0, 11, (16, 5))
NEXT = (WORDS + 1) % 11


class Block(keras.layers.Layer):
    """Attention and a feed-forward network, each added to the residual stream."""

    def __init__(self, **options):
        super().__init__(**options)
        self.norm = keras.layers.LayerNormalization(name="norm")
        self.attention = keras.layers.MultiHeadAttention(2, 4, name="attention")
        self.norm_2 = keras.layers.LayerNormalization(name="norm_2")
        self.up = keras.layers.Dense(16, "gelu", name="up")
        self.down = keras.layers.Dense(8, name="down")

    def call(self, x):
        y = self.norm(x)
        x = x + self.attention(y, y)
        return x + self.down(self.up(self.norm_2(x)))

    def compute_output_shape(self, input_shape):
        return input_shape


def language_model(outliers=0.0):
    """A Transformer; with outliers in two channels of its residual stream."""
    ids = keras.Input((5,), dtype="int32")
    x = keras.layers.Embedding(11, 8, name="words")(ids)
    blocks = [Block(name=name) for name in ("first", "second")]
    for block in blocks:
        x = block(x)
    x = keras.layers.LayerNormalization(name="norm")(x)
    model = keras.Model(ids, keras.layers.Dense(11, name="logits")(x))
    if outliers:
        scale_up(model, blocks, outliers)
    return model


def scale_up(model, blocks, outliers):
    """Multiplies the residual stream, and puts constant outliers into it."""
    channels = np.zeros(8, "float32")
    channels[:2] = outliers, -outliers
    embeddings = model.get_layer("words").embeddings
    table = 100.0 * embeddings.numpy().astype("float32")
    embeddings.assign(np.clip(table + channels, -6e4, 6e4))
    for block in blocks:
        block.down.kernel.assign(100.0 * block.down.kernel.numpy())
    blocks[0].down.bias.assign(channels)


def compiled(model, **options):
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    optimizer = keras_mp.wrap(keras.optimizers.AdamW(1e-2))
    model.compile(optimizer, loss, **options)
    return model


def state_of(model):
    layers = [
        (layer.path, type(layer), layer.dtype_policy)
        for layer in model._flatten_layers()
    ]
    return layers, [(v.path, v.numpy().tobytes()) for v in model.variables]


@pytest.fixture(params=POLICIES)
def policy(request):
    keras.config.set_dtype_policy(request.param)
    return request.param


@pytest.mark.xslow_except("float16", "mixed_float16")
@pytest.mark.slow
def test_a_model_that_fp16_suits_gets_an_empty_plan(policy):
    plan = keras_mp.plan_precision(compiled(language_model()), WORDS, NEXT)
    assert plan.precisions == {} and plan.float16_share == 1.0
    assert plan.gradient_error < 0.02 and "FP16 throughout" in str(plan)


@pytest.mark.xslow_except("float32", "float16")
@pytest.mark.slow
def test_outliers_in_the_residual_stream(policy):
    model = compiled(language_model(6e4))
    before = state_of(model)
    plan = keras_mp.plan_precision(model, WORDS, NEXT)
    assert state_of(model) == before
    precisions = plan.precisions
    assert (
        precisions["first"] == precisions["second"] == precisions["words"] == "float32"
    )
    assert precisions["first/down"] == "float16_matmul"
    # What they are given and return is small.
    assert "first/up" not in precisions and "first/attention" not in precisions
    assert plan.float16_share == 1.0

    found = plan.verify(model, WORDS, NEXT)
    assert state_of(model) == before
    assert not np.isfinite(found.before.loss) and found.before.cosine is None
    assert found.after.loss == pytest.approx(found.loss, rel=1e-3)
    assert found.after.gradient_error <= 0.02 and found.after.cosine > 0.999


MODES = {
    "eager": {"run_eagerly": True},
    "graph": {"jit_compile": False},
    "xla": {"jit_compile": True},
}


@pytest.mark.slow
@pytest.mark.xslow_except("mixed_float16-xla")
@pytest.mark.parametrize("mode", MODES)
def test_a_planned_model_trains_as_in_fp32(mode, policy):
    planned = compiled(language_model(6e4), **MODES[mode])
    keras_mp.plan_precision(planned, WORDS, NEXT).apply(planned)
    keras.config.set_dtype_policy("float32")
    reference = compiled(language_model(6e4), **MODES["eager"])
    reference.set_weights(planned.get_weights())
    losses, expected = (
        model.fit(WORDS, NEXT, epochs=8, verbose=0, shuffle=False).history["loss"]
        for model in (planned, reference)
    )
    assert int(planned.optimizer.skipped_steps) == 0
    np.testing.assert_allclose(losses, expected, rtol=1e-3)


@pytest.mark.slow
def test_a_plan_is_undone_by_another_one_and_by_to_keras():
    keras.config.set_dtype_policy("mixed_float16")
    model = keras_mp.convert(compiled(language_model(6e4)))
    before = state_of(model)
    plan = keras_mp.plan_precision(model, WORDS, NEXT)
    plan.apply(model)
    assert state_of(model) != before
    assert keras_mp.plan_precision(model, WORDS, NEXT).precisions == plan.precisions
    empty = keras_mp.PrecisionPlan((), 1.0, 0.0, 4.0)
    assert state_of(empty.apply(model)) == before
    keras_mp.to_keras(plan.apply(model))
    assert not keras_mp.conversion_report(model).converted
    assert {x.dtype_policy.name for x in model.layers[1:]} == {"mixed_float16"}


def test_layers_that_share_a_map_of_policies():
    policies = keras.dtype_policies.DTypePolicyMap("mixed_float16")
    layers = [
        keras.layers.Dense(4, name="fine", dtype=policies),
        keras.layers.Rescaling(1e6, name="large", dtype=policies),
        keras.layers.LayerNormalization(name="norm", dtype=policies),
    ]
    model = keras.Sequential([keras.Input((4,)), *layers])
    model.compile(keras_mp.wrap("sgd"), "mse")
    x = np.random.default_rng(0).normal(size=(8, 4)).astype("float32")
    before = state_of(model)
    plan = keras_mp.plan_precision(model, x, x)
    assert state_of(model) == before and len(policies) == 0
    assert plan.precisions == {"large": "float32", "norm": "float32"}
    assert np.all(np.isfinite(plan.apply(model)(x)))
    assert layers[0].compute_dtype == "float16"
    keras_mp.to_keras(model)
    assert all(layer.dtype_policy is policies for layer in layers)


@pytest.mark.slow
def test_a_plan_is_saved_and_applied_to_another_model(tmp_path):
    keras.config.set_dtype_policy("mixed_float16")
    plan = keras_mp.plan_precision(compiled(language_model(6e4)), WORDS, NEXT)
    plan.save(tmp_path / "plan.json")
    loaded = keras_mp.PrecisionPlan.load(tmp_path / "plan.json")
    assert loaded == plan
    other = loaded.apply(compiled(language_model(6e4)))
    assert np.all(np.isfinite(other(WORDS)))
    with pytest.raises(ValueError, match=r"without the layers \['words'"):
        plan.apply(keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)]))


DAMAGED = {
    "no JSON": "{",
    "a list": "[]",
    "another format": json.dumps({"format": 7}),
    "an unknown precision": json.dumps(
        {
            "format": 2,
            "layers": [
                {"path": "a", "precision": "int3", "reason": "", "extra_bytes": 0}
            ],
            "float16_share": 1.0,
            "gradient_error": 0.0,
            "margin": 4.0,
            "notes": [],
        }
    ),
}


@pytest.mark.parametrize("name", DAMAGED)
def test_a_damaged_plan_is_named(name, tmp_path):
    path = tmp_path / "plan.json"
    path.write_text(DAMAGED[name])
    with pytest.raises(ValueError, match=r"(?s)A plan is a file.*plan\.json"):
        keras_mp.PrecisionPlan.load(path)


def test_a_plan_of_the_first_format_is_loaded(tmp_path):
    layers = [
        {"path": "a", "way": "float16_products", "reason": "because", "bytes": 8},
        {"path": "b", "way": "scaled_float16_products", "reason": "", "bytes": 0},
        {"path": "c", "way": "float32", "reason": "", "bytes": 0},
    ]
    numbers = {"float16_share": 0.5, "gradient_error": 0.0, "margin": 4.0}
    data = {"format": 1, "layers": layers, **numbers, "notes": []}
    (tmp_path / "plan.json").write_text(json.dumps(data))
    plan = keras_mp.PrecisionPlan.load(tmp_path / "plan.json")
    assert plan.precisions == {
        "a": "float16_matmul",
        "b": "scaled_float16_matmul",
        "c": "float32",
    }
    assert plan.layers[0].extra_bytes == 8 and plan.layers[0].reason == "because"
    assert plan.loss_scale is None and plan.fp32_noise is None


class Scores(keras.layers.Layer):
    """Its own product overflows, and what it is given and returns is small."""

    def __init__(self, **options):
        super().__init__(**options)
        self.value = keras.layers.Dense(4, name="value")

    def call(self, x):
        scores = keras.ops.matmul(200.0 * x, 200.0 * keras.ops.swapaxes(x, 1, 2))
        return keras.ops.matmul(keras.ops.softmax(scores), self.value(x))


class Gate(keras.layers.Layer):
    """The product of two small numbers is large, and divided at once."""

    def __init__(self, **options):
        super().__init__(**options)
        self.value = keras.layers.Dense(4, name="value")

    def call(self, x):
        return self.value(x) * 300.0 * 300.0 / 300.0 / 300.0


class Backward(keras.layers.Layer):
    """An identity whose gradient is multiplied by 1e9 and divided by it."""

    def __init__(self, **options):
        super().__init__(**options)
        self.value = keras.layers.Dense(4, name="value")

    def call(self, x):
        def scaled(x, factor):
            @tf.custom_gradient
            def identity(x):
                return tf.identity(x), lambda up: up * tf.cast(factor, up.dtype)

            return identity(x)

        y = scaled(x, 1e-9)
        return self.value(scaled(self.value(y), 1e9)) + x


OWN_CODE = {"scores": Scores, "gate": Gate, "backward": Backward}


@pytest.mark.parametrize("name", OWN_CODE)
def test_overflows_inside_of_code_of_ones_own(name):
    keras.config.set_dtype_policy("mixed_float16")
    inputs = keras.Input((5, 4))
    x = keras.layers.Dense(4, name="before")(inputs)
    x = OWN_CODE[name](name="own")(x)
    model = keras.Model(inputs, keras.layers.Dense(1, name="after")(x))
    model.compile(keras_mp.wrap("sgd"), "mse")
    x = np.random.default_rng(0).normal(size=(8, 5, 4)).astype("float32")
    plan = keras_mp.plan_precision(model, x, x[..., :1])
    assert plan.precisions["own"] == "float32" and not plan.notes
    found = plan.verify(model, x, x[..., :1])
    assert found.after.gradient_error <= 0.02
    # Four layers in FP16, each rounded to 2^-11, and the square of their result.
    assert found.after.loss == pytest.approx(found.loss, rel=2 * 4 * 2.0**-11)
    assert plan.apply(model)(x).dtype == "float16"


IN_FP32 = {"norm": "float32"}


@pytest.mark.slow_except("GroupNormalization-30000.0-*")
@pytest.mark.parametrize(
    ("name", "mean", "precisions"),
    [
        ("BatchNormalization", 0.0, {}),
        # An older one rounds what the model is given before it is cast to FP32.
        pytest.param("BatchNormalization", 3e4, IN_FP32, marks=needs("Keras", 3, 10)),
        ("GroupNormalization", 0.0, {}),
        ("GroupNormalization", 3e4, IN_FP32),
    ],
)
def test_normalizations_whose_weights_are_stored_in_fp16(name, mean, precisions):
    """Keras stores them so under `float16`, until the plan is applied."""
    keras.config.set_dtype_policy("float16")
    options = {"groups": 2} if name == "GroupNormalization" else {}
    norm = getattr(keras.layers, name)(name="norm", **options)
    layers = [keras.Input((3, 3, 4)), norm, keras.layers.GlobalMaxPooling2D()]
    model = keras.Sequential([*layers, keras.layers.Dense(1)])
    model.compile(optimizer=keras_mp.wrap("sgd", loss_scale=1), loss="mse")
    before = state_of(model)
    x = np.random.default_rng(0).normal(mean, 1.0, (8, 3, 3, 4))
    plan = keras_mp.plan_precision(model, x, np.ones((8, 1)))
    assert plan.precisions == precisions and not plan.notes
    assert state_of(model) == before
    plan.apply(model).fit(x, np.ones((8, 1)), verbose=0)
    assert int(model.optimizer.skipped_steps) == 0


@pytest.mark.parametrize("policy", ["mixed_float16", "float16"])
def test_a_sequential_model_that_was_built_when_it_was_called(policy, tmp_path):
    """It casts its inputs to FP16, whatever its layers compute in."""
    keras.config.set_dtype_policy(policy)
    norm = keras.layers.LayerNormalization(name="norm")
    inner = keras.Sequential([norm, keras.layers.Dense(4, name="dense")], name="inner")
    inputs = keras.Input((4,))
    x = keras.layers.Rescaling(1e6, name="large")(inputs)
    model = keras.Model(inputs, inner(x))
    model.compile(keras_mp.wrap("sgd", loss_scale=1.0), "mse", jit_compile=False)
    x = np.random.default_rng(0).normal(size=(8, 4)).astype("float32")
    before = [state_of(model), inner(1e6 * x).dtype, inner.autocast]
    plan = keras_mp.plan_precision(model, x, x)
    assert [state_of(model), inner(1e6 * x).dtype, inner.autocast] == before
    assert plan.precisions == {"large": "float32", "inner/norm": "float32"}
    assert not plan.notes
    found = plan.verify(model, x, x)
    assert found.after.gradient_error <= 0.02
    assert found.after.loss == pytest.approx(found.loss, rel=1e-3)
    plan.apply(model).fit(x, x, verbose=0)
    assert int(model.optimizer.skipped_steps) == 0
    assert keras_mp.plan_precision(model, x, x).precisions == plan.precisions
    expected = model(x)
    assert np.all(np.isfinite(expected))
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(loaded(x), expected)
    keras_mp.to_keras(model)
    assert not np.all(np.isfinite(model(x)))


@pytest.mark.xslow_except("float16")
@pytest.mark.slow
def test_the_cell_of_a_recurrent_layer_computes_as_that_does(policy):
    inputs = keras.Input((3, 2))
    x = keras.layers.Rescaling(1e5, name="large")(inputs)
    x = keras.layers.GRU(2, name="gru")(x)
    model = keras.Model(inputs, keras.layers.Dense(1, name="dense")(x))
    model.compile(keras_mp.wrap("sgd", loss_scale=1.0), "mse", jit_compile=False)
    x = np.random.default_rng(0).normal(size=(4, 3, 2)).astype("float32")
    plan = keras_mp.plan_precision(model, x, x[:, 0, :1])
    assert plan.precisions == {"large": "float32", "gru": "float32"} and not plan.notes
    gru = plan.apply(model).get_layer("gru")
    assert gru.compute_dtype == gru.cell.compute_dtype == "float32"
    assert model.get_layer("dense").compute_dtype == "float16"
    model.fit(x, x[:, 0, :1], verbose=0)
    assert int(model.optimizer.skipped_steps) == 0


def test_several_batches_are_measured():
    keras.config.set_dtype_policy("mixed_float16")
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1, name="dense")])
    model.compile(keras_mp.wrap("sgd"), "mse")
    x = np.array([[1.0], [1.0], [3e4]], "float32")
    data = tf.data.Dataset.from_tensor_slices((x, 0 * x)).batch(1)
    assert not keras_mp.plan_precision(model, data, batches=2).precisions
    assert "dense" in keras_mp.plan_precision(model, data, batches=3).precisions


def bfloat16():
    keras.config.set_dtype_policy("bfloat16")
    return compiled(language_model()), {}, "A plan is for FP16.*bfloat16"


def small_margin():
    return compiled(language_model()), {"margin": 0.5}, "`margin` must be at least 1"


def no_tolerance():
    return compiled(language_model()), {"tolerance": 0}, "`tolerance` must be positive"


@pytest.mark.parametrize("case", [bfloat16, small_margin, no_tolerance])
def test_misuse_is_explained(case):
    model, arguments, message = case()
    with pytest.raises(ValueError, match=message):
        keras_mp.plan_precision(model, WORDS, NEXT, **arguments)


def test_a_weight_beyond_fp16_is_named():
    keras.config.set_dtype_policy("float16")
    model = compiled(language_model())
    kernel = model.get_layer("first").up.kernel
    kernel.assign(np.full(kernel.shape, np.float16(np.inf)))
    message = r"a value in 'first/up/kernel', stored in float16, .*mixed_float16"
    with pytest.raises(ValueError, match=message):
        keras_mp.plan_precision(model, WORDS, NEXT)


def test_a_loss_that_is_not_finite():
    model = compiled(language_model())
    model.compile(keras_mp.wrap("sgd"), lambda y, p: keras.ops.mean(p) / 0.0)
    with pytest.raises(ValueError, match="No precision helps: look at the data"):
        keras_mp.plan_precision(model, WORDS, NEXT)


def test_a_dataset_without_batches():
    model = compiled(language_model())
    empty = tf.data.Dataset.from_tensor_slices((WORDS, NEXT)).batch(4).take(0)
    with pytest.raises(ValueError, match="at least one batch"):
        keras_mp.plan_precision(model, empty)


def before_convert(model):
    plan = keras_mp.plan_precision(model, WORDS, NEXT)
    return keras_mp.convert(plan.apply(model))


def after_convert(model):
    keras_mp.convert(model)
    return keras_mp.plan_precision(model, WORDS, NEXT).apply(model)


def with_lora(model):
    for block in model.layers[2:4]:
        block.up.enable_lora(2)
    return keras_mp.plan_precision(model, WORDS, NEXT).apply(model)


def lora_afterwards(model):
    keras_mp.plan_precision(model, WORDS, NEXT).apply(model)
    for block in model.layers[2:4]:
        block.up.enable_lora(2)
    return compiled(model)


def compiled_afterwards(model):
    plan = keras_mp.plan_precision(model, WORDS, NEXT)
    return compiled(plan.apply(model))


ORDERS = (before_convert, after_convert, with_lora, lora_afterwards)


@pytest.mark.xslow_except("before_convert")
@pytest.mark.slow
@pytest.mark.parametrize("order", (*ORDERS, compiled_afterwards))
def test_orders_of_what_changes_a_model(order):
    keras.config.set_dtype_policy("mixed_float16")
    model = order(compiled(language_model(6e4), jit_compile=False))
    losses = model.fit(WORDS, NEXT, epochs=3, verbose=0).history["loss"]
    assert losses[2] < losses[0] < 4.0
    assert int(model.optimizer.skipped_steps) == 0


PRODUCTS = keras_mp.Float16MatmulPolicy(variable_dtype="float16")


@pytest.mark.parametrize("inner", ["float16", PRODUCTS], ids=["float16", "products"])
@pytest.mark.parametrize("outer", ["float16", PRODUCTS], ids=["in-float16", "in-fp32"])
@pytest.mark.parametrize("name", ["Dense", "EinsumDense"])
def test_lora_beside_weights_stored_in_fp16(name, outer, inner):
    options = {"kernel_initializer": keras.initializers.Constant(2.0), "dtype": inner}
    if name == "Dense":
        layer = keras_mp.layers.Dense(3, **options)
    else:
        layer = keras_mp.layers.EinsumDense("ab,bc->ac", 3, **options)

    class Outer(keras.layers.Layer):
        def call(self, x):
            return layer(x)

    layer.build((None, 5))
    layer.enable_lora(2, lora_alpha=4)
    for factor in (layer.lora_kernel_a, layer.lora_kernel_b):
        factor.assign(keras.ops.ones_like(factor))
    y = Outer(dtype=outer)(np.ones((1, 5), "float32"))
    assert y.dtype.name == layer.compute_dtype
    # 5 x (2 + 4 / 2 x 2): 4 / 2 is alpha by rank, 2 the sum over the rank.
    np.testing.assert_array_equal(y, np.full((1, 3), 30.0))


@pytest.mark.xslow_except("lora_afterwards")
@pytest.mark.slow
@pytest.mark.parametrize("order", [with_lora, lora_afterwards])
def test_lora_and_a_plan_with_weights_stored_in_fp16(order):
    keras.config.set_dtype_policy("float16")
    model = order(compiled(language_model(6e4), jit_compile=False))
    losses = model.fit(WORDS, NEXT, epochs=3, verbose=0).history["loss"]
    assert losses[2] < losses[0] < 4.0
    assert int(model.optimizer.skipped_steps) == 0


@pytest.mark.slow
def test_blocks_that_are_rematerialized():
    keras.config.set_dtype_policy("mixed_float16")
    names = ["first", "second"]  # in a graph Keras passes no keyword arguments on
    with keras.RematScope(mode="list_of_layers", layer_names=names):
        model = compiled(language_model(6e4), jit_compile=False)
        keras_mp.plan_precision(model, WORDS, NEXT).apply(model)
        losses = model.fit(WORDS, NEXT, epochs=3, verbose=0).history["loss"]
    assert losses[2] < losses[0] < 4.0


@pytest.mark.slow
def test_replicas(strategy):
    keras.config.set_dtype_policy("mixed_float16")
    plan = keras_mp.plan_precision(compiled(language_model(6e4)), WORDS, NEXT)
    with strategy.scope():
        model = compiled(plan.apply(language_model(6e4)), jit_compile=False)
    losses = model.fit(WORDS, NEXT, epochs=3, verbose=0).history["loss"]
    assert losses[2] < losses[0] < 4.0


@pytest.mark.slow
def test_other_models_keep_their_classes():
    keras.config.set_dtype_policy("mixed_float16")
    planned, other = (compiled(language_model(6e4)) for _ in range(2))
    before = state_of(other)
    plan = keras_mp.plan_precision(planned, WORDS, NEXT)
    plan.apply(planned)
    assert state_of(other) == before
    assert type(planned.get_layer("first")) is Block  # it returns what it computes in
