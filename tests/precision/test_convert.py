"""`convert`: every layer converted, nothing else changed; `to_keras`, the way back."""

import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf
from older_versions import needs

import keras_mp
from keras_mp import layers
from keras_mp.precision import counterparts
from keras_mp.precision.counterparts import COUNTERPARTS, NOT_CONVERTED


def outputs(model, x):
    return [np.array(y) for y in keras.tree.flatten(model(x))]


def assert_converted(model, x):
    """Converts; compares weights, seeds, names and FP32 outputs. Returns the model."""
    expected, variables = outputs(model, x), model.variables
    described = [(v.path, v.trainable, v.numpy().tolist()) for v in variables]
    name, config_of_it = model.name, model.get_config()
    converted = keras_mp.convert(model)
    assert converted is model
    assert converted.name == name
    assert converted.get_config().keys() == config_of_it.keys()
    assert [id(v) for v in converted.variables] == [id(v) for v in variables]
    assert [(v.path, v.trainable, v.numpy().tolist()) for v in variables] == described
    for actual, wanted in zip(outputs(converted, x), expected, strict=True):
        np.testing.assert_array_equal(actual, wanted)
    return converted


def classes(model):
    return [type(layer).__module__.partition(".")[0] for layer in model.layers]


def test_sequential():
    model = keras.Sequential(
        [
            keras.Input((8, 8, 3)),
            keras.layers.Conv2D(4, 3, activation="relu"),
            keras.layers.BatchNormalization(),
            keras.layers.DepthwiseConv2D(3),
            keras.layers.SeparableConv2D(4, 3),
            keras.layers.Conv2DTranspose(2, 2),
            keras.layers.Flatten(),
            keras.layers.Dropout(0.5, seed=1),
            keras.layers.Dense(2),
        ]
    )
    model.layers[0].trainable = False
    names = [type(layer).__name__ for layer in model.layers]
    converted = assert_converted(model, np.ones((1, 8, 8, 3)))
    assert [type(layer).__name__ for layer in converted.layers] == names
    assert classes(converted) == [*["keras_mp"] * 5, "keras", "keras", "keras_mp"]


def test_sequential_that_was_built_when_it_was_called():
    model = keras.Sequential([keras.layers.Dense(2), keras.layers.Dense(1)])
    assert_converted(model, np.ones((2, 3)))


def test_sequential_that_is_not_built():
    converted = keras_mp.convert(keras.Sequential([keras.layers.Dense(2)]))
    assert classes(converted) == ["keras_mp"]
    assert not converted.built
    assert converted(np.ones((2, 3))).shape == (2, 2)


def test_layers_that_are_not_built_get_their_weights_as_ours():
    keras.config.set_dtype_policy("float16")
    heads = keras_mp.convert(keras.layers.MultiHeadAttention(1, 2))
    norm = keras_mp.convert(keras.layers.BatchNormalization())
    x = np.ones((1, 2, 2), "float16")
    norm(heads(x, x))
    assert type(heads.query_dense) is layers.EinsumDense
    assert {w.dtype for w in norm.weights} == {"float32"}


def test_shared_layers_nested_models_and_operations():
    inner_input = keras.Input((4,))
    inner = keras.Model(
        inner_input, keras.layers.Dense(4, name="inner")(inner_input), name="nested"
    )
    stack = keras.Sequential([keras.layers.Dense(4)], name="stack")
    shared = keras.layers.Dense(4, name="shared")
    a, b = keras.Input((4,)), keras.Input((4,))
    x = keras.ops.add(shared(inner(a)), stack(shared(b)))
    x = keras.layers.Lambda(lambda x: 2 * x, output_shape=(4,))(x)
    model = keras.Model([a, b], [x, keras.layers.Dense(1)(x)], name="outer")
    x = [np.ones((2, 4)), np.full((2, 4), 2.0)]
    converted = assert_converted(model, x)
    assert isinstance(converted.get_layer("shared"), layers.Dense)
    assert len(converted.get_layer("shared").kernel.shape) == 2
    for name in ("nested", "stack"):
        assert isinstance(converted.get_layer(name).layers[-1], layers.Dense)


WRAPPED = {
    "bidirectional": (
        lambda: keras.layers.Bidirectional(
            keras.layers.LSTM(2), backward_layer=keras.layers.GRU(2, go_backwards=True)
        ),
        lambda layer: [layer.forward_layer, layer.backward_layer],
        [layers.LSTM, layers.GRU],
    ),
    "time-distributed": (
        lambda: keras.layers.TimeDistributed(keras.layers.Dense(2)),
        lambda layer: [layer.layer],
        [layers.Dense],
    ),
    "rnn": (
        lambda: keras.layers.RNN([keras.layers.LSTMCell(2), keras.layers.GRUCell(2)]),
        lambda layer: layer.cell.cells,
        [layers.LSTMCell, layers.GRUCell],
    ),
    "wrapper-of-a-wrapper": (
        lambda: keras.layers.TimeDistributed(
            keras.layers.SpectralNormalization(keras.layers.Dense(2))
        ),
        lambda layer: [layer.layer, layer.layer.layer],
        [layers.SpectralNormalization, layers.Dense],
    ),
    "spectral": (
        lambda: keras.layers.SpectralNormalization(keras.layers.Conv1D(2, 3), 2),
        lambda layer: [layer, layer.layer],
        [layers.SpectralNormalization, layers.Conv1D],
    ),
}


@pytest.mark.parametrize(("make", "inside", "expected"), WRAPPED.values(), ids=WRAPPED)
def test_the_inside_of_wrappers(make, inside, expected):
    model = keras.Sequential([keras.Input((5, 3)), make()])
    converted = assert_converted(model, np.ones((2, 5, 3)))
    assert [type(layer) for layer in inside(converted.layers[0])] == expected


# A layer with an argument that Keras does not save, and where to find it.
UNSAVED = {
    "lstm": (
        lambda: keras.layers.LSTM(2, use_cudnn=False, implementation=1),
        lambda layer: (layer.use_cudnn, layer.cell.implementation),
        (False, 1),
    ),
    "inside-bidirectional": pytest.param(
        lambda: keras.layers.Bidirectional(keras.layers.GRU(2, use_cudnn=False)),
        lambda layer: (layer.forward_layer.use_cudnn, layer.backward_layer.use_cudnn),
        (False, False),
        marks=needs("Keras", 3, 12),
    ),
    "inside-rnn": (
        lambda: keras.layers.RNN(keras.layers.LSTMCell(2, implementation=1)),
        lambda layer: (layer.cell.implementation, layer.cell.dropout_mask_count),
        (1, 4),
    ),
}


@pytest.mark.parametrize(("make", "find", "expected"), UNSAVED.values(), ids=UNSAVED)
def test_what_keras_does_not_save_is_kept(make, find, expected):
    model = keras.Sequential([keras.Input((5, 3)), make()])
    assert find(model.layers[0]) == expected
    assert find(keras_mp.convert(model).layers[0]) == expected


def test_attention():
    a, b = keras.Input((5, 4)), keras.Input((7, 4))
    x = keras.layers.MultiHeadAttention(2, 2)(a, b, use_causal_mask=True)
    x = keras.layers.Attention()([x, b])
    x = keras.layers.AdditiveAttention()([x, b])
    x = keras.layers.EinsumDense("abc,cd->abd", (None, 2))(x)
    model = keras.Model([a, b], x)
    rng = np.random.default_rng(0)
    converted = assert_converted(model, [rng.normal(size=(2, n, 4)) for n in (5, 7)])
    assert classes(converted)[2:] == ["keras_mp"] * 4
    assert type(converted.layers[2].query_dense) is layers.EinsumDense


STACKS = {
    "images": (
        (8, 8, 4),
        lambda: [
            keras.layers.GroupNormalization(2, epsilon=0.5),
            keras.layers.AveragePooling2D(2, padding="same"),
            keras.layers.BatchNormalization(axis=1, renorm=True, synchronized=True),
            keras.layers.GlobalAveragePooling2D(data_format="channels_first"),
            keras.layers.UnitNormalization(axis=[-1]),
        ],
    ),
    "sequences": (
        (8, 4),
        lambda: [
            keras.layers.LayerNormalization(axis=[1, 2], center=False),
            keras.layers.AveragePooling1D(2, strides=1),
            keras.layers.RMSNormalization(epsilon=0.5),
            keras.layers.Softmax(axis=[1, 2]),
            keras.layers.GlobalAveragePooling1D(keepdims=True),
        ],
    ),
    "volumes": (
        (4, 4, 4, 2),
        lambda: [
            keras.layers.AveragePooling3D(2),
            keras.layers.GlobalAveragePooling3D(),
        ],
    ),
}


@pytest.mark.parametrize(("shape", "make"), STACKS.values(), ids=STACKS)
def test_normalization_pooling_and_softmax(shape, make):
    model = keras.Sequential([keras.Input(shape), *make()])
    configs = [layer.get_config() for layer in model.layers]
    converted = assert_converted(
        model, np.random.default_rng(0).normal(size=(2, *shape))
    )
    assert set(classes(converted)) == {"keras_mp"}
    assert [layer.get_config() for layer in converted.layers] == configs


class Block(keras.layers.Layer):
    """A Transformer block, as in the examples of keras.io."""

    def __init__(self, size, **options):
        super().__init__(**options)
        self.size = size
        self.attention = keras.layers.MultiHeadAttention(1, size)
        self.norms = {"first": keras.layers.LayerNormalization()}
        self.dense = keras.Sequential([keras.layers.Dense(size, "relu")])
        self.stack = [keras.layers.Dense(size), [keras.layers.Dropout(0.5)]]
        self.scale = self.add_weight(shape=(size,), initializer="ones")

    def build(self, shape):
        self.attention.build(shape, shape)
        for layer in (self.norms["first"], self.dense, self.stack[0]):
            layer.build(shape)

    def call(self, x):
        x = x + self.attention(x, x)
        x = self.dense(self.norms["first"](x))
        return self.scale * self.stack[1][0](self.stack[0](x))

    def get_config(self):
        return super().get_config() | {"size": self.size}


def test_the_inside_of_a_layer_that_is_not_keras():
    inputs = keras.Input((5, 4))
    model = keras.Model(inputs, Block(4)(inputs))
    block = assert_converted(model, np.ones((2, 5, 4))).layers[-1]
    assert type(block) is Block
    inside = [block.attention, block.norms["first"], block.dense.layers[0]]
    inside += [block.attention.query_dense, block.stack[0]]
    assert [type(layer) for layer in inside] == [
        layers.MultiHeadAttention,
        layers.LayerNormalization,
        layers.Dense,
        layers.EinsumDense,
        layers.Dense,
    ]


def test_scores_beyond_fp16_inside_a_layer_that_is_not_keras():
    class Scores(keras.layers.Layer):
        def __init__(self):
            super().__init__(dtype="float16")
            self.heads = keras.layers.MultiHeadAttention(
                1, 2, kernel_initializer="ones", dtype="float16"
            )

        def call(self, x):
            return self.heads(x, x)

    x = np.full((1, 1, 2), 200.0, "float16")  # q.k = 2 * 400**2 = 320000
    layer = Scores()
    assert np.all(np.isnan(layer(x)))
    assert keras_mp.convert(layer)(x).numpy().tolist() == [[[800.0, 800.0]]]


class Custom(keras.Model):
    """A model of its own class, with a loop of its own."""

    def __init__(self, **options):
        super().__init__(**options)
        self.dense = keras.layers.Dense(1)
        self.norm = keras.layers.BatchNormalization()
        self.steps = 0

    def call(self, inputs, training=None):
        return self.dense(self.norm(inputs, training=training))

    def train_step(self, data):
        self.steps += 1  # counts traces
        return super().train_step(data)


@pytest.mark.slow
def test_a_model_of_its_own_class_goes_on_with_its_optimizer():
    model = Custom(name="mine")
    optimizer = keras.optimizers.Adam(0.5)
    model.compile(optimizer, "mse", metrics=["mae"], jit_compile=False)
    x, y = np.random.default_rng(0).normal(size=(8, 3)), np.ones((8, 1))
    model.fit(x, y, batch_size=8, verbose=0)
    state = [v.numpy() for v in optimizer.variables]
    converted = assert_converted(model, x)
    assert [type(layer) for layer in converted.layers] == [
        layers.Dense,
        layers.BatchNormalization,
    ]
    assert converted.optimizer is optimizer
    for actual, wanted in zip(optimizer.variables, state, strict=True):
        np.testing.assert_array_equal(actual, wanted)
    traces = model.steps
    converted.fit(x, y, batch_size=8, verbose=0)
    assert int(optimizer.iterations) == 2
    assert model.steps > traces  # the layers of ours run


def test_two_models_in_one():
    class GAN(keras.Model):
        def __init__(self):
            super().__init__()
            self.parts = {
                name: keras.Sequential([keras.Input((3,)), keras.layers.Dense(3)])
                for name in ("generator", "discriminator")
            }

        def call(self, x):
            return self.parts["discriminator"](self.parts["generator"](x))

    gan = assert_converted(GAN(), np.ones((2, 3)))
    for part in gan.parts.values():
        assert type(part.layers[0]) is layers.Dense


def test_what_was_traced_is_traced_again():
    model = keras.Sequential([keras.Input((2,)), keras.layers.Softmax(dtype="float16")])
    model.layers[0].axis = [0, 1]
    x = np.zeros((100_000, 2), "float16")
    assert model.predict(x, batch_size=100_000, verbose=0)[0, 0] == 0
    converted = keras_mp.convert(model)
    # 1 / 200,000 is 5.0e-6; FP16 has multiples of 6e-8 there
    found = converted.predict(x, batch_size=100_000, verbose=0)[0, 0]
    np.testing.assert_allclose(found, 5e-6, atol=2**-25)


def strings():
    layer = keras.layers.StringLookup()
    layer.adapt(["a", "b"])
    return layer, tf.constant([["b", "a"]])


def integers():
    layer = keras.layers.IntegerLookup()
    layer.adapt(np.array([3, 5]))
    return layer, np.array([[5, 3]])


def text():
    layer = keras.layers.TextVectorization()
    layer.adapt(["a b", "b"])
    return layer, tf.constant([["b a"]])


def normalization():
    layer = keras.layers.Normalization()
    layer.adapt(np.array([[1.0, 2.0], [3.0, 6.0]]))
    return layer, np.array([[3.0, 6.0]])


ADAPTED = [strings, integers, text, normalization]


@pytest.mark.parametrize("make", ADAPTED)
def test_what_was_adapted_stays(make):
    layer, x = make()
    expected = outputs(layer, x)
    inputs = keras.Input(x.shape[1:], dtype=x.dtype)
    features = layer(inputs)
    if make is not normalization:
        features = keras.layers.Embedding(9, 2)(features)
    model = keras.Model(inputs, [features, keras.layers.Dense(1)(features)])
    before = outputs(model, x)
    converted = keras_mp.convert(model)
    for actual, wanted in zip(outputs(converted, x), before, strict=True):
        np.testing.assert_array_equal(actual, wanted)
    np.testing.assert_array_equal(outputs(converted.layers[1], x), expected)
    assert type(converted.layers[-1]) is layers.Dense


def float16_model():
    keras.config.set_dtype_policy("float16")
    inputs = keras.Input((4,))
    x = keras.layers.Dense(4)(inputs)
    x = keras.layers.BatchNormalization(renorm=True)(x)
    x = keras.layers.LayerNormalization()(x)
    x = keras.layers.GroupNormalization(2)(x)
    x = keras.layers.SpectralNormalization(keras.layers.Dense(4))(x)
    model = keras.Model(inputs, keras.layers.RMSNormalization()(x))
    rng = np.random.default_rng(0)
    model.set_weights([rng.uniform(1, 2, w.shape) for w in model.weights])
    return model


def test_normalizations_of_a_float16_model_get_fp32_weights(tmp_path):
    model = float16_model()
    model.layers[3].trainable = False
    described = [(w.path, w.trainable, w.numpy().tolist()) for w in model.weights]
    assert {w.dtype for w in model.weights} == {"float16"}
    model.save_weights(tmp_path / "old.weights.h5")
    converted = keras_mp.convert(model)
    assert [
        (w.path, w.trainable, w.numpy().tolist()) for w in converted.weights
    ] == described
    for weight in converted.weights:
        # The weights of Dense are of the policy.
        is_norm = "dense" not in weight.path
        assert weight.dtype == ("float32" if is_norm else "float16"), weight.path
    assert [layer.dtype_policy.name for layer in converted.layers[1:]] == [
        "float16"
    ] * 6
    assert converted.layers[2].gamma is converted.layers[2].trainable_variables[0]
    x = np.random.default_rng(0).normal(size=(3, 4)).astype("float16")
    y = converted(x)
    assert y.dtype == "float16" and np.all(np.isfinite(y))
    # Files fit in both directions.
    converted.set_weights([0 * w for w in converted.get_weights()])
    converted.load_weights(tmp_path / "old.weights.h5")
    assert [w.numpy().tolist() for w in converted.weights] == [
        values for _, _, values in described
    ]
    checkpoint = tf.train.Checkpoint(model=converted).save(str(tmp_path / "tf"))
    converted.set_weights([0 * w for w in converted.get_weights()])
    tf.train.Checkpoint(model=converted).restore(checkpoint).assert_consumed()
    assert [w.numpy().tolist() for w in converted.weights] == [
        values for _, _, values in described
    ]


def test_the_fp32_weights_of_normalizations_are_trained():
    model = keras_mp.convert(float16_model())
    optimizer = keras_mp.wrap(keras.optimizers.SGD(2.0**-14))
    model.compile(optimizer, "mse", run_eagerly=True)
    scale, average = model.layers[-1].scale, model.layers[2].moving_mean
    before = scale.numpy()
    x = np.random.default_rng(0).normal(size=(8, 4)).astype("float16")
    model.fit(x, np.ones((8, 4), "float16"), verbose=0)
    moved = np.abs(scale.numpy() - before)
    assert np.all(moved > 0)
    assert np.all(moved < 2**-11)  # half of the spacing of FP16 above 1
    assert not np.array_equal(average, average.numpy().astype("float16"))


def test_an_optimizer_with_state_for_16_bit_normalizations_is_refused():
    """Unless it is wrapped: tests/optimizer/test_weight_exchange.py."""
    model = float16_model()
    model.compile("sgd", "mse", auto_scale_loss=False)
    model.optimizer.build(model.trainable_variables)
    with pytest.raises(ValueError, match=r"a built SGD.*`compile` with a new"):
        keras_mp.convert(model)
    assert set(classes(model)) == {"keras"}
    assert {w.dtype for w in model.weights} == {"float16"}
    model.compile(keras_mp.wrap("sgd"), "mse")
    assert set(classes(keras_mp.convert(model))) == {"keras", "keras_mp"}


def test_policies_and_quantization_are_kept():
    model = keras.Sequential(
        [
            keras.Input((8,)),
            keras.layers.Dense(8, dtype="mixed_float16"),
            keras.layers.Dense(2),
        ]
    )
    model.layers[1].quantize("int8")
    converted = keras_mp.convert(model)
    found = [layer.dtype_policy.name for layer in converted.layers]
    assert found == ["mixed_float16", "int8_from_float32"]


def quantized():
    model = keras.Sequential([keras.Input((5, 4)), keras.layers.Dense(3)])
    model.layers[0].quantize("float8")
    return model


def with_lora():
    inputs = keras.Input((5, 4))
    heads = keras.layers.MultiHeadAttention(2, 2)
    model = keras.Model(inputs, heads(inputs, inputs))
    heads.query_dense.enable_lora(2)
    return model


@pytest.mark.parametrize("make", [quantized, with_lora])
def test_a_model_that_its_config_does_not_describe(make):
    assert_converted(make(), np.ones((2, 5, 4)))


def test_what_is_converted_can_be_quantized_as_in_keras():
    def make():
        keras.utils.set_random_seed(0)
        return keras.Sequential([keras.Input((8,)), keras.layers.Dense(8)])

    x = np.random.default_rng(0).normal(size=(3, 8))
    theirs, ours = make(), keras_mp.convert(make())
    back = keras_mp.to_keras(keras_mp.convert(make()))
    for model in (theirs, ours, back):
        model.layers[0].quantize("int8")
    for model in (ours, back):
        assert model.layers[0].quantization_mode == "int8"
        np.testing.assert_array_equal(outputs(model, x), outputs(theirs, x))


def test_a_subclass_is_not_quantized_as_in_keras():
    layer = Named(2)
    layer.build((None, 8))
    with pytest.raises(NotImplementedError, match="Named") as theirs:
        layer.quantize("int8")
    keras_mp.convert(layer)
    with pytest.raises(NotImplementedError) as ours:
        layer.quantize("int8")
    assert str(ours.value) == str(theirs.value)


QUANTIZED = {
    "dense": lambda package: package.Dense(2),
    "einsum": lambda package: package.EinsumDense("ab,bc->ac", (2,)),
    "embedding": lambda package: package.ReversibleEmbedding(4, 2),
}


@pytest.mark.slow_except("dense-keras")
@pytest.mark.parametrize("package", [keras.layers, layers], ids=["keras", "keras_mp"])
@pytest.mark.parametrize("make", QUANTIZED.values(), ids=QUANTIZED)
def test_there_and_back_again_leaves_no_trace(make, package):
    layer = make(package)
    layer.build((None, 8))
    made_as, before = type(layer), dict(vars(layer))
    for change in (keras_mp.convert, keras_mp.to_keras) * 2:
        change(layer)
        if type(layer) is made_as:
            assert vars(layer) == before
    layer.quantize("int8")
    assert layer.quantization_mode == "int8"


@keras.saving.register_keras_serializable(package="tests")
class Halving(keras.optimizers.schedules.LearningRateSchedule):
    def __call__(self, step):
        return 0.25 * 0.5 ** keras.ops.cast(step, "float32")


def test_a_model_compiled_with_ones_own_objects_keeps_them():
    class Unregistered(Halving):
        pass

    def loss(y, prediction):
        return keras.ops.mean(keras.ops.abs(y - prediction))

    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    optimizer = keras_mp.wrap(keras.optimizers.SGD(Unregistered()))
    metrics = [lambda y, prediction: prediction - y]
    model.compile(optimizer, loss, metrics=metrics, run_eagerly=True)
    x, y = np.ones((4, 3)), np.ones((4, 1))
    model.fit(x, y, verbose=0)
    before = model.evaluate(x, y, verbose=0)
    converted = keras_mp.convert(model)
    assert converted.optimizer is optimizer and converted.loss is loss
    assert converted.evaluate(x, y, verbose=0) == before
    converted.fit(x, y, verbose=0)
    assert int(optimizer.iterations) == 2


def test_a_nested_model_stays_frozen():
    inputs = keras.Input((3,))
    nested = keras.Model(inputs, keras.layers.Dense(3)(inputs), name="nested")
    nested.trainable = False
    model = keras.Sequential([keras.Input((3,)), nested, keras.layers.Dense(1)])
    converted = keras_mp.convert(model)
    assert [layer.trainable for layer in converted.layers] == [False, True]


@pytest.mark.parametrize("function", [keras_mp.convert, keras_mp.to_keras])
def test_what_is_no_layer_is_refused(function):
    with pytest.raises(TypeError, match=r"takes a model or a layer. Received: \[<Seq"):
        function([keras.Sequential()])


@keras.saving.register_keras_serializable(package="tests")
class Named(keras.layers.Dense):
    """A subclass that computes as Keras does."""

    def describe(self):
        return f"mine of {self.units}"


class Doubled(keras.layers.Dense):
    """A subclass with a `call` of its own."""

    def call(self, inputs):
        return 2 * super().call(inputs)


def test_a_subclass_keeps_its_methods_and_gets_our_arithmetic(tmp_path):
    dense = Named(1, kernel_initializer="ones", dtype="float16")
    model = keras_mp.convert(keras.Sequential([keras.Input((5000,)), dense]))
    assert isinstance(dense, Named) and isinstance(dense, layers.Dense)
    assert dense.describe() == "mine of 1"
    # Two convert to one class.
    assert type(keras_mp.convert(Named(2))) is type(dense)
    # A file has the class of the user: the class in between is made by `convert`.
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert type(loaded.layers[0]) is Named
    assert type(keras_mp.to_keras(model).layers[0]) is Named


class Causal(keras.layers.Attention):
    """A subclass whose own `call` asks that of Keras."""

    def call(self, inputs, **options):
        return super().call(inputs, use_causal_mask=True, **options)


class Flipped(keras.layers.Attention):
    """A subclass with another method, which our `call` has to leave alone."""

    def _calculate_score_mask(self, scores, v_mask, use_causal_mask):
        return keras.ops.logical_not(
            super()._calculate_score_mask(scores, v_mask, use_causal_mask)
        )


@pytest.mark.parametrize(
    ("make", "options", "expected"),
    [(Causal, {}, [1, 1.5]), (Flipped, {"use_causal_mask": True}, [2, 1.5])],
    ids=["call", "another-method"],
)
def test_a_subclass_of_an_attention_computes_as_before(make, options, expected):
    query, value = np.zeros((1, 2, 4), "float16"), np.float16([[[1] * 4, [2] * 4]])
    layer = keras_mp.convert(make(dtype="float16"))
    assert isinstance(layer, layers.Attention)
    found = layer([query, value], **options)
    np.testing.assert_array_equal(found[0, :, 0], expected)


def test_a_subclass_with_a_call_of_its_own_stays_and_is_told_of():
    dense = Doubled(2, dtype="mixed_float16")
    model = keras.Sequential([keras.Input((3,)), dense, keras.layers.Dense(1)])
    message = r"Doubled \(a Dense with its own `call`\)"
    with pytest.warns(UserWarning, match=message) as warned:
        keras_mp.convert(model)
    assert len(warned) == 1 and warned[0].filename == __file__
    assert [type(layer) for layer in model.layers] == [Doubled, layers.Dense]


class Standardized(keras.layers.Conv2D):
    """Overrides a method that only the `call` of Keras's Conv2D calls."""

    def convolution_op(self, inputs, kernel):
        return super().convolution_op(inputs, kernel * 0)


class OwnMoments(keras.layers.BatchNormalization):
    """Overrides a method that only the `call` of Keras's BatchNormalization calls."""

    def _moments(self, inputs, mask):
        mean, variance = super()._moments(inputs, mask)
        return mean + 1, variance


class OwnSoftmax(keras.layers.MultiHeadAttention):
    """Overrides a method that only Keras's `_compute_attention` calls."""

    def _masked_softmax(self, scores, mask=None):
        return super()._masked_softmax(scores, mask) * 0


class OwnCell(keras.layers.LSTMCell):
    """A cell that computes something else."""

    def call(self, inputs, states, training=False):
        output, states = super().call(inputs, states, training=training)
        return output * 0, states


class LSTMWithOwnCell(keras.layers.LSTM):
    """A loop over a cell that is not Keras's."""

    def __init__(self, units, **options):
        super().__init__(units, **options)
        self.cell = OwnCell(units, dtype=self.dtype_policy)


class Tagged(keras.layers.Dense):
    """A class that cannot be extended without an argument."""

    def __init_subclass__(cls, tag, **options):
        super().__init_subclass__(**options)


class TaggedDense(Tagged, tag="mine"):
    """A class that gives the argument."""


# The layer, its inputs, and what is said of it.
HOOKS = {
    "convolution": (lambda: Standardized(2, 1), (1, 3, 3, 2), "`convolution_op`"),
    "normalization": (OwnMoments, (4, 2), "`_moments`"),
    "attention": (lambda: OwnSoftmax(1, 2), (1, 3, 2), "`_masked_softmax`"),
    "recurrent": (
        lambda: LSTMWithOwnCell(2),
        (1, 3, 2),
        "LSTMCell with its own `call`",
    ),
    "subclassing": (lambda: TaggedDense(2), (1, 3), "`__init_subclass__`"),
}


@pytest.mark.parametrize(("make", "shape", "said"), HOOKS.values(), ids=HOOKS)
def test_what_a_subclass_hooks_into_keras_goes_on_to_count(make, shape, said):
    keras.config.set_dtype_policy("mixed_float16")
    layer, x = make(), np.linspace(-1, 1, np.prod(shape)).reshape(shape)
    is_attention = isinstance(layer, keras.layers.MultiHeadAttention)
    inputs = (x, x) if is_attention else (x,)
    options = {"return_attention_scores": True} if is_attention else {}
    if isinstance(layer, keras.layers.BatchNormalization):
        options["training"] = True
    expected = keras.tree.flatten(layer(*inputs, **options))
    with pytest.warns(UserWarning, match=said):
        keras_mp.convert(layer)
    found = keras.tree.flatten(layer(*inputs, **options))
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_array_equal(one, other)


# The layer, what has the method, its name, the inputs, and what is said of it.
REPLACED = {
    "convolution": (
        lambda: keras.layers.Conv2D(2, 1),
        lambda layer: layer,
        "convolution_op",
        (1, 3, 3, 2),
        "Conv2D .a Conv2D with a replaced `convolution_op`",
    ),
    "call": (
        lambda: Named(2),
        lambda layer: layer,
        "call",
        (1, 3),
        "Named .a Dense with a replaced `call`",
    ),
    "loop": (
        lambda: keras.layers.LSTM(2),
        lambda layer: layer,
        "inner_loop",
        (1, 3, 2),
        "LSTM .a LSTM with a replaced `inner_loop`",
    ),
    "cell": (
        lambda: keras.layers.LSTM(2),
        lambda layer: layer.cell,
        "call",
        (1, 3, 2),
        "LSTMCell .a LSTMCell with a replaced `call`",
    ),
    "convolutional-cell": (
        lambda: keras.layers.ConvLSTM1D(2, 1),
        lambda layer: layer.cell,
        "call",
        (1, 3, 4, 2),
        "ConvLSTMCell .a ConvLSTMCell with a replaced `call`",
    ),
}


@pytest.mark.parametrize(
    ("make", "find", "name", "shape", "said"), REPLACED.values(), ids=REPLACED
)
def test_a_method_that_was_replaced_on_a_layer_goes_on_to_count(
    make, find, name, shape, said
):
    keras.config.set_dtype_policy("mixed_float16")
    layer, x = make(), np.linspace(-1, 1, np.prod(shape)).reshape(shape)
    layer(x)
    owner = find(layer)
    method = getattr(owner, name)

    def doubled(*args, **options):
        return keras.tree.map_structure(lambda y: 2 * y, method(*args, **options))

    setattr(owner, name, doubled)
    expected = layer(x)
    with pytest.warns(UserWarning, match=said):
        keras_mp.convert(layer)
    np.testing.assert_array_equal(layer(x), expected)


def test_keras_replaces_the_methods_of_a_layer_that_convert_allows_for():
    found = [name for name in vars(keras.layers.Layer()) if hasattr(keras.Layer, name)]
    methods = {name for name in found if callable(getattr(keras.Layer, name))}
    assert methods == counterparts._SET_BY_KERAS


class OwnCausalMask(keras.layers.MultiHeadAttention):
    """Overrides a method that `keras_mp.keras_internals` calls, as Keras does."""

    def _compute_causal_mask(self, query, value=None):
        return super()._compute_causal_mask(query, value)


class OwnRenorm(keras.layers.BatchNormalization):
    """The same for batch renormalization."""

    def _renorm_correction_and_moments(self, mean, variance):
        return super()._renorm_correction_and_moments(mean, variance)


@pytest.mark.parametrize(
    ("cls", "arguments"), [(OwnCausalMask, (1, 2)), (OwnRenorm, ())]
)
def test_a_hook_that_keras_mp_calls_too_is_converted(cls, arguments):
    layer = keras_mp.convert(cls(*arguments, dtype="mixed_float16"))
    assert isinstance(layer, COUNTERPARTS[cls.__base__])


class Aliased(keras.layers.LayerNormalization):
    """A normalization with a weight before it is built, and one of two names."""

    def __init__(self, **options):
        super().__init__(**options)
        self.extra = self.add_weight(shape=(), initializer="ones", name="extra")

    def build(self, input_shape):
        super().build(input_shape)
        self.alias = self.gamma


@pytest.mark.parametrize("is_built", [False, True], ids=["unbuilt", "built"])
def test_each_name_of_a_16_bit_weight_is_given_the_fp32_one(is_built):
    layer = Aliased(dtype="float16")
    x = np.ones((1, 3), "float16")
    if is_built:
        layer(x)
    keras_mp.convert(layer)
    layer(x)
    assert layer.alias is layer.gamma
    assert layer.gamma.dtype == layer.extra.dtype == "float32"
    assert any(layer.gamma is weight for weight in layer.weights)


def test_an_optimizer_in_a_list_is_found():
    model = Custom(dtype="float16")
    norm = keras.layers.LayerNormalization(dtype="float16")
    norm.build((None, 3))
    model.norm, model.optimizers = norm, [keras.optimizers.SGD()]
    model.optimizers[0].build(norm.trainable_variables)
    with pytest.raises(ValueError, match=r"Received: .*'optimizers' is a built SGD"):
        keras_mp.convert(model)
    assert norm.gamma.dtype == "float16"


def test_a_subclass_that_computes_in_fp32_is_not_warned_of():
    keras_mp.convert(keras.Sequential([keras.Input((3,)), Doubled(2)]))


def helper(a, b):
    return keras.ops.matmul(a, b)


def in_fp32(x):
    total = keras.ops.sum(keras.ops.cast(x, "float32"))
    return x - keras.ops.cast(total, x.dtype)


class Products(keras.layers.Layer):
    """A layer whose `call` computes products and sums itself."""

    def __init__(self, **options):
        super().__init__(**options)
        self.softmax = keras.layers.Softmax(dtype=self.dtype_policy)

    def call(self, x):
        y = self.weighted(x) @ x
        return self.softmax(y) / keras.ops.max(y) + sum([x, x])

    def weighted(self, x):
        return keras.ops.einsum("abc,adc->abd", x, helper(x, x))


def test_the_report(capsys):
    keras.config.set_dtype_policy("mixed_float16")
    inputs = keras.Input((4, 4))
    x = keras.layers.Dense(4)(inputs)
    x = keras.layers.Dense(4, dtype="float32")(x)
    x = keras.layers.Dropout(0.5)(x)
    x = Products()(x)
    x = keras.layers.Lambda(in_fp32, output_shape=(4, 4))(x)
    x = keras.layers.RandomContrast(0.5)(x)
    x = keras.ops.softmax(keras.ops.abs(keras.ops.matmul(x, x)))
    model = keras.Model(inputs, Products(dtype="float32")(x))
    report = keras_mp.conversion_report(model)
    assert report.converted == {}
    assert report.not_converted["Dense", "not converted: call `keras_mp.convert`"] == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        keras_mp.convert(model, verbose=True)
    report = keras_mp.conversion_report(model)
    assert report.converted == {"Dense": 2, "Softmax": 2}
    assert report.unaffected == {"Dropout": 1, "Products": 1}
    assert report.not_converted == {
        ("Products", "its own code calls `einsum`, `matmul`"): 1,
        ("Lambda", "its own code calls `sum`, and casts to float32 somewhere"): 1,
        ("RandomContrast", NOT_CONVERTED["RandomContrast"]): 1,
        ("Matmul", "an operation, not a layer"): 1,
        ("Softmax", "an operation, not a layer"): 1,
    }
    printed = capsys.readouterr().out
    assert printed == f"{report}\n"
    assert "converted: 2 x Dense, 2 x Softmax\n" in printed
    with pytest.warns(UserWarning, match="Matmul .an operation") as warned:
        keras_mp.convert(model)
    assert len(warned) == 1


def test_nothing_is_said_of_a_model_in_fp32():
    inputs = keras.Input((4, 4))
    x = Products()(inputs)
    keras_mp.convert(keras.Model(inputs, keras.ops.matmul(x, x)))


def test_a_saved_model_is_converted_where_its_config_has_the_layers(tmp_path):
    inputs = keras.Input((5, 4))
    model = keras.Model(inputs, keras.layers.Dense(2)(Block(4)(inputs)))
    x = np.random.default_rng(0).normal(size=(2, 5, 4))
    expected = outputs(keras_mp.convert(model), x)
    model.save(tmp_path / "model.keras")
    with keras.saving.custom_object_scope({"Block": Block}):
        loaded = keras.saving.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(outputs(loaded, x), expected)
    assert type(loaded.layers[2]) is layers.Dense
    assert type(loaded.layers[1].attention) is keras.layers.MultiHeadAttention
    keras_mp.convert(loaded)
    assert type(loaded.layers[1].attention) is layers.MultiHeadAttention
    np.testing.assert_array_equal(outputs(loaded, x), expected)


def test_to_keras_is_the_inverse():
    inputs = keras.Input((5, 4))
    x = keras.layers.LSTM(4, return_sequences=True)(Block(4)(inputs))
    x = keras.layers.Bidirectional(keras.layers.LSTM(3))(Named(4)(x))
    model = keras.Model(inputs, keras.layers.BatchNormalization()(x))
    x = np.random.default_rng(0).normal(size=(2, 5, 4))
    every = [type(layer) for layer in model._flatten_layers()]
    expected = outputs(model, x)
    assert_converted(model, x)
    assert [type(layer) for layer in model._flatten_layers()] != every
    assert keras_mp.to_keras(model) is model
    assert [type(layer) for layer in model._flatten_layers()] == every
    np.testing.assert_array_equal(outputs(model, x), expected)


def test_to_keras_of_layers_that_were_made_as_ours():
    heads = layers.MultiHeadAttention(1, 2)
    x = np.ones((1, 2, 2), "float32")
    expected = np.array(heads(x, x))
    keras_mp.to_keras(heads)
    assert type(heads) is keras.layers.MultiHeadAttention
    assert type(heads.query_dense) is keras.layers.EinsumDense
    np.testing.assert_array_equal(heads(x, x), expected)


def test_to_keras_of_a_float16_model_keeps_fp32_normalizations():
    model = keras_mp.convert(float16_model())
    x = np.random.default_rng(0).normal(size=(3, 4)).astype("float16")
    expected = outputs(model, x)[0]
    keras_mp.to_keras(model)
    assert set(classes(model)) == {"keras"}
    assert model.layers[2].gamma.dtype == "float32"
    # Keras rounds after each of six layers, of values of about 1.
    np.testing.assert_allclose(outputs(model, x)[0], expected, atol=12 * 2**-11)


class Ours(layers.Dense):
    """A user's subclass of a layer of keras_mp."""


def test_to_keras_refuses_what_keras_has_no_equal_of():
    inputs = keras.Input((3,))
    x = keras_mp.ops.softmax(Ours(2, name="mine")(keras_mp.layers.Dense(2)(inputs)))
    model = keras.Model(inputs, x)
    with pytest.raises(
        ValueError, match=r"Received: 'mine' \(Ours\), .* \(FP32Reduction"
    ):
        keras_mp.to_keras(model)
    assert type(model.layers[1]) is layers.Dense
