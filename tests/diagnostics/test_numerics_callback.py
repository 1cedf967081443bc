"""`NumericsCallback` on a model whose gradients, weights and updates are known.

The output is kernel . x and the loss is 2^-30 times the output, so that the gradient of
the kernel is 2^-30 x: 67 zeros, 32 times 2^-30, and once 2^-20. The kernel begins with
zeros and, where the gradient is 2^-20, with 1; SGD(1.0) takes the gradient from it.
"""

import json
import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf
from replicas import copies
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

import keras_mp

ROW = np.array([0.0] * 67 + [1.0] * 32 + [2.0**10], "float32")
START = np.array([0.0] * 99 + [1.0], "float32").reshape(100, 1)
SCALE = 2.0**15


def tiny_loss(y_true, y_pred):
    return 2.0**-30 * keras.ops.cast(y_pred[:, 0], "float32")


def make_model(policy="float16", probe=False, optimizer=None, **compile_arguments):
    kernel = keras.layers.Dense(1, use_bias=False, dtype=policy, name="only")
    probes = [keras_mp.layers.Probe(name="seen", dtype=policy)] if probe else []
    model = keras.Sequential([keras.Input((100,)), kernel, *probes])
    optimizer = optimizer or keras.optimizers.SGD(1.0)
    defaults = {"loss": tiny_loss, "jit_compile": False}
    model.compile(keras_mp.wrap(optimizer, SCALE), **defaults | compile_arguments)
    model.set_weights([START])
    return model


def fit(model, callback, steps, *others, batch=1, **arguments):
    x = np.tile(ROW, (steps * batch, 1))
    options = {"batch_size": batch, "shuffle": False, "verbose": 0} | arguments
    model.fit(x, x[:, :1], callbacks=[callback, *others], **options)


def counts(zeros, exponents, **others):
    """The statistics of magnitudes that are powers of two but for what is said."""
    found = {
        "elements": zeros + sum(exponents.values()),
        "zeros": zeros,
        "infinities": 0,
        "nans": 0,
        "exponents": exponents,
        "powers": exponents,
        "tops": {},
        "subnormals": 0,
        "smallest": 2.0 ** min(exponents),
        "largest": 2.0 ** max(exponents),
    }
    return found | others


GRADIENT = counts(67, {-30: 32, -20: 1}, subnormals=1)
# Before the second step: -2^-30 and 1 - 2^-20, which is no power of two.
WEIGHT = counts(
    67,
    {-30: 32, -1: 1},
    powers={-30: 32},
    tops={-1: 1},
    largest=1 - 2.0**-20,
)


def entries_of(sample):
    return {entry.kind: entry for entry in sample.entries}


def statistics_of(sample, kind):
    return vars(entries_of(sample)[kind].statistics)


WAYS = {
    "eager": {"run_eagerly": True},
    "graph": {},
    "xla": {"jit_compile": True},
}


@pytest.mark.xslow_except("xla-float16", "graph-mixed_float16", "eager-*")
@pytest.mark.slow_except("graph-float16")
@pytest.mark.parametrize("policy", ["float32", "float16", "mixed_float16"])
@pytest.mark.parametrize("way", WAYS)
def test_every_number_is_known(policy, way):
    callback = keras_mp.NumericsCallback(every=2)
    model = make_model(policy, probe=True, **WAYS[way])
    fit(model, callback, 3)
    (sample,) = callback.samples
    assert (sample.step, sample.loss_scale) == (2, SCALE)
    kinds = ["activation", "activation_gradient", "weight", "weight_gradient", "update"]
    assert [entry.kind for entry in sample.entries] == kinds
    assert statistics_of(sample, "weight_gradient") == GRADIENT
    assert statistics_of(sample, "weight") == WEIGHT
    assert statistics_of(sample, "update") == GRADIENT
    update = entries_of(sample)["update"]
    assert (update.too_small, update.absorbed) == (32, 1)
    assert (update.lost, update.lost_share) == (33, 0.33)
    # Of FP16 without masters nothing is left of the update.
    assert (update.relative_error, update.cosine) == (1.0, None)
    assert statistics_of(sample, "activation_gradient") == counts(0, {-30: 1})
    # (1 - 2^-20) 2^10 - 32 2^-30, which FP16 rounds to 2^10.
    activation = statistics_of(sample, "activation")
    assert activation["elements"] == 1
    assert activation["exponents"] == {9 if policy == "float32" else 10: 1}


def test_executions_of_several_steps(tmp_path):
    callback = keras_mp.NumericsCallback(every=2, log_dir=tmp_path)
    model = make_model(steps_per_execution=3)
    # Executions of 3, 3 and 1 steps in each epoch; the samples are of steps 2, 4 and 6
    # of the first, and of 8 (its last execution), 10, 12 and 14.
    with pytest.warns(UserWarning, match="steps_per_execution=3"):
        fit(model, callback, 7, epochs=2)
    assert [sample.step for sample in callback.samples] == [2, 6, 10, 12, 14]
    for sample in callback.samples:
        assert statistics_of(sample, "weight_gradient") == GRADIENT
        assert set(entries_of(sample)) == {"weight", "weight_gradient"}


@pytest.mark.slow
@pytest.mark.parametrize("clipnorm", [None, 1e9], ids=["each", "joint"])
def test_replicas_count_their_own_gradients(strategy, clipnorm):
    count = strategy.num_replicas_in_sync
    callback = keras_mp.NumericsCallback(every=2)
    with strategy.scope():
        optimizer = keras.optimizers.SGD(1.0, global_clipnorm=clipnorm)
        model = make_model(probe=True, optimizer=optimizer)
    fit(model, callback, 3, batch=count)
    (sample,) = callback.samples
    # Each replica has one example, and 1 / count of the mean loss.
    down = count.bit_length() - 1
    expected = counts(
        67 * count, {-30 - down: 32 * count, -20 - down: count}, subnormals=count
    )
    assert statistics_of(sample, "weight_gradient") == expected
    activation = counts(0, {-30 - down: count})
    assert statistics_of(sample, "activation_gradient") == activation
    assert statistics_of(sample, "weight") == WEIGHT
    assert statistics_of(sample, "update") == GRADIENT
    (kernel,) = model.trainable_variables
    assert len(copies(strategy, kernel)) == count


def test_accumulated_gradients():
    callback = keras_mp.NumericsCallback(every=2)
    sgd = keras.optimizers.SGD(1.0, gradient_accumulation_steps=2)
    fit(make_model(optimizer=sgd), callback, 2)
    (sample,) = callback.samples
    assert statistics_of(sample, "weight_gradient") == GRADIENT
    assert statistics_of(sample, "update") == GRADIENT


def test_sparse_gradients_and_weights_without_any():
    inputs = keras.Input((2,), dtype="int32")
    embedding = keras.layers.Embedding(10, 4, name="table")
    unused = keras.layers.Dense(1, name="unused")
    unused.build((4,))
    x = embedding(inputs)
    model = keras.Model(inputs, x)
    model.unused = unused
    model.compile(
        keras_mp.wrap("sgd", SCALE),
        loss=lambda y, p: 2.0**-10 * keras.ops.sum(p, axis=(1, 2)),
        jit_compile=False,
    )
    callback = keras_mp.NumericsCallback(every=1)
    ids = np.array([[3, 3]])
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Gradients do not exist")
        model.fit(ids, np.zeros((1, 1)), callbacks=[callback], verbose=0)
    (sample,) = callback.samples
    gradients = [e for e in sample.entries if e.kind == "weight_gradient"]
    assert [e.path for e in gradients] == ["table/embeddings"]
    # Row 3 has twice 2^-10, and the other nine rows nothing.
    assert vars(gradients[0].statistics) == counts(36, {-9: 4})


class ProbedCell(keras.layers.SimpleRNNCell):
    def __init__(self, units):
        super().__init__(units)
        self.seen = keras_mp.layers.Probe(name="seen")

    def call(self, x, states, training=False):
        output, _ = super().call(x, states, training=training)
        output = self.seen(output, training=training)
        return output, [output]


def test_a_probe_in_a_loop_is_left_out():
    layers = [keras.Input((5, 3)), keras.layers.RNN(ProbedCell(4))]
    model = keras.Sequential([*layers, keras_mp.layers.Probe(name="behind")])
    model.compile(keras_mp.wrap("sgd", SCALE), "mse", jit_compile=False)
    callback = keras_mp.NumericsCallback(every=1)
    x = np.ones((1, 5, 3), "float32")
    with pytest.warns(UserWarning, match=r"outside of loops.*Received: '.*seen'"):
        model.fit(x, x[:, :1, :1], callbacks=[callback], verbose=0)
    (sample,) = callback.samples
    seen = [e.path for e in sample.entries if e.kind == "activation_gradient"]
    assert seen == ["behind"]


def test_an_overflow_is_counted():
    callback = keras_mp.NumericsCallback(every=1)
    model = make_model("float16")
    model.optimizer.loss_scale = keras_mp.ConstantLossScale(2.0**40)
    fit(model, callback, 2)
    first, second = callback.samples
    # 2^40 2^-30 is 2^10, times 2^10 is beyond FP16. Skipped steps are steps, too.
    assert (first.step, second.step) == (1, 2)
    statistics = statistics_of(second, "weight_gradient")
    assert (statistics["zeros"], statistics["infinities"]) == (67, 1)
    assert statistics["exponents"] == {-30: 32}
    assert statistics_of(second, "update")["zeros"] == 100


@pytest.mark.xslow_except("graph")
@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
def test_training_is_the_same_to_the_bit(way):
    def run(*callbacks):
        keras.utils.set_random_seed(1)
        layers = [keras.Input((7,)), keras.layers.Dense(5, "relu", dtype="float16")]
        layers += [keras.layers.Dropout(0.5), keras_mp.layers.Probe()]
        model = keras.Sequential([*layers, keras.layers.Dense(1, dtype="float16")])
        model.compile(
            keras_mp.wrap("adam"), "mse", **{"jit_compile": False, **WAYS[way]}
        )
        x = np.random.default_rng(0).normal(size=(48, 7)).astype("float32")
        model.fit(x, x[:, :1], batch_size=4, verbose=0, callbacks=list(callbacks))
        return [v.numpy() for v in (*model.variables, *model.optimizer.variables)]

    expected = run()
    for plain, sampled in zip(
        expected, run(keras_mp.NumericsCallback(every=5)), strict=True
    ):
        np.testing.assert_array_equal(plain, sampled, strict=True)


def test_nothing_is_left_behind():
    model = make_model(probe=True)
    model.optimizer.build(model.trainable_variables)
    before = [v.path for v in model.optimizer.variables]
    fit(model, keras_mp.NumericsCallback(every=1), 1)
    assert [v.path for v in model.optimizer.variables] == before
    assert model.optimizer.gradient_sampler is None
    assert model.layers[-1].observe is None
    second = keras_mp.NumericsCallback(every=3)
    fit(model, second, 4)
    # Steps are those of the model: the first fit has made one.
    assert [sample.step for sample in second.samples] == [3]


class Interruption(keras.callbacks.Callback):
    """Ctrl-C, at a place in the second step."""

    def __init__(self, place):
        super().__init__()
        setattr(self, place, self.interrupt)

    def interrupt(self, batch, logs=None):
        if batch == 1:
            raise KeyboardInterrupt


PLACES = ["on_train_batch_begin", "on_train_batch_end"]


@pytest.mark.xslow_except("step-True", "on_train_batch_end-False")
@pytest.mark.slow_except("step-True")
@pytest.mark.parametrize(
    ("place", "eager"), [*((place, False) for place in PLACES), ("step", True)]
)
def test_nothing_counts_after_an_interruption(place, eager):
    calls = []

    def loss(y_true, y_pred):
        calls.append(1)
        if place == "step" and len(calls) == 2:
            raise KeyboardInterrupt
        return tiny_loss(y_true, y_pred)

    model = make_model(probe=True, run_eagerly=eager, loss=loss)
    callback = keras_mp.NumericsCallback(every=1)
    others = [Interruption(place)] if place in PLACES else []
    with pytest.raises(KeyboardInterrupt):
        fit(model, callback, 4, *others)
    assert model.optimizer.gradient_sampler is None
    assert model.layers[-1].observe is None
    seen = list(callback.samples)
    counted = callback._sampler.step
    # A fit without it counts nothing, but for a step that was about to begin.
    fit(model, keras.callbacks.Callback(), 4)
    model.train_on_batch(ROW[None], ROW[None, :1])
    assert callback.samples == seen
    assert callback._sampler.step == counted + (place == "on_train_batch_begin")
    # The same callback begins anew.
    done = int(model.optimizer.iterations)
    fit(model, callback, 2)
    steps = [sample.step for sample in callback.samples]
    assert steps == [*(sample.step for sample in seen), done + 1, done + 2]


@pytest.mark.slow
def test_a_train_function_made_anew_in_a_fit_counts():
    class Anew(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            self.model.make_train_function(force=True)

    callback = keras_mp.NumericsCallback(every=1)
    fit(make_model(), callback, 3, Anew())
    assert [sample.step for sample in callback.samples] == [1, 2, 3]


# What is written.


def lines_of(directory):
    text = (directory / "numerics.jsonl").read_text()
    return [json.loads(line) for line in text.splitlines()]


@pytest.mark.slow
def test_lines_read_back(tmp_path):
    callback = keras_mp.NumericsCallback(every=1, log_dir=tmp_path / "new" / "logs")
    fit(make_model(probe=True), callback, 2)
    lines = lines_of(tmp_path / "new" / "logs")
    assert [line["step"] for line in lines] == [1, 2]
    update = lines[1]["entries"][-1]
    assert (update["kind"], update["too_small"], update["absorbed"]) == (
        "update",
        32,
        1,
    )
    exponents = {"-30": 32, "-20": 1}
    assert update["statistics"]["exponents"] == exponents
    assert [
        type(sample).from_json(json.dumps(line))
        for sample, line in zip(callback.samples, lines, strict=True)
    ] == callback.samples


def test_a_damaged_file_is_named(tmp_path):
    model = make_model()
    path = tmp_path / "numerics.jsonl"
    path.write_text("{}\n")
    callback = keras_mp.NumericsCallback(every=1, log_dir=tmp_path)
    with pytest.raises(ValueError, match=r"Received: .*numerics\.jsonl, line 1"):
        fit(model, callback, 2)
    np.testing.assert_array_equal(model.get_weights(), [START])


class StopError(Exception):
    pass


class StopAt(keras.callbacks.Callback):
    """Ends a run in the middle, as a kill does."""

    def __init__(self, batch):
        super().__init__()
        self.batch = batch

    def on_train_batch_end(self, batch, logs=None):
        if batch == self.batch:
            raise StopError


@pytest.mark.xslow_except("whole-first")
@pytest.mark.slow
@pytest.mark.parametrize("order", ["first", "last"])
@pytest.mark.parametrize("torn", [False, True], ids=["whole", "torn"])
def test_a_resumed_run_lists_each_step_once(tmp_path, order, torn):
    def run(*others):
        model = make_model()
        backup = keras.callbacks.BackupAndRestore(tmp_path / "backup", save_freq=4)
        callback = keras_mp.NumericsCallback(every=3, log_dir=tmp_path)
        both = [callback, backup] if order == "first" else [backup, callback]
        fit(model, both[0], 10, both[1], *others)
        return callback

    with pytest.raises(StopError):
        run(StopAt(6))
    path = tmp_path / "numerics.jsonl"
    assert [line["step"] for line in lines_of(tmp_path)] == [3, 6]
    if torn:
        path.write_bytes(path.read_bytes()[:-7])
    # The backup is of step 5, so that step 6 is trained again.
    callback = run()
    steps = [line["step"] for line in lines_of(tmp_path)]
    assert steps == sorted(set(steps))
    assert [sample.step for sample in callback.samples] == steps
    assert 3 in steps


@pytest.mark.slow
def test_checkpoints_resume_between_epochs(tmp_path):
    def run(epochs):
        model = make_model()
        checkpoints = keras_mp.Checkpoints(tmp_path / "checkpoints")
        callback = keras_mp.NumericsCallback(every=2, log_dir=tmp_path)
        done = checkpoints.restore(model)
        fit(model, callback, 3, checkpoints, initial_epoch=done, epochs=epochs)

    run(1)
    run(3)
    assert [line["step"] for line in lines_of(tmp_path)] == [2, 4, 6, 8]
    assert lines_of(tmp_path)[0]["entries"][1]["statistics"]["zeros"] == 67


@pytest.mark.slow
def test_a_new_run_begins_the_file_anew(tmp_path):
    for steps in (4, 2):
        callback = keras_mp.NumericsCallback(every=2, log_dir=tmp_path)
        fit(make_model(), callback, steps)
    assert [line["step"] for line in lines_of(tmp_path)] == [2]


@pytest.mark.slow
def test_tensorboard_and_pictures(tmp_path):
    callback = keras_mp.NumericsCallback(every=1, log_dir=tmp_path)
    fit(make_model(probe=True), callback, 3)
    events = EventAccumulator(str(tmp_path)).Reload()
    path = callback.samples[0].entries[-1].path
    expected = {"lost": 0.33, "subnormal": 0.01, "overflowing": 0, "largest": 2.0**-20}
    for part, value in expected.items():
        made = events.Tensors(f"numerics/{path}/update/{part}")
        assert [event.step for event in made] == [1, 2, 3]
        number = tf.make_ndarray(made[1].tensor_proto)
        assert number == np.float32(value)
    (_, second, _) = events.Tensors(f"numerics/{path}/weight_gradient/exponents")
    buckets = tf.make_ndarray(second.tensor_proto)
    np.testing.assert_array_equal(buckets, [[-30, -29, 32], [-20, -19, 1]])
    for picture in ("exponents.png", "lost.png"):
        content = (tmp_path / picture).read_bytes()
        assert content.startswith(b"\x89PNG") and len(content) > 10_000


@pytest.mark.slow
def test_pictures_of_the_samples_so_far(tmp_path):
    callback = keras_mp.NumericsCallback(every=2)
    with pytest.raises(ValueError, match=r"Received: none .* every=2"):
        callback.plot(tmp_path)
    fit(make_model(), callback, 2)
    folder = tmp_path / "new"
    callback.plot(folder, format="svg")
    made = {path.name: path.read_text() for path in folder.iterdir()}
    assert {*made} == {"exponents.svg", "lost.svg"}
    assert all("<svg" in content for content in made.values())


# What is wrong is said before the first step.


def test_two_in_one_fit_are_refused():
    model = make_model()
    first, second = (keras_mp.NumericsCallback(every=every) for every in (1, 2))
    with pytest.raises(ValueError, match=r"one NumericsCallback.* every=1"):
        fit(model, first, 2, second)
    np.testing.assert_array_equal(model.get_weights(), [START])
    fit(model, second, 2)  # one that was left behind is no other
    assert [sample.step for sample in second.samples] == [2]


def test_pictures_need_matplotlib(tmp_path, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    callback = keras_mp.NumericsCallback(every=1, log_dir=tmp_path)
    with pytest.warns(UserWarning, match="matplotlib, which is not installed"):
        fit(make_model(), callback, 1)
    assert len(lines_of(tmp_path)) == 1
    assert not list(tmp_path.glob("*.png"))


@pytest.mark.parametrize(
    ("every", "error"),
    [(0, ValueError), (-1, ValueError), (1.5, TypeError), (True, TypeError)],
)
def test_every_is_a_number_of_steps(every, error):
    with pytest.raises(error, match=r"every.*Received: every=.*Try 200"):
        keras_mp.NumericsCallback(every)


def test_the_optimizer_must_be_wrapped():
    model = make_model()
    model.compile("sgd", tiny_loss)
    with pytest.raises(ValueError, match=r"wrapped optimizer.*Received.*keras_mp.wrap"):
        fit(model, keras_mp.NumericsCallback(), 1)


def test_the_directory_must_be_one_that_can_be_written_to(tmp_path):
    (tmp_path / "file").write_text("")
    callback = keras_mp.NumericsCallback(log_dir=tmp_path / "file")
    model = make_model()
    with pytest.raises(OSError, match=r"write to its log_dir. Received: "):
        fit(model, callback, 1)
    assert model.optimizer.iterations.numpy() == 0


def test_another_backend_is_an_error(monkeypatch):
    monkeypatch.setattr(keras.backend, "backend", lambda: "jax")
    callback = keras_mp.NumericsCallback()
    callback.set_model(make_model())
    with pytest.raises(RuntimeError, match=r"TensorFlow backend. Received: .*'jax'"):
        callback.on_train_begin()
