"""`convert`: every layer replaced, nothing else changed."""

import keras
import numpy as np
import pytest

import keras_mp
from keras_mp import layers


def outputs(model, x):
    return [np.array(y) for y in keras.tree.flatten(model(x))]


def assert_converted(model, x):
    """Converts, and compares weights, names and FP32 outputs. Returns the new model."""
    expected = outputs(model, x)
    converted = keras_mp.convert(model)
    assert type(converted) is type(model)
    assert converted.name == model.name
    assert [w.path for w in converted.weights] == [w.path for w in model.weights]
    assert [w.trainable for w in converted.weights] == [
        w.trainable for w in model.weights
    ]
    for actual, wanted in zip(outputs(converted, x), expected, strict=True):
        np.testing.assert_array_equal(actual, wanted)
    # Two models: training one leaves the other alone.
    for weight in converted.weights:
        weight.assign(weight + 1)
    for actual, wanted in zip(outputs(model, x), expected, strict=True):
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
    converted = assert_converted(model, np.ones((1, 8, 8, 3)))
    found = [type(layer).__name__ for layer in converted.layers]
    assert found == [type(layer).__name__ for layer in model.layers]
    assert classes(converted) == [*["keras_mp"] * 5, "keras", "keras", "keras_mp"]


def test_sequential_that_was_built_when_it_was_called():
    model = keras.Sequential([keras.layers.Dense(2), keras.layers.Dense(1)])
    assert_converted(model, np.ones((2, 3)))


def test_sequential_that_is_not_built():
    converted = keras_mp.convert(keras.Sequential([keras.layers.Dense(2)]))
    assert classes(converted) == ["keras_mp"]
    assert not converted.built


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
    "inside-bidirectional": (
        lambda: keras.layers.Bidirectional(keras.layers.GRU(2, use_cudnn=False)),
        lambda layer: (layer.forward_layer.use_cudnn, layer.backward_layer.use_cudnn),
        (False, False),
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
    converted = assert_converted(
        model, np.random.default_rng(0).normal(size=(2, *shape))
    )
    assert set(classes(converted)) == {"keras_mp"}
    for new, old in zip(converted.layers, model.layers, strict=True):
        assert new.get_config() == old.get_config()


def test_normalizations_of_a_float16_model_get_fp32_weights():
    keras.config.set_dtype_policy("float16")
    inputs = keras.Input((4,))
    x = keras.layers.Dense(4)(inputs)
    x = keras.layers.BatchNormalization(renorm=True)(x)
    x = keras.layers.LayerNormalization()(x)
    x = keras.layers.GroupNormalization(2)(x)
    model = keras.Model(inputs, keras.layers.RMSNormalization()(x))
    rng = np.random.default_rng(0)
    model.set_weights([rng.uniform(1, 2, w.shape) for w in model.weights])
    converted = keras_mp.convert(model)
    for new, old in zip(converted.weights, model.weights, strict=True):
        assert (new.path, old.dtype) == (old.path, "float16")
        # The weights of Dense are of the policy.
        assert new.dtype == ("float16" if "dense" in new.path else "float32")
        np.testing.assert_array_equal(new, old)
    assert [layer.dtype_policy.name for layer in converted.layers[1:]] == [
        "float16"
    ] * 5
    x = rng.normal(size=(3, 4)).astype("float16")
    y = converted(x)
    assert y.dtype == "float16" and np.all(np.isfinite(y))


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
    for new, old in zip(converted.weights, model.weights, strict=True):
        np.testing.assert_array_equal(new, old)


def test_a_compiled_model_stays_compiled():
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    model.compile(keras_mp.wrap(keras.optimizers.SGD(0.25)), "mse", metrics=["mae"])
    converted = keras_mp.convert(model)
    assert isinstance(converted.optimizer, keras_mp.FP32MasterOptimizer)
    assert float(converted.optimizer.learning_rate) == 0.25
    converted.fit(np.ones((4, 3)), np.ones((4, 1)), verbose=0)


def test_a_trained_model_is_converted_with_its_metrics():
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    model.compile("adam", "mse", metrics=["mae"])
    x, y = np.ones((4, 3)), np.ones((4, 1))
    model.fit(x, y, verbose=0)
    converted = keras_mp.convert(model)
    np.testing.assert_array_equal(
        converted.evaluate(x, y, verbose=0), model.evaluate(x, y, verbose=0)
    )


def test_an_optimizer_that_copies_weights_copies_those_that_were_kept():
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3)])
    model.compile(keras_mp.wrap(keras.optimizers.ScheduleFreeAdamW(1e-5)), "mse")
    converted = keras_mp.convert(model)
    before = converted.get_weights()[0]
    converted.fit(np.ones((4, 4)), np.ones((4, 3)), verbose=0)
    np.testing.assert_allclose(converted.get_weights()[0], before, atol=1.1e-5)


def test_a_nested_model_stays_frozen():
    inputs = keras.Input((3,))
    nested = keras.Model(inputs, keras.layers.Dense(3)(inputs), name="nested")
    nested.trainable = False
    model = keras.Sequential([keras.Input((3,)), nested, keras.layers.Dense(1)])
    converted = keras_mp.convert(model)
    assert [layer.trainable for layer in converted.layers] == [False, True]


def quantized():
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3)])
    model.layers[0].quantize("float8")
    return model


def with_lora():
    inputs = keras.Input((5, 4))
    heads = keras.layers.MultiHeadAttention(2, 2)
    model = keras.Model(inputs, heads(inputs, inputs))
    heads.query_dense.enable_lora(2)
    return model


@pytest.mark.parametrize("make", [quantized, with_lora])
def test_a_model_that_its_config_does_not_describe_is_refused(make):
    with pytest.raises(ValueError, match="Convert first, then quantize"):
        keras_mp.convert(make())


def test_a_layer_is_refused():
    with pytest.raises(ValueError, match=r"takes a model.*Received: <Dense"):
        keras_mp.convert(keras.layers.Dense(3))


class Mine(keras.layers.Dense):
    pass


def test_a_subclass_of_a_layer_stays():
    model = keras.Sequential([keras.Input((3,)), Mine(2), keras.layers.Dense(1)])
    assert [type(layer) for layer in keras_mp.convert(model).layers] == [
        Mine,
        layers.Dense,
    ]


class Custom(keras.Model):
    def __init__(self, **options):
        super().__init__(**options)
        self.dense = keras.layers.Dense(2)

    def call(self, inputs):
        return self.dense(inputs)


def test_a_model_of_its_own_class_is_refused():
    inputs = keras.Input((3,))
    nested = keras.Model(inputs, Custom(name="mine")(inputs))
    for model in (Custom(name="mine"), nested):
        with pytest.raises(ValueError, match="'mine', of class Custom") as error:
            keras_mp.convert(model)
        assert "keras_mp.layers" in str(error.value)


def test_the_table_has_every_layer():
    from keras_mp.layers.convert import COUNTERPARTS

    assert set(COUNTERPARTS.values()) == {getattr(layers, n) for n in layers.__all__}
    assert all(new.__name__ == old.__name__ for old, new in COUNTERPARTS.items())
    assert all(issubclass(new, old) for old, new in COUNTERPARTS.items())
