"""`inspect` on models whose numbers are known by hand."""

import json

import keras
import numpy as np
import pytest
import tensorflow as tf
from older_versions import needs
from stored_forms import FORMS

import keras_mp

POLICIES = ("float32", "float16", "mixed_float16", "bfloat16")
MODES = {
    "eager": {"run_eagerly": True},
    "graph": {"run_eagerly": False, "jit_compile": False},
    "xla": {"jit_compile": True},
}
SAMPLES, FEATURES = 4, 6
# Two thirds of them are zero after a relu.
INPUTS = np.tile([-1.0, -2.0, 0.5, -0.25, 2.0, -8.0], (SAMPLES, 1)).astype("float32")


def tiny(y_true, y_pred):
    """A loss whose gradient is 2^-30 for each of four samples."""
    return y_pred[:, 0] * (2.0**-30 * SAMPLES)


def small_model(**options):
    model = keras.Sequential(
        [
            keras.Input((FEATURES,)),
            keras.layers.ReLU(name="relu"),
            keras.layers.Dense(1, "linear", False, "ones", name="dense"),
        ]
    )
    model.compile(optimizer=keras_mp.wrap("sgd", loss_scale=1.0), loss=tiny, **options)
    return model


def entry_of(report, path, kind):
    (entry,) = [e for e in report.of_kind(kind) if e.path.endswith(path)]
    return entry


def state_of(model):
    model.optimizer.build(model.trainable_variables)
    variables = [*model.variables, *model.optimizer.variables, *model.metrics_variables]
    return [(v.path, v.numpy().copy()) for v in variables]


def assert_same_state(before, after):
    for (path, old), (_, new) in zip(before, after, strict=True):
        np.testing.assert_array_equal(old, new, err_msg=path)


@pytest.mark.slow_except("mixed_float16-graph")
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("policy", POLICIES)
def test_numbers_known_by_hand(policy, mode):
    keras.config.set_dtype_policy(policy)
    model = small_model(**MODES[mode])
    before = state_of(model)
    report = keras_mp.inspect(model, INPUTS, np.zeros((SAMPLES, 1)))
    assert_same_state(before, state_of(model))

    relu = entry_of(report, "relu", "activation").statistics
    assert (relu.elements, relu.zeros) == (24, 16)
    assert relu.exponents == {-1: 4, 1: 4}
    assert (relu.smallest, relu.largest) == (0.5, 2.0)
    assert (relu.lost, relu.subnormals, relu.overflows) == (0, 0, 0)
    dense = entry_of(report, "dense", "activation").statistics
    assert dense.exponents == {1: 4} and dense.largest == 2.5

    for path, elements in (("dense", 4), ("relu", 24)):
        gradient = entry_of(report, path, "activation_gradient").statistics
        assert gradient.exponents == {-30: elements}
        assert gradient.lost == elements and gradient.lost_at(6) == 0
    assert entry_of(report, "dense/kernel", "weight").statistics.exponents == {0: 6}
    gradient = entry_of(report, "dense/kernel", "weight_gradient")
    assert gradient.statistics.exponents == {-29: 1, -27: 1}
    assert gradient.statistics.zeros == 4 and gradient.statistics.lost == 2
    update = entry_of(report, "dense/kernel", "update")
    # Not even FP32 adds 0.01 * 2^-27 to 1.
    assert update.statistics.zeros == 6
    assert (update.too_small, update.absorbed, update.relative_error) == (0, 0, 0.0)


@pytest.mark.slow_except("mixed_float16-graph")
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("policy", POLICIES)
def test_scale_that_follows(policy, mode):
    keras.config.set_dtype_policy(policy)
    report = keras_mp.inspect(
        small_model(**MODES[mode]), INPUTS, np.zeros((SAMPLES, 1))
    )
    # The largest gradient is 2^-27; the smallest, 2^-30, becomes 2^-25 at 2^5.
    assert report.suggested_scale() == 2.0**24
    assert report.suggested_scale(margin=2.0**24) == 2.0**18
    assert report.recovered(1.0) == 0.0
    assert report.recovered(2.0**5) == pytest.approx(2 / 30)
    assert report.recovered(2.0**6) == 1.0
    assert report.overflowed(2.0**42) == 0.0
    assert report.overflowed(2.0**43) == pytest.approx(1 / 34)


FP16 = ("float16", "mixed_float16")


@pytest.mark.parametrize("policy", FP16)
def test_as_is_shows_what_the_policy_made_of_them(policy):
    keras.config.set_dtype_policy(policy)
    model = small_model()
    lost = keras_mp.inspect(model, INPUTS, np.zeros((SAMPLES, 1)), as_is=True)
    kernel = entry_of(lost, "dense/kernel", "weight_gradient")
    assert kernel.statistics.zeros == 6 and kernel.relative_error == 1.0
    assert kernel.cosine is None
    kept = keras_mp.inspect(
        model, INPUTS, np.zeros((SAMPLES, 1)), loss_scale=2.0**10, as_is=True
    )
    kernel = entry_of(kept, "dense/kernel", "weight_gradient")
    assert kernel.statistics.exponents == {-29: 1, -27: 1}
    assert kernel.relative_error == 0.0 and kernel.cosine == pytest.approx(1.0)


@pytest.mark.parametrize("policy", ("float32", *FP16))
def test_verdict_on_scaling(policy):
    keras.config.set_dtype_policy(policy)
    model = small_model()
    verdict = keras_mp.inspect(model, INPUTS, np.zeros((4, 1))).needs_scaling()
    assert verdict and verdict.value == 1.0 and "100.00%" in str(verdict)
    model.compile("sgd", loss=lambda y, p: p[:, 0])
    assert not keras_mp.inspect(model, INPUTS, np.zeros((4, 1))).needs_scaling()


@pytest.mark.xslow_except("-FP32", "-both", "averages-both", "-int8 remainders, int4")
@pytest.mark.parametrize("form", [{}, *FORMS.values()], ids=["FP32", *FORMS])
@pytest.mark.parametrize("options", [{}, {"use_ema": True}], ids=["", "averages"])
def test_an_update_continues_from_the_momentum(form, options):
    keras.config.set_dtype_policy("float16")
    model = keras.Sequential(
        [keras.Input((1,)), keras.layers.Dense(1, use_bias=False, name="dense")]
    )
    sgd = keras.optimizers.SGD(0.25, momentum=0.5, **options)
    optimizer = keras_mp.wrap(sgd, loss_scale=1.0, **form)
    model.compile(optimizer, loss=lambda y, p: p[:, 0])
    model.set_weights([np.zeros((1, 1))])
    batch = np.ones((1, 1)), np.zeros((1, 1))
    for _ in range(2):  # the momentum is -0.25, then -0.375
        model.train_on_batch(*batch)
    report = keras_mp.inspect(model, *batch)
    update = entry_of(report, "dense/kernel", "update").statistics
    assert update.largest == 0.4375  # 0.25 + 0.5 * 0.375


def model_of_ones(optimizer):
    """Its kernel and its bias have gradients of 1 with `ONES`."""
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1, name="dense")])
    model.compile(optimizer, loss=lambda y, p: p[:, 0])
    model.set_weights([np.ones((1, 1)), np.ones(1)])
    return model


ONES = np.ones((1, 1)), np.zeros((1, 1))


def updates_of(model, steps):
    for _ in range(steps):
        model.train_on_batch(*ONES)
    report = keras_mp.inspect(model, *ONES)
    found = [entry_of(report, f"dense/{name}", "update") for name in ("kernel", "bias")]
    return [entry.statistics.largest for entry in found]


def test_an_optimizer_that_keras_has_wrapped():
    keras.config.set_dtype_policy("mixed_float16")
    model = model_of_ones(keras.optimizers.SGD(0.25, momentum=0.5))
    assert updates_of(model, steps=2) == [0.4375, 0.4375]


@pytest.mark.parametrize("wrap", [keras_mp.wrap, lambda o: o], ids=["wrapped", "bare"])
@pytest.mark.parametrize(
    ("make", "steps", "updates"),
    [
        # A batch that is the last of four moves by the mean of all.
        (lambda o: o.Adam(1.0, gradient_accumulation_steps=4), 8, [1.0, 1.0]),
        # The schedule counts batches, the optimizer the means of two.
        (
            lambda o: o.SGD(
                o.schedules.PiecewiseConstantDecay([2], [1.0, 0.25]),
                gradient_accumulation_steps=2,
            ),
            4,
            [0.25, 0.25],
        ),
        (lambda o: without_decay_of_bias(o.SGD(0.5, weight_decay=0.5)), 0, [0.75, 0.5]),
        pytest.param(
            lambda o: o.MultiOptimizer(o.OptimizerMap(o.SGD(0.25, momentum=0.5))),
            2,
            [0.4375, 0.4375],
            marks=needs("Keras", 3, 15),
        ),
    ],
    ids=["accumulation", "schedule", "excluded", "several"],
)
def test_an_update_is_that_of_the_next_step(make, steps, updates, wrap):
    model = model_of_ones(wrap(make(keras.optimizers)))
    assert updates_of(model, steps) == pytest.approx(updates, rel=1e-5)


def without_decay_of_bias(optimizer):
    optimizer.exclude_from_weight_decay(var_names=["bias"])
    return optimizer


# From the weight 2^-8, FP16 takes a step of 2^-19 for none: it is half of the spacing,
# and rounded to even. Rounded stochastically, the fraction f of a spacing is 1 with the
# probability f, with the relative variance 1 / f - 1: a hundred times that many steps.
@pytest.mark.parametrize(
    ("update", "too_small", "absorbed", "needed", "steps"),
    [
        (2.0**-26, 1, 0, True, "25,500 equal steps"),
        (2.0**-19, 0, 1, True, "100 equal steps"),
        (2.0**-18, 0, 0, False, None),
        (2.0**-12, 0, 0, False, None),
    ],
)
def test_verdict_on_masters(update, too_small, absorbed, needed, steps):
    start = keras.initializers.Constant(2.0**-8)
    model = keras.Sequential(
        [keras.Input((1,)), keras.layers.Dense(1, "linear", False, start)]
    )
    model.compile(keras.optimizers.SGD(update), loss=lambda y, p: -p[:, 0])
    report = keras_mp.inspect(model, np.ones((1, 1)), np.ones((1, 1)))
    (entry,) = report.of_kind("update")
    assert (entry.too_small, entry.absorbed) == (too_small, absorbed)
    verdict = report.needs_masters()
    assert bool(verdict) == needed
    assert ("stochastically" in verdict.reason) == needed
    assert not needed or verdict.reason.endswith(f"after {steps}")
    assert model.layers[0].kernel.numpy() == 2.0**-8


def nested():
    inner = keras.Sequential(
        [keras.Input((3,)), keras.layers.Dense(3, name="dense")], name="inner"
    )
    other = keras.Sequential(
        [
            keras.Input((3,)),
            keras.layers.BatchNormalization(),
            keras.layers.Dropout(0.5),
            keras.layers.Dense(1, name="dense", kernel_regularizer="l2"),
        ],
        name="other",
    )
    inputs = keras.Input((3,), name="x")
    model = keras.Model({"x": inputs}, {"y": other(inner(inner(inputs)))})
    keras_mp.regularize_in_fp32(model)
    return model


def recurrent():
    return keras.Sequential(
        [
            keras.Input((5,), dtype="int32"),
            keras.layers.Embedding(7, 4, mask_zero=True),
            keras.layers.Bidirectional(keras.layers.LSTM(3, return_sequences=True)),
            keras.layers.GRU(3, dropout=0.5, name="gru"),
            keras.layers.Dense(1),
        ]
    )


def attention():
    inputs = keras.Input((6, 4))
    x = keras_mp.layers.MultiHeadAttention(2, 3, name="attention")(inputs, inputs)
    x = keras_mp.layers.LayerNormalization()(x + inputs)
    return keras.Model(inputs, keras.layers.Dense(1)(keras.layers.Flatten()(x)))


class Subclassed(keras.Model):
    def __init__(self):
        super().__init__()
        self.dense = keras.layers.Dense(3)
        self.probe = keras_mp.layers.Probe(name="hidden")
        self.head = keras.layers.Dense(1)

    def call(self, x):
        return self.head(keras.ops.relu(self.probe(self.dense(x))))


def subclassed():
    model = Subclassed()
    model(np.ones((1, 3)))
    return model


MODELS = {
    "nested": (nested, {"x": np.ones((4, 3), "float32")}, {"y": np.ones((4, 1))}),
    "recurrent": (recurrent, np.array([[1, 2, 0, 0, 0], [1, 2, 3, 4, 5]]), np.ones(2)),
    "attention": (attention, np.ones((2, 6, 4), "float32"), np.ones((2, 1))),
    "subclassed": (subclassed, np.ones((2, 3), "float32"), np.ones((2, 1))),
}
PATHS = {
    "nested": ["inner/dense", "inner/dense (2)", "other/batch_normalization"],
    "recurrent": [
        "embedding",
        "bidirectional/forward_lstm",
        "bidirectional/backward_lstm",
        "bidirectional",
        "gru",
        "dense",
    ],
    "attention": [
        "attention/query",
        "attention/key",
        "attention/value",
        "attention/attention_output",
        "add",
        "layer_normalization",
        "flatten",
        "dense",
    ],
    "subclassed": ["dense", "hidden", "dense_1"],
}


# Before 3.12 Keras has no metrics of outputs in a dict of one.
OLDER = {"nested": needs("Keras", 3, 12)}


@pytest.mark.xslow_except("nested-float16", "attention-mixed_float16")
@pytest.mark.slow
@pytest.mark.parametrize("policy", ("float32", *FP16))
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=OLDER.get(name, ())) for name in MODELS]
)
def test_models_are_seen_whole_and_left_as_they_were(name, policy):
    keras.config.set_dtype_policy(policy)
    make, x, y = MODELS[name]
    model = make()
    model.compile(keras_mp.wrap("adam"), loss="mse", metrics=["mae"])
    model.fit(x, y, epochs=2, verbose=0)
    before, config = state_of(model), model.to_json()
    report = keras_mp.inspect(model, x, y)
    assert_same_state(before, state_of(model))
    assert model.to_json() == config

    seen = [entry.path for entry in report.of_kind("activation")]
    assert seen[: len(PATHS[name])] == PATHS[name]
    root = f"{model.name}/"
    trainable = [v.path.removeprefix(root) for v in model.trainable_variables]
    assert [e.path for e in report.of_kind("weight_gradient")] == trainable
    assert [e.path for e in report.of_kind("update")] == trainable
    assert not report.notes
    model.fit(x, y, verbose=0)


def test_gradients_are_those_of_a_training_step():
    keras.config.set_dtype_policy("float32")
    make, x, y = MODELS["nested"]
    model = make()
    model.compile(keras.optimizers.SGD(1.0), loss="mse")
    before = [v.numpy().copy() for v in model.trainable_variables]
    report = keras_mp.inspect(model, x, y)
    model.train_on_batch(x, y)
    for variable, old in zip(model.trainable_variables, before, strict=True):
        step = np.abs(old.astype("float64") - variable.numpy())
        largest = entry_of(report, variable.path, "weight_gradient").statistics.largest
        # The difference of two weights near 1 is known to 2^-24 of them.
        assert (largest or 0.0) == pytest.approx(step.max(), rel=1e-5, abs=2.0**-22)


@pytest.mark.slow
def test_recurrent_layer_is_seen_at_all_time_steps():
    make, x, y = MODELS["recurrent"]
    model = make()
    model.compile("sgd", loss="mse")
    report = keras_mp.inspect(model, x, y)
    assert entry_of(report, "gru", "activation").statistics.elements == 2 * 5 * 3
    gradient = entry_of(report, "gru", "activation_gradient")
    assert gradient.statistics.elements == 2 * 3


def test_masters_are_the_values():
    keras.config.set_dtype_policy("float16")
    model = small_model()
    model.optimizer.build(model.trainable_variables)
    with model.optimizer.fp32_weights():
        model.optimizer.master_weights[0].assign(np.full((6, 1), 1 + 2.0**-20))
    report = keras_mp.inspect(model, INPUTS, np.zeros((4, 1)))
    largest = entry_of(report, "dense/kernel", "weight").statistics.largest
    assert largest == 1 + 2.0**-20


@pytest.mark.slow_except("nested")
@pytest.mark.parametrize("name", MODELS)
def test_report_prints_and_reads_back(name):
    make, x, y = MODELS[name]
    model = make()
    model.compile(keras_mp.wrap("adam"), loss="mse")
    report = keras_mp.inspect(model, x, y)
    assert max(len(line) for line in str(report).split("\n")) <= 100
    assert keras_mp.Numerics.from_dict(json.loads(report.to_json())) == report


@pytest.mark.parametrize("suffix", [".png", ".svg"])
def test_plot_is_written(tmp_path, suffix):
    report = keras_mp.inspect(small_model(), INPUTS, np.zeros((SAMPLES, 1)))
    path = tmp_path / f"report{suffix}"
    report.plot(path, scale=2.0**10)
    content = path.read_bytes()
    assert len(content) > 10_000
    if suffix == ".svg":
        for text in (b"Activation gradients: 100.00%", b"Weight gradients: 33.33%"):
            assert text in content


def frozen():
    model = small_model()
    model.trainable = False
    return model


def carrying_state():
    inputs = keras.Input((3, 1), batch_size=2)
    rnn = keras.layers.Bidirectional(keras.layers.GRU(2, stateful=True))
    model = keras.Sequential([inputs, rnn, keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    return model


UNBUILT = keras.Sequential([keras.layers.Dense(1)])
MISUSE = {
    "no model": (lambda: keras.layers.Dense(1), {}, "must be a keras.Model.*Dense"),
    "not built": (lambda: UNBUILT, {}, "must be built.*not built"),
    "not compiled": (nested, {}, "must be compiled.*not compiled"),
    "no weights to train": (frozen, {}, "must have trainable weights"),
    "state": (carrying_state, {}, "stateful=True in .*gru.*stateful=False"),
    "scale": (small_model, {"loss_scale": -1.0}, "`loss_scale` must be positive"),
}


@pytest.mark.parametrize("name", MISUSE)
def test_misuse_is_explained(name):
    make, arguments, message = MISUSE[name]
    with pytest.raises((TypeError, ValueError), match=f"(?s){message}"):
        keras_mp.inspect(make(), np.ones((2, 3)), np.ones((2, 1)), **arguments)


@pytest.mark.slow
@pytest.mark.xslow_except("nested")
@pytest.mark.parametrize("name", MODELS)
def test_random_numbers_are_those_of_a_run_without_it(name):
    keras.config.set_dtype_policy("mixed_float16")
    make, x, y = MODELS[name]
    drawn = []
    for inspects in (False, True):
        keras.utils.set_random_seed(3)
        model = make()
        model.compile("sgd", loss="mse")
        if inspects:
            keras_mp.inspect(model, x, y)
        new = keras.layers.Dense(2)
        new.build((2, 3))
        model.fit(x, y, verbose=0)
        drawn.append([w.numpy() for w in [*new.weights, *model.weights]])
    for without, with_it in zip(*drawn, strict=True):
        np.testing.assert_array_equal(with_it, without)


def test_failure_leaves_the_model_as_it_was():
    make, _, y = MODELS["nested"]
    model = make()
    model.compile(keras_mp.wrap("adam"), loss="mse")
    before = state_of(model)
    with pytest.raises((ValueError, tf.errors.InvalidArgumentError)):
        keras_mp.inspect(model, {"x": np.ones((4, 7))}, y)
    assert_same_state(before, state_of(model))


@pytest.mark.parametrize("scale", [3.0, 0.3], ids=["3", "0.3"])
def test_other_scales_than_powers_of_two_are_refused(scale):
    report = keras_mp.inspect(small_model(), INPUTS, np.zeros((4, 1)))
    with pytest.raises(ValueError, match="power of two"):
        report.recovered(scale)
