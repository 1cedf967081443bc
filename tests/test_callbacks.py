"""The callback on a model of one weight, whose every step is known by hand.

The loss is the mean output and the output is weight * x: with x = 1 the gradient is 1,
and a step of SGD(0.25) takes 0.25 from the weight. The scaled gradient is a float16
number, so that it overflows exactly where the scale is 2**16 or more.
"""

import csv
import re
import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

import keras_mp
from keras_mp import ConstantLossScale, DynamicLossScale, LossScaleCallback

COLLAPSED = keras_mp.LossScaleCollapseError


def mean_output(y_true, y_pred):
    return keras.ops.mean(y_pred, axis=-1)


def model_of(loss_scale="dynamic", optimizer=None, **compile_arguments):
    kernel = keras.layers.Dense(
        1, use_bias=False, kernel_initializer="ones", dtype="float16", name="only"
    )
    model = keras.Sequential([keras.Input((1,)), kernel])
    optimizer = optimizer or keras_mp.wrap(keras.optimizers.SGD(0.25), loss_scale)
    defaults = {"loss": mean_output, "jit_compile": False}
    model.compile(optimizer, **defaults | compile_arguments)
    return model


def fit(model, batches, *callbacks, epochs=1, verbose=0):
    """Fits on batches of one sample and returns the history."""
    x = np.array(batches, "float32").reshape(-1, 1)
    return model.fit(
        x,
        x,
        batch_size=1,
        shuffle=False,
        epochs=epochs,
        verbose=verbose,
        callbacks=list(callbacks),
    ).history


def weight_of(model):
    (weight,) = model.get_weights()
    assert weight.dtype == np.float16
    return weight.item()


NAN = np.nan
ONE = np.ones((1, 1), "float32")
COMPILED = pytest.mark.parametrize("jit", [False, True], ids=["graph", "xla"])


# What is logged.


def test_the_logs_of_each_epoch():
    model = model_of(DynamicLossScale(8.0))
    history = fit(model, [1.0, NAN, NAN], LossScaleCallback(), epochs=2)
    assert history["loss_scale"] == [2.0, 0.5]
    assert history["skipped_steps"] == [2, 4]
    assert history["consecutive_skips"] == [2, 2]
    types = {name: type(history[name][0]) for name in history if name != "loss"}
    assert types == {
        "loss_scale": float,
        "skipped_steps": int,
        "consecutive_skips": int,
    }
    assert weight_of(model) == 0.5


@pytest.mark.parametrize("verbose", [1, 2])
def test_the_progress_bar_shows_the_scale(verbose, capsys):
    model = model_of(DynamicLossScale(8.0))
    fit(model, [1.0, NAN], LossScaleCallback(), verbose=verbose)
    shown = capsys.readouterr().out
    assert re.search(r"loss_scale: 4\.0", shown)
    assert re.search(r"skipped_steps: 1", shown)


@pytest.mark.parametrize("position", ["after", "before"])
def test_csv_logger_sees_the_logs_if_it_stands_after(position, tmp_path):
    log = tmp_path / "log.csv"
    callbacks = [LossScaleCallback(), keras.callbacks.CSVLogger(log)]
    model = model_of(DynamicLossScale(8.0))
    fit(model, [1.0, NAN], *callbacks[:: 1 if position == "after" else -1])
    with open(log) as file:
        (row,) = csv.DictReader(file)
    if position == "after":
        assert float(row["loss_scale"]) == 4.0
        assert int(row["skipped_steps"]) == int(row["consecutive_skips"]) == 1
    else:
        assert not set(row) & {"loss_scale", "skipped_steps", "consecutive_skips"}


def test_tensorboard_writes_the_logs(tmp_path):
    board = keras.callbacks.TensorBoard(tmp_path, write_graph=False)
    fit(model_of(DynamicLossScale(8.0)), [1.0, NAN], LossScaleCallback(), board)
    events = EventAccumulator(str(tmp_path / "train")).Reload()
    logged = {"loss_scale": 4.0, "skipped_steps": 1, "consecutive_skips": 1}
    for name, value in logged.items():
        (event,) = events.Tensors(f"epoch_{name}")
        assert tf.make_ndarray(event.tensor_proto) == value


def test_a_callback_can_watch_what_is_logged():
    stop = keras.callbacks.EarlyStopping("skipped_steps", patience=1, mode="min")
    history = fit(model_of(), [NAN], LossScaleCallback(), stop, epochs=9)
    assert history["skipped_steps"] == [1, 2]


def test_logs_may_be_missing():
    model = model_of()
    callback = LossScaleCallback()
    callback.set_model(model)
    callback.on_train_begin()
    callback.on_epoch_end(0)


# Reads of the device.


@pytest.fixture
def reads(monkeypatch):
    """A list that gets an item whenever a tensor's value is waited for."""
    made = []
    tensor = type(tf.constant(0))

    def counted(read):
        def counting(self, *args, **kwargs):
            made.append(read.__name__)
            return read(self, *args, **kwargs)

        return counting

    for name in ("numpy", "__array__", "__bool__", "__float__", "__int__", "__index__"):
        monkeypatch.setattr(tensor, name, counted(getattr(tensor, name)))
    return made


@pytest.mark.slow
def test_a_step_does_not_wait_for_the_device(reads):
    model = model_of(DynamicLossScale(8.0))
    batches = [1.0, NAN] * 125
    fit(model, batches)  # the first run also traces
    counts = []
    for callbacks in [[], [LossScaleCallback(patience=100)]]:
        reads.clear()
        fit(model, batches, *callbacks)
        counts.append(len(reads))
    without, with_callback = counts
    # Twice `skips_at_minimum`, at batches 100 and 200; at the end of the epoch that
    # and the three numbers that are logged. A read of a variable may take two calls.
    assert 6 <= with_callback - without <= 12


# The rule that the callback chooses.


@pytest.mark.slow
@COMPILED
def test_the_rule_of_each_fit_takes_effect_in_the_compiled_step(jit):
    model = model_of(8, jit_compile=jit)

    # 2**17 overflows and is quartered; two steps.
    rule = DynamicLossScale(2**17, backoff_factor=0.25)
    history = fit(model, [1.0] * 3, LossScaleCallback(rule))
    assert model.optimizer.loss_scale_rule == rule
    assert history["loss_scale"] == [2.0**15]
    assert history["skipped_steps"] == [1]
    assert weight_of(model) == 0.5

    # 2**18, 2**17 and 2**16 overflow and are halved; one step. The old rule, left in
    # a step that was traced before, would have overflowed only twice.
    rule = DynamicLossScale(2**18, backoff_factor=0.5)
    history = fit(model, [1.0] * 4, LossScaleCallback(rule))
    assert history["loss_scale"] == [2.0**15]
    assert history["skipped_steps"] == [3]
    assert weight_of(model) == 0.25

    # A constant scale does not fall at an overflow.
    history = fit(model, [1.0, NAN], LossScaleCallback(4))
    assert model.optimizer.loss_scale_rule == ConstantLossScale(4)
    assert history["loss_scale"] == [4.0]
    assert history["skipped_steps"] == [1]
    assert weight_of(model) == 0.0


def tiny_loss(y_true, y_pred):
    return 2.0**-26 * mean_output(y_true, y_pred)


@pytest.mark.slow
@COMPILED
def test_the_scale_multiplies_the_gradient_of_the_compiled_step(jit):
    # The gradient is 2**-26, in float16 0 with a scale of 1 but exact with 2**10.
    optimizer = keras_mp.wrap(keras.optimizers.SGD(2.0**24), 1)
    model = model_of(optimizer=optimizer, loss=tiny_loss, jit_compile=jit)
    fit(model, [1.0])
    assert weight_of(model) == 1.0
    fit(model, [1.0], LossScaleCallback(2**10))
    assert weight_of(model) == 0.75


@pytest.mark.parametrize("given", ["dynamic", 512, np.float32(512)])
def test_the_rule_may_be_given_as_for_wrap(given):
    model = model_of(8)
    LossScaleCallback(given).set_model(model)
    assert (
        model.optimizer.loss_scale_rule == keras_mp.wrap("sgd", given).loss_scale_rule
    )


def test_a_bad_rule_is_refused_at_once():
    with pytest.raises(ValueError, match=r"loss_scale.*Received: loss_scale='static'"):
        LossScaleCallback("static")


def test_a_rule_equal_to_the_optimizers_keeps_the_state():
    rule = DynamicLossScale(8.0)
    model = model_of(rule)
    fit(model, [NAN], LossScaleCallback(rule))
    train_function = model.train_function
    history = fit(model, [NAN], LossScaleCallback(DynamicLossScale(8.0)))
    assert history["loss_scale"] == [2.0]
    assert history["skipped_steps"] == [2]
    assert model.train_function is train_function


def test_no_rule_keeps_the_rule_and_the_state():
    model = model_of(DynamicLossScale(8.0))
    fit(model, [NAN], LossScaleCallback())
    assert model.optimizer.loss_scale_rule == DynamicLossScale(8.0)
    assert fit(model, [NAN], LossScaleCallback())["loss_scale"] == [2.0]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("order", "rule"),
    [
        ("backup-first", None),
        ("backup-first", DynamicLossScale(2**17)),
        ("backup-last", DynamicLossScale(2**17)),
    ],
    ids=["optimizers-rule", "backup-first", "backup-last"],
)
def test_a_backup_restores_the_scale_of_the_rule(order, rule, tmp_path):
    class Interrupt(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch, logs=None):
            if epoch == 2:
                raise KeyboardInterrupt

    def run(*more):
        model = model_of("dynamic" if rule else DynamicLossScale(2**17))
        backup = keras.callbacks.BackupAndRestore(tmp_path / "backup")
        callbacks = [backup, LossScaleCallback(rule)]
        if order == "backup-last":
            callbacks.reverse()
        return model, fit(model, [1.0, 1.0], *callbacks, *more, epochs=3)

    with pytest.raises(KeyboardInterrupt):
        run(Interrupt())
    # Two overflows in epoch 0, two steps in epoch 1, two in epoch 2. From 2**17 the
    # resumed epoch would have overflowed twice more.
    model, history = run()
    assert history["loss_scale"] == [2.0**15]
    assert history["skipped_steps"] == [2]
    assert weight_of(model) == 0.0


# Models with several optimizers, as a GAN. Each trains a weight of 1 on its own column;
# where that is NaN, its step is skipped.


class TwoPlayers(keras.Model):
    """Takes its optimizers in a `compile` of its own, or as attributes."""

    def __init__(self):
        super().__init__()
        self.players = [keras.Variable([1.0], dtype="float16") for _ in range(2)]

    def compile(self, g_optimizer=None, d_optimizer=None, **arguments):
        super().compile(jit_compile=False, **arguments)
        self.g_optimizer = g_optimizer or self.optimizer
        self.d_optimizer = d_optimizer
        for optimizer, weight in self.pairs:
            optimizer.build([weight])

    @property
    def pairs(self):
        both = (self.g_optimizer, self.d_optimizer)
        return list(zip(both, self.players, strict=True))

    def train_step(self, data):
        for i, (optimizer, weight) in enumerate(self.pairs):
            with tf.GradientTape() as tape:
                column = tf.cast(data[:, i], "float16")
                loss = optimizer.scale_loss(tf.reduce_mean(weight * column))
            optimizer.apply([tape.gradient(loss, weight.value)], [weight])
        return {"rows": tf.constant(1.0)}


def wrapped(loss_scale):
    return keras_mp.wrap(keras.optimizers.SGD(0.25), loss_scale)


def two_players(shares=False, in_compile=False):
    model = TwoPlayers()
    generator = wrapped(DynamicLossScale(8.0))
    discriminator = wrapped(generator if shares else DynamicLossScale(64.0))
    names = ("optimizer" if in_compile else "g_optimizer", "d_optimizer")
    model.compile(**dict(zip(names, (generator, discriminator), strict=True)))
    return model


PLAYED = np.array([[1.0, 1.0], [NAN, 1.0], [1.0, 2.0]], "float32")


def play(model, callback, rows=PLAYED):
    return model.fit(
        rows, batch_size=1, shuffle=False, verbose=0, callbacks=[callback]
    ).history


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (
            {},
            {
                "g_optimizer_loss_scale": 4.0,
                "g_optimizer_skipped_steps": 1,
                "g_optimizer_consecutive_skips": 0,
                "d_optimizer_loss_scale": 64.0,
                "d_optimizer_skipped_steps": 0,
                "d_optimizer_consecutive_skips": 0,
            },
        ),
        (
            {"in_compile": True},
            {
                "loss_scale": 4.0,
                "skipped_steps": 1,
                "consecutive_skips": 0,
                "d_optimizer_loss_scale": 64.0,
                "d_optimizer_skipped_steps": 0,
                "d_optimizer_consecutive_skips": 0,
            },
        ),
        (
            {"shares": True},
            {"loss_scale": 4.0, "skipped_steps": 1, "consecutive_skips": 0},
        ),
    ],
    ids=["attributes", "compiled", "shared"],
)
def test_the_logs_of_several_optimizers(options, expected):
    history = play(two_players(**options), LossScaleCallback())
    assert {name: value for name, (value,) in history.items()} == {
        "rows": 1.0,
        **expected,
    }


@pytest.mark.slow
def test_the_rule_is_that_of_every_scale():
    model = two_players()
    play(model, LossScaleCallback(16))
    assert float(model.g_optimizer.loss_scale) == 16.0
    assert float(model.d_optimizer.loss_scale) == 16.0


@pytest.mark.parametrize("shares", [False, True], ids=["own", "shared"])
def test_a_collapse_of_one_of_several(shares):
    model = two_players(shares)
    rule = ConstantLossScale(8)
    names = "" if shares else "of d_optimizer "
    message = rf"(?s)last 3 steps {names}all overflowed.*in the last of them: variable"
    rows = np.array([[1.0, NAN]] * 3, "float32")
    with pytest.raises(COLLAPSED, match=message):
        play(model, LossScaleCallback(rule, patience=3), rows)


@pytest.mark.parametrize("shares", [False, True], ids=["own", "shared"])
def test_every_step_of_several_is_written(shares, tmp_path):
    play(two_players(shares), LossScaleCallback(log_dir=tmp_path))
    events = EventAccumulator(str(tmp_path)).Reload()

    def logged(name):
        return [tf.make_ndarray(e.tensor_proto).item() for e in events.Tensors(name)]

    assert logged("d_optimizer_gradient_norm") == [1.0, 1.0, 2.0]
    first, skipped, last = logged("g_optimizer_gradient_norm")
    assert (first, last) == (1.0, 1.0) and np.isnan(skipped)
    if shares:
        assert logged("loss_scale") == [8.0, 4.0, 4.0]
        assert logged("skipped_steps") == [0, 1, 1]
    else:
        assert logged("g_optimizer_loss_scale") == [8.0, 4.0, 4.0]
        assert logged("d_optimizer_loss_scale") == [64.0] * 3
        assert logged("d_optimizer_skipped_steps") == [0] * 3


def test_optimizers_that_a_model_does_not_hold():
    model = TwoPlayers()
    model.compile(keras.optimizers.SGD(0.25), keras.optimizers.SGD(0.25))
    with pytest.raises(ValueError, match="wrapped one as an attribute"):
        play(model, LossScaleCallback())


# Models that it cannot serve.

NOT_WRAPPED = {
    "plain": (keras.optimizers.SGD, "float32"),
    "wrapped-by-keras": (keras.optimizers.SGD, "mixed_float16"),
    "loss-scale-optimizer": (
        lambda: keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD()),
        "float32",
    ),
}


@pytest.mark.parametrize(("optimizer", "policy"), NOT_WRAPPED.values(), ids=NOT_WRAPPED)
def test_without_a_wrapped_optimizer_the_error_shows_wrap(optimizer, policy):
    keras.config.set_dtype_policy(policy)
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    model.compile(optimizer(), "mse")
    for callback in (LossScaleCallback(), LossScaleCallback(8)):
        with pytest.raises(ValueError) as caught:
            fit(model, [1.0], callback)
        message = str(caught.value)
        assert message.startswith("LossScaleCallback needs a wrapped optimizer.")
        assert f"Received: optimizer={model.optimizer!r}" in message
        assert "model.compile(optimizer=keras_mp.wrap(optimizer)" in message


def test_without_compile_the_error_shows_wrap():
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    with pytest.raises(ValueError, match=r"Received: optimizer=None.*keras_mp\.wrap"):
        LossScaleCallback().set_model(model)


@pytest.mark.parametrize("on_collapse", ["stop", None, True, ""])
def test_on_collapse_is_one_of_three(on_collapse):
    with pytest.raises(ValueError) as caught:
        LossScaleCallback(on_collapse=on_collapse)
    message = str(caught.value)
    assert '`on_collapse` must be "raise", "warn" or "continue".' in message
    assert f"Received: on_collapse={on_collapse!r}" in message


@pytest.mark.parametrize("patience", [0, -1, 2.5, 100.0, True, None, "100"])
def test_patience_is_a_count(patience):
    with pytest.raises((TypeError, ValueError)) as caught:
        LossScaleCallback(patience=patience)
    message = str(caught.value)
    assert message.startswith("`patience` must be ")
    assert f"Received: patience={patience!r}" in message
    assert "Try 100" in message


@pytest.mark.parametrize("patience", [1, np.int64(7)])
def test_patience_may_be_an_int_of_any_kind(patience):
    assert LossScaleCallback(patience=patience).patience == int(patience)


# Collapse. The scale can fall from 4 to 1 only.

SHORT = DynamicLossScale(4.0, min_scale=1.0)


def numbers_of(error):
    """(stuck steps, scale, all skipped steps) in the message."""
    found = re.search(
        r"last (\d+) steps.* minimum, ([\d.e+-]+), .*; (\d+) steps were skipped",
        str(error.value),
    )
    return int(found[1]), float(found[2]), int(found[3])


def test_a_collapse_is_raised_with_advice():
    model = model_of(SHORT)
    with pytest.raises(COLLAPSED) as caught:
        fit(model, [1.0, *[NAN] * 99], LossScaleCallback(patience=5))
    # A finite step, two overflows on the way to the minimum, and at batch 10 the
    # callback looks again: of 9 skips 7 began at the minimum.
    assert numbers_of(caught) == (7, 1.0, 9)
    message = str(caught.value)
    assert "not finite in the last of them: only/kernel" in message or (
        "not finite in the last of them: sequential/only/kernel" in message
    )
    clipping = ("clipping", "global_clipnorm")
    for advice in ("data", "learning rate", *clipping, "PrecisionPlanCallback"):
        assert advice in message
    assert isinstance(caught.value, RuntimeError)
    assert weight_of(model) == 0.75


def test_the_message_names_the_first_variable_that_overflowed():
    # Only the second kernel overflows: the gradients are 1 and, in float16, inf.
    inputs = [keras.Input((1,)), keras.Input((1,))]
    outputs = [
        keras.layers.Dense(
            1, use_bias=False, kernel_initializer="zeros", dtype="float16", name=name
        )(x)
        for name, x in zip(["small", "large"], inputs, strict=True)
    ]
    model = keras.Model(inputs, keras.layers.Add(dtype="float16")(outputs))
    model.compile(
        keras_mp.wrap(keras.optimizers.SGD(0.25), 2), mean_output, jit_compile=False
    )
    x = [np.ones((1, 1), "float32"), np.full((1, 1), 60000, "float32")]
    with pytest.raises(COLLAPSED, match=r"in the last of them: [\w/]*large/kernel"):
        model.fit(x, x[0], callbacks=[LossScaleCallback(patience=1)], verbose=0)


def test_a_constant_scale_collapses_too():
    model = model_of(128)
    with pytest.raises(COLLAPSED) as caught:
        fit(model, [NAN] * 10, LossScaleCallback(patience=5))
    assert numbers_of(caught) == (5, 128.0, 5)
    assert "with a constant loss scale, a smaller one" in str(caught.value)


@pytest.mark.slow
def test_patience_counts_across_epochs():
    model = model_of(128)
    recorded = []
    at_end = keras.callbacks.LambdaCallback(
        on_epoch_end=lambda epoch, logs: recorded.append(epoch)
    )
    with pytest.raises(COLLAPSED) as caught:
        fit(model, [NAN] * 4, at_end, LossScaleCallback(patience=10), epochs=9)
    assert numbers_of(caught) == (10, 128.0, 10)
    assert recorded == [0, 1]


@pytest.mark.slow
def test_patience_counts_across_fits():
    model = model_of(128)
    fit(model, [NAN] * 4, LossScaleCallback(patience=5))
    with pytest.raises(COLLAPSED) as caught:
        fit(model, [NAN] * 4, LossScaleCallback(patience=5))
    assert numbers_of(caught) == (8, 128.0, 8)


def test_an_epoch_shorter_than_patience_is_checked_at_its_end():
    model = model_of(128)
    with pytest.raises(COLLAPSED) as caught:
        fit(model, [1.0, NAN, NAN, NAN], LossScaleCallback(patience=3))
    assert numbers_of(caught) == (3, 128.0, 3)


def test_a_finite_step_now_and_then_is_no_collapse():
    model = model_of(128)
    batches = [NAN, NAN, NAN, 1.0] * 5
    history = fit(model, batches, LossScaleCallback(patience=4))
    assert history["skipped_steps"] == [15]
    assert weight_of(model) == 1.0 - 5 * 0.25


def test_a_falling_scale_is_no_collapse():
    # 2**15 to 2**-14: 29 overflows before the first that begins at the minimum.
    model = model_of("dynamic")
    history = fit(model, [NAN] * 29, LossScaleCallback(patience=1))
    assert history["loss_scale"] == [2.0**-14]
    with pytest.raises(COLLAPSED) as caught:
        fit(model, [NAN], LossScaleCallback(patience=1))
    assert numbers_of(caught)[0] == 1


def test_training_goes_on_after_a_collapse_when_the_data_is_mended():
    model = model_of(128)
    callback = LossScaleCallback(patience=2)
    with pytest.raises(COLLAPSED):
        fit(model, [NAN] * 2, callback)
    history = fit(model, [1.0], callback)
    assert history["consecutive_skips"] == [0]
    assert weight_of(model) == 0.75


@pytest.mark.slow
def test_warn_warns_once_in_each_fit():
    model = model_of(128)
    callback = LossScaleCallback(on_collapse="warn", patience=2)
    for skipped in (12, 24):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            history = fit(model, [NAN] * 6, callback, epochs=2)
        messages = [str(w.message) for w in caught if "loss scale" in str(w.message)]
        assert len(messages) == 1
        assert history["skipped_steps"][-1] == skipped
    # The second fit began with 12, and was looked at after 2 batches.
    assert messages[0].startswith("The last 14 steps all overflowed")


def test_continue_says_nothing():
    # Warnings are errors here.
    model = model_of(128)
    callback = LossScaleCallback(on_collapse="continue", patience=1)
    history = fit(model, [NAN] * 6, callback, epochs=2)
    assert history["skipped_steps"] == [6, 12]
    assert weight_of(model) == 1.0


@pytest.mark.slow
@pytest.mark.parametrize(
    "compile_arguments",
    [{"steps_per_execution": 4}, {"jit_compile": True}, {"run_eagerly": True}],
    ids=["steps_per_execution", "xla", "eager"],
)
def test_a_collapse_is_seen_in_every_way_to_train(compile_arguments):
    model = model_of(SHORT, **compile_arguments)
    with pytest.raises(COLLAPSED) as caught:
        fit(model, [NAN] * 64, LossScaleCallback(patience=8))
    stuck, scale, skipped = numbers_of(caught)
    assert (scale, skipped) == (1.0, stuck + 2)
    # After 16 batches; or, if 4 are done at a time, after 8 times that at the latest.
    assert stuck == 14 if "steps_per_execution" not in compile_arguments else stuck < 32


@pytest.mark.xslow_except("graph-*", "xla-4")
@pytest.mark.slow_except("graph-*")
@pytest.mark.parametrize("steps", [1, 4])
@COMPILED
def test_the_scale_is_logged_in_every_way_to_train(jit, steps):
    model = model_of("dynamic", jit_compile=jit, steps_per_execution=steps)
    callback = LossScaleCallback(DynamicLossScale(8.0, growth_interval=3))
    history = fit(model, [1.0] * 3 + [NAN] + [1.0] * 4, callback)
    assert history["loss_scale"] == [16.0]
    assert history["skipped_steps"] == [1]
    assert weight_of(model) == 1.0 - 7 * 0.25


# SwapEMAWeights. With a momentum of 1/2 the averages after each step are
# 0.75, 0.625, 0.4375 and 0.21875: the mean of the last average and the weight.


def averaging_model():
    return model_of(
        optimizer=keras_mp.wrap(
            keras.optimizers.SGD(0.25, use_ema=True, ema_momentum=0.5), 8
        )
    )


def test_averages_are_swapped_in_for_validation():
    model = averaging_model()
    history = model.fit(
        np.ones((2, 1), "float32"),
        np.ones((2, 1), "float32"),
        batch_size=1,
        epochs=2,
        verbose=0,
        validation_data=(ONE, ONE),
        callbacks=[keras_mp.SwapEMAWeights()],
    ).history
    # The loss is the mean weight before each step: the training is not disturbed.
    assert history["loss"] == [(1 + 0.75) / 2, (0.5 + 0.25) / 2]
    assert history["val_loss"] == [0.625, 0.21875]


def evaluated(model, swap):
    return model.evaluate(ONE, ONE, callbacks=[swap], verbose=0)


def predicted(model, swap):
    return model.predict(ONE, callbacks=[swap], verbose=0).item()


@pytest.mark.slow
@pytest.mark.parametrize("use", [evaluated, predicted])
def test_averages_are_swapped_in_for(use):
    model = averaging_model()
    # Not `fit`, which makes the averages the weights when it ends.
    model.train_on_batch(ONE, ONE)
    model.train_on_batch(ONE, ONE)
    (master,) = model.optimizer.master_weights
    swap = keras_mp.SwapEMAWeights()
    for _ in range(2):
        assert use(model, swap) == 0.625
        assert weight_of(model) == master.numpy().item() == 0.5
    model.train_on_batch(ONE, ONE)
    assert weight_of(model) == 0.25


@pytest.mark.slow
def test_averages_are_swapped_in_between_epochs():
    model = averaging_model()
    at_end = []
    record = keras.callbacks.LambdaCallback(
        on_epoch_end=lambda epoch, logs: at_end.append(weight_of(model))
    )
    swap = keras_mp.SwapEMAWeights(swap_on_epoch=True)
    fit(model, [1.0, 1.0], swap, record, epochs=2)
    assert at_end == [0.625, 0.21875]


def test_an_interrupted_evaluation_leaves_training_as_it_was():
    model = averaging_model()
    model.train_on_batch(ONE, ONE)
    model.train_on_batch(ONE, ONE)
    swap = keras_mp.SwapEMAWeights()

    def interrupt(batch, logs):
        raise KeyboardInterrupt

    stop = keras.callbacks.LambdaCallback()
    stop.on_test_batch_begin = interrupt
    with pytest.raises(KeyboardInterrupt):
        model.evaluate(ONE, ONE, callbacks=[swap, stop], verbose=0)
    assert weight_of(model) == 0.625
    swap.on_train_begin()
    assert weight_of(model) == 0.5


def test_averages_before_the_first_step():
    model = averaging_model()
    with pytest.raises(ValueError, match=r"built=False.*train first"):
        model.evaluate(ONE, ONE, callbacks=[keras_mp.SwapEMAWeights()], verbose=0)


@pytest.mark.slow
def test_averages_of_a_model_that_is_not_wrapped():
    model = model_of(optimizer=keras.optimizers.SGD(0.25, use_ema=True, ema_momentum=0))
    fit(model, [1.0])
    swap = keras_mp.SwapEMAWeights()
    assert model.evaluate(ONE, ONE, callbacks=[swap], verbose=0) == 0.75
