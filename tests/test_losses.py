"""keras_mp.losses and keras_mp.metrics: as Keras's, without the logits."""

import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_mp
from keras_mp.losses import CategoricalCrossentropy, SparseCategoricalCrossentropy

WORDS, SIZE = 37, 6
MODES = ("eager", "graph", "xla")


def run(mode, function):
    if mode == "eager":
        return function()
    return tf.function(function, jit_compile=mode == "xla")()


def numbers(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype("float32")


def built(layer, inputs):
    layer(inputs)
    weights = [numbers(*w.shape, seed=i) for i, w in enumerate(layer.weights)]
    layer.set_weights(weights)
    return layer


class Reverse(keras.layers.Layer):
    """A model whose head is its embedding."""

    def __init__(self, embedding, **options):
        super().__init__(**options)
        self.embedding = embedding

    def call(self, inputs):
        return self.embedding(inputs, reverse=True)


def reversible(tie=True, cap=None, reverse_dtype=None):
    def make(dtype):
        layer = keras_mp.layers.ReversibleEmbedding(
            WORDS,
            SIZE,
            tie_weights=tie,
            logit_soft_cap=cap,
            dtype=dtype,
            reverse_dtype=reverse_dtype,
        )
        return Reverse(layer, dtype=dtype)

    return make


def einsum(equation, kernel_shape, bias_axes):
    return lambda dtype: keras_mp.layers.EinsumDense(
        equation, kernel_shape, bias_axes=bias_axes, dtype=dtype
    )


HEADS = {
    "dense": lambda dtype: keras_mp.layers.Dense(WORDS, dtype=dtype),
    "dense-no-bias": lambda dtype: keras_mp.layers.Dense(
        WORDS, use_bias=False, dtype=dtype
    ),
    "einsum": einsum("btd,dv->btv", (None, WORDS), "v"),
    "einsum-transposed": einsum("...d,vd->...v", (WORDS,), None),
    "tied": reversible(),
    "untied": reversible(tie=False),
    "soft-cap": reversible(cap=2.0),
    "reverse-fp32": reversible(cap=2.0, reverse_dtype="float32"),
}


@pytest.fixture
def labels():
    return np.random.default_rng(3).integers(0, WORDS, (2, 5))


def value_and_gradients(loss, layer, inputs, labels, mode, sample_weight=None):
    inputs = tf.constant(inputs)

    def step():
        with tf.GradientTape() as tape:
            tape.watch(inputs)
            value = loss(labels, layer(inputs), sample_weight)
        gradients = tape.gradient(value, [inputs, *layer.trainable_variables])
        # A table for the lookup alone has none.
        return value, [x for x in gradients if x is not None]

    value, gradients = run(mode, step)
    return [np.asarray(tf.convert_to_tensor(x)) for x in (value, *gradients)]


@pytest.mark.xslow_except(
    "*-eager", "*-graph", "dense-xla", "tied-xla", "soft-cap-xla", "reverse-fp32-xla"
)
@pytest.mark.slow_except(
    "dense-graph", "tied-graph", "soft-cap-graph", "reverse-fp32-graph"
)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("head", HEADS)
def test_value_and_gradients_are_those_of_keras_in_fp32(head, mode, labels):
    inputs = numbers(2, 5, SIZE)
    layer = built(HEADS[head]("float32"), inputs)
    ours = SparseCategoricalCrossentropy(from_logits=True)
    theirs = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    found = value_and_gradients(ours, layer, inputs, labels, mode)
    expected = value_and_gradients(theirs, layer, inputs, labels, "eager")
    # Sums of up to 37 numbers of magnitude 4, in FP32: 37 * 4 * 2^-24 = 9e-6.
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)


@pytest.mark.xslow_except("*-mixed_float16", "dense-mixed_bfloat16")
@pytest.mark.slow_except("*-mixed_float16")
@pytest.mark.parametrize("policy", ["mixed_float16", "mixed_bfloat16"])
@pytest.mark.parametrize("head", HEADS)
def test_logits_are_not_rounded_to_16_bits(head, policy, labels):
    inputs = numbers(2, 5, SIZE)
    layer = built(HEADS[head](policy), inputs)
    dtype = keras.DTypePolicy(policy).compute_dtype
    loss = SparseCategoricalCrossentropy(from_logits=True)
    value = value_and_gradients(loss, layer, inputs, labels, "graph")[0]
    # The same weights and inputs, as rounded to 16 bits, in float64.
    wide = built(HEADS[head]("float32"), inputs)
    wide.set_weights([as_in(dtype, w.numpy()) for w in layer.weights])
    if head == "reverse-fp32":
        wide.set_weights([w.numpy() for w in layer.weights])
    logits = np.float64(wide(as_in(dtype, inputs)))
    if "bias" in str([w.name for w in layer.weights]):
        bias = np.float64(layer.bias.numpy())
        logits += bias - as_in(dtype, bias)
    shifted = logits - logits.max(-1, keepdims=True)
    rows = np.log(np.exp(shifted).sum(-1))
    rows -= np.take_along_axis(shifted, labels[..., None], -1)[..., 0]
    # As above. Logits of bfloat16 are off by up to 2^-9 * 8 = 1.6e-2 each.
    np.testing.assert_allclose(value, rows.mean(), atol=2e-5)


def as_in(dtype, x):
    return tf.cast(tf.cast(x, dtype), "float32").numpy()


OPTIONS = {
    "sum": {"reduction": "sum"},
    "none": {"reduction": None},
    "mean": {"reduction": "mean_with_sample_weight"},
    "ignore": {"ignore_class": 4},
    "ignore-outside": {"ignore_class": -1},
    "dtype": {"dtype": "float64"},
}


@pytest.mark.slow_except("*-masked", "dtype-none-all")
@pytest.mark.parametrize("is_masked", [False, True], ids=["all", "masked"])
@pytest.mark.parametrize("weights", ["none", "words", "texts"])
@pytest.mark.parametrize("options", OPTIONS)
def test_masks_weights_and_reductions_are_those_of_keras(
    options, weights, is_masked, labels
):
    options = OPTIONS[options]
    labels[0, :3] = options.get("ignore_class", labels[0, :3])
    sample_weight = {
        "none": None,
        "words": np.abs(numbers(2, 5)),
        "texts": np.float32([[0.5], [2.0]]),
    }[weights]
    inputs = numbers(2, 5, SIZE)
    inputs[1, 2:] = 0.0
    layer = built(keras_mp.layers.Dense(WORDS), inputs)
    model = keras.Sequential([keras.layers.Masking(), layer] if is_masked else [layer])
    y_pred = model(inputs)
    found, expected = (
        module.SparseCategoricalCrossentropy(from_logits=True, **options)(
            labels, y_pred, sample_weight
        )
        for module in (keras_mp.losses, keras.losses)
    )
    assert found.dtype == expected.dtype
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_labels_may_be_probabilities(smoothing):
    inputs = numbers(2, 5, SIZE)
    layer = built(keras_mp.layers.Dense(WORDS), inputs)
    labels = keras.ops.softmax(numbers(2, 5, WORDS, seed=7)).numpy()
    labels[0, 0] = 0.0  # padding
    found, expected = (
        module.CategoricalCrossentropy(from_logits=True, label_smoothing=smoothing)
        for module in (keras_mp.losses, keras.losses)
    )
    np.testing.assert_allclose(
        *(
            value_and_gradients(loss, layer, inputs, labels, "graph")[0]
            for loss in (found, expected)
        ),
        rtol=1e-5,
    )


def test_labels_may_have_a_last_dimension_of_1(labels):
    inputs = numbers(2, 5, SIZE)
    layer = built(keras_mp.layers.Dense(WORDS), inputs)
    loss = SparseCategoricalCrossentropy(from_logits=True)
    assert float(loss(labels[..., None], layer(inputs))) == float(
        loss(labels, layer(inputs))
    )


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("label", [-1, WORDS])
def test_a_label_outside_of_the_vocabulary_makes_the_loss_nan(label, mode):
    inputs = numbers(1, SIZE)
    layer = built(keras_mp.layers.Dense(WORDS), inputs)
    loss = SparseCategoricalCrossentropy(from_logits=True)
    found = value_and_gradients(loss, layer, inputs, np.array([label]), mode)
    assert all(np.isnan(x).any() for x in found)


REASONS = {
    "relu": ([keras.layers.Dense(WORDS, "relu")], "has the activation 'relu'"),
    "between": (
        [keras.layers.Dense(WORDS), keras.layers.Activation("relu")],
        "leave out activations, reshapes and casts",
    ),
    "other layer": ([keras.layers.Conv1D(WORDS, 1)], "call keras_mp.convert"),
}


@pytest.mark.parametrize("case", REASONS)
def test_without_a_linear_layer_the_loss_is_that_of_keras_and_warns_once(case, labels):
    layers, reason = REASONS[case]
    model = keras.Sequential([keras.Input((5, SIZE)), *layers])
    y_pred = keras_mp.convert(model)(numbers(2, 5, SIZE))
    loss = SparseCategoricalCrossentropy(from_logits=True)
    expected = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    with pytest.warns(UserWarning, match=reason):
        found = loss(labels, y_pred)
    assert float(found) == float(expected(labels, y_pred))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        loss(labels, y_pred)


def test_probabilities_are_read_by_keras_alone(labels):
    layer = built(keras_mp.layers.Dense(WORDS), numbers(2, 5, SIZE))
    with pytest.warns(UserWarning, match="from_logits is False"):
        SparseCategoricalCrossentropy()(labels, layer(numbers(2, 5, SIZE)))


def test_another_axis_is_as_in_keras():
    layer = built(keras_mp.layers.Dense(WORDS), numbers(2, 5, SIZE))
    loss = SparseCategoricalCrossentropy(from_logits=True, axis=1)
    with (
        pytest.warns(UserWarning, match="axis=1 is not the last one"),
        pytest.raises(ValueError, match="Only axis=-1"),
    ):
        loss(np.zeros((2, WORDS), "int32"), layer(numbers(2, 5, SIZE)))


def test_a_layer_that_is_not_converted_warns(labels):
    y_pred = keras.layers.Dense(WORDS)(numbers(2, 5, SIZE))
    with pytest.warns(UserWarning, match=r"call keras_mp\.convert"):
        SparseCategoricalCrossentropy(from_logits=True)(labels, y_pred)


@pytest.mark.parametrize(
    "loss",
    [
        SparseCategoricalCrossentropy(
            True, ignore_class=3, reduction="sum", axis=2, name="a"
        ),
        CategoricalCrossentropy(True, label_smoothing=0.1, reduction="sum"),
    ],
    ids=lambda loss: type(loss).__name__,
)
def test_a_loss_is_serialized(loss):
    config = keras.losses.serialize(loss)
    again = keras.losses.deserialize(config)
    assert type(again) is type(loss)
    assert again.get_config() == loss.get_config()


@pytest.mark.parametrize(
    "metric",
    [
        keras_mp.metrics.Perplexity(ignore_class=2),
        keras_mp.metrics.SparseCategoricalAccuracy(),
    ],
    ids=lambda metric: type(metric).__name__,
)
def test_a_metric_is_serialized(metric):
    again = keras.metrics.deserialize(keras.metrics.serialize(metric))
    assert type(again) is type(metric)
    assert again.get_config() == metric.get_config()


def language_model(policy="mixed_float16"):
    keras.utils.set_random_seed(0)
    with_policy = {"dtype": policy}
    ids = keras.Input((5,), dtype="int32")
    x = keras.layers.Embedding(WORDS, SIZE, mask_zero=True, **with_policy)(ids)
    x = keras.layers.LayerNormalization(**with_policy)(x)
    logits = keras.layers.Dense(WORDS, name="head", **with_policy)(x)
    return keras_mp.convert(keras.Model(ids, logits))


def compiled(loss, metrics=(), jit_compile=False):
    model = language_model()
    optimizer = keras_mp.wrap(keras.optimizers.Adam(0.01))
    model.compile(optimizer, loss, metrics=[*metrics], jit_compile=jit_compile)
    return model


def batches(labels):
    ids = np.random.default_rng(5).integers(0, WORDS, (2, 5))
    return ids, labels


def products_of_logits(model, data):
    """Returns the operations of a training step with results as large as the logits.

    They are those that TensorFlow runs: those that a result or a side effect needs.
    """
    ids, labels = (tf.constant(x) for x in data)

    @tf.function
    def step():
        return model.train_step((ids, labels))

    graph = step.get_concrete_function().graph
    needed = [op for op in graph.get_operations() if op.type.startswith("Assign")]
    needed += [each.op for each in graph.outputs] + list(graph.control_outputs)
    seen = {}
    while needed:
        op = needed.pop()
        if op.name not in seen:
            seen[op.name] = op
            needed += [x.op for x in op.inputs] + list(op.control_inputs)
    size = labels.shape.num_elements() * WORDS
    return [
        op.name
        for op in seen.values()
        if any(
            x.shape.num_elements() == size and x.dtype.is_floating for x in op.outputs
        )
    ]


OURS = (
    keras_mp.metrics.Perplexity,
    lambda: keras_mp.metrics.SparseCategoricalAccuracy(name="accuracy"),
)


@pytest.mark.slow
def test_a_training_step_has_no_logits(labels):
    """Loop bodies are functions of their own; their blocks are smaller than 2,048."""
    ours = SparseCategoricalCrossentropy(from_logits=True)
    theirs = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    data = batches(labels)
    by_case = {
        "ours": compiled(ours, [metric() for metric in OURS]),
        "Keras's loss": compiled(theirs),
        "Keras's metric": compiled(ours, ["sparse_categorical_accuracy"]),
    }
    has_logits = {
        case: bool([x for x in products_of_logits(model, data) if "head" in x])
        for case, model in by_case.items()
    }
    assert has_logits == {"ours": False, "Keras's loss": True, "Keras's metric": True}


@pytest.mark.slow
@pytest.mark.xslow_except("xla")
@pytest.mark.parametrize("jit_compile", [False, True], ids=["graph", "xla"])
def test_fit_has_the_losses_and_metrics_of_keras(jit_compile, labels):
    data = batches(labels)
    names = ("loss", "perplexity", "accuracy")
    ours = compiled(
        SparseCategoricalCrossentropy(from_logits=True),
        [metric() for metric in OURS],
        jit_compile,
    )
    theirs = compiled(
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        [metric() for metric in OURS],
        jit_compile,
    )
    histories = [
        model.fit(*data, epochs=3, verbose=0, batch_size=2) for model in (ours, theirs)
    ]
    for name in names:
        found, expected = (each.history[name] for each in histories)
        # Keras's logits are rounded to FP16, by up to 2^-11 of 4.
        np.testing.assert_allclose(found, expected, rtol=4e-3)
    np.testing.assert_allclose(
        ours.evaluate(*data, verbose=0), theirs.evaluate(*data, verbose=0), rtol=4e-3
    )


def test_class_weights_are_those_of_keras():
    inputs, labels = numbers(8, SIZE), np.arange(8) % WORDS
    weights = {word: 1.0 + word % 3 for word in range(WORDS)}
    values = []
    for module in (keras_mp.losses, keras.losses):
        keras.utils.set_random_seed(0)
        layers = [keras.Input((SIZE,)), keras.layers.Dense(WORDS)]
        model = keras_mp.convert(keras.Sequential(layers))
        model.compile("sgd", module.SparseCategoricalCrossentropy(from_logits=True))
        history = model.fit(inputs, labels, class_weight=weights, epochs=2, verbose=0)
        values.append(history.history["loss"])
    np.testing.assert_allclose(*values, rtol=1e-5)


@pytest.mark.slow
def test_replicas_train_as_with_keras_and_nothing_warns(strategy):
    inputs, labels = numbers(8, SIZE), np.arange(8)
    values = []
    for module in (keras_mp.losses, keras.losses):
        keras.utils.set_random_seed(0)
        with strategy.scope():
            layers = [keras.Input((SIZE,)), keras.layers.Dense(WORDS)]
            model = keras_mp.convert(keras.Sequential(layers))
            loss = module.SparseCategoricalCrossentropy(from_logits=True)
            model.compile(
                keras_mp.wrap("sgd"), loss, metrics=[OURS[0]()], jit_compile=False
            )
        history = model.fit(
            inputs, labels, batch_size=4, epochs=2, shuffle=False, verbose=0
        )
        values.append([*history.history["loss"], *history.history["perplexity"]])
    np.testing.assert_allclose(*values, rtol=1e-5)


def test_perplexity_leaves_out_what_is_ignored_and_masked(labels):
    labels[0, :2] = -1
    metric = keras_mp.metrics.Perplexity(ignore_class=-1)
    logits = numbers(2, 5, WORDS)
    metric.update_state(labels, logits)
    counted = labels >= 0
    wide = np.float64(logits)
    rows = np.log(np.exp(wide).sum(-1))
    rows -= np.take_along_axis(wide, np.maximum(labels, 0)[..., None], -1)[..., 0]
    expected = np.exp(rows[counted].mean())
    np.testing.assert_allclose(metric.result(), expected, rtol=1e-5)
    metric.reset_state()
    model = language_model("float32")
    y_pred = model(np.ones((2, 5), "int32"))
    loss = SparseCategoricalCrossentropy(from_logits=True, ignore_class=-1)
    value = loss(labels, y_pred)
    metric.update_state(labels, y_pred)
    np.testing.assert_allclose(metric.result(), np.exp(value), rtol=1e-5)


@pytest.mark.slow
def test_outputs_have_losses_of_their_own_and_may_share_a_head():
    """Each output finds its own input, also where one layer made both."""
    inputs = keras.Input((5, SIZE)), keras.Input((5, SIZE))
    head = keras.layers.Dense(WORDS)
    other = keras.layers.Dense(11)(inputs[0])
    outputs = {"a": head(inputs[0]), "b": head(inputs[1]), "c": other}
    data = [numbers(2, 5, SIZE, seed=1), numbers(2, 5, SIZE, seed=2)]
    labels = {name: np.full((2, 5), 3) for name in outputs}
    values = []
    for module in (keras_mp.losses, keras.losses):
        model = keras_mp.convert(keras.Model(inputs, outputs))
        losses = {
            name: module.SparseCategoricalCrossentropy(from_logits=True)
            for name in outputs
        }
        model.compile("sgd", losses)
        values.append(model.evaluate(data, labels, verbose=0, return_dict=True))
    for name, value in values[1].items():
        np.testing.assert_allclose(values[0][name], value, rtol=1e-5)


@pytest.mark.slow
def test_accumulation_and_a_custom_step_train_as_with_keras(labels):
    ids, labels = (tf.constant(x) for x in batches(labels))
    weights = []
    for module in (keras_mp.losses, keras.losses):
        model = language_model()
        loss_of = module.SparseCategoricalCrossentropy(from_logits=True)
        optimizer = keras_mp.wrap(
            keras.optimizers.SGD(0.5, gradient_accumulation_steps=2)
        )
        optimizer.build(model.trainable_variables)

        @tf.function
        def step(model=model, loss_of=loss_of, optimizer=optimizer):
            with tf.GradientTape() as tape:
                loss = optimizer.scale_loss(loss_of(labels, model(ids, training=True)))
            gradients = tape.gradient(loss, model.trainable_variables)
            optimizer.apply(gradients, model.trainable_variables)

        for _ in range(4):
            step()
        weights.append([w.numpy() for w in model.weights])
    for found, expected in zip(*weights, strict=True):
        # Rounded logits change a gradient by up to 2^-10 of it; two updates of 0.5.
        np.testing.assert_allclose(found, expected, rtol=4e-3, atol=1e-3)


@pytest.mark.slow
def test_outputs_and_files_know_nothing_of_the_loss(tmp_path, labels):
    data = batches(labels)
    model = compiled(SparseCategoricalCrossentropy(from_logits=True))
    model.train_on_batch(*data)
    expected = model.predict(data[0], verbose=0)
    assert expected.shape == (2, 5, WORDS)
    np.testing.assert_array_equal(model(data[0]).numpy(), expected)
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(loaded.predict(data[0], verbose=0), expected)
    assert type(loaded.loss) is SparseCategoricalCrossentropy
    assert loaded.evaluate(*data, verbose=0) == model.evaluate(*data, verbose=0)
    model.export(tmp_path / "exported", verbose=False)
    exported = tf.saved_model.load(tmp_path / "exported")
    served = exported.serve(tf.constant(data[0], tf.int32))
    np.testing.assert_array_equal(served.numpy(), expected)
