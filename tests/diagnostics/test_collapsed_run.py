"""The error of a collapsed run names the layer where the overflow begins."""

import re

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_mp

COLLAPSED = keras_mp.LossScaleCollapseError
ONES = np.ones((8, 4), "float32")


def huge(y_true, y_pred):
    return keras.ops.sum(keras.ops.cast(y_pred, "float16") * 60_000.0, axis=-1) * 2


def mean_output(y_true, y_pred):
    return keras.ops.mean(keras.ops.cast(y_pred, "float32"), axis=-1)


def make_model(*layers, loss=mean_output, scale=1.0, **compile_arguments):
    keras.config.set_dtype_policy("float16")
    head = keras.layers.Dense(1, kernel_initializer="ones", name="head")
    model = keras.Sequential([keras.Input((4,)), *layers, head])
    wrapped = keras_mp.wrap(keras.optimizers.SGD(0.0), scale)
    defaults = {"loss": loss, "jit_compile": False}
    model.compile(wrapped, **defaults | compile_arguments)
    return model


def collapse(model, x=ONES, patience=2, callbacks=(), **options):
    """Returns the message of a fit on batches of one that collapses."""
    callback = keras_mp.LossScaleCallback(patience=patience)
    data = (x,) if isinstance(x, tf.data.Dataset) else (x, x[:, :1])
    batch = {} if isinstance(x, tf.data.Dataset) else {"batch_size": 1}
    options = {"shuffle": False, "verbose": 0} | batch | options
    with pytest.raises(COLLAPSED) as caught:
        model.fit(*data, callbacks=[callback, *callbacks], **options)
    message = str(caught.value)
    assert re.match(r"The last \d+ steps all overflowed", message)
    return message


def planted():
    return keras.layers.Rescaling(655_040.0, dtype="float16", name="planted")


CASES = {
    "forward": (lambda **o: make_model(planted(), **o), "output of 'planted'"),
    "loss": (lambda **o: make_model(loss=huge, **o), "loss is not finite"),
    "backward": (lambda **o: make_model(scale=2.0**40, **o), r"gradient of '.*head"),
}
WAYS = {
    "graph": {},
    "eager": {"run_eagerly": True},
    "xla": {"jit_compile": True},
    "executions": {"steps_per_execution": 2},
}


@pytest.mark.slow_except("forward-graph", "backward-graph")
@pytest.mark.parametrize(
    ("case", "way"),
    [*((case, "graph") for case in CASES), *(("forward", way) for way in [*WAYS][1:])],
)
def test_the_planted_layer_is_named(case, way):
    make, expected = CASES[case]
    message = collapse(make(**WAYS[way]))
    # Executions are checked once in `patience` of them, two here.
    assert re.search(f"On the batch that follows: The .*{expected}", message)


def test_batches_of_a_dataset():
    model = make_model(planted())
    dataset = tf.data.Dataset.from_tensor_slices((ONES, ONES[:, :1])).batch(1).repeat()
    message = collapse(model, dataset, steps_per_epoch=4)
    assert "The output of 'planted' is not finite" in message


def test_no_batch_is_left():
    message = collapse(make_model(planted()), ONES[:2])
    assert "was not found, since no batch was left" in message


def test_the_batch_that_follows_is_fine():
    x = ONES.copy()
    x[:2] = np.nan
    message = collapse(make_model(), x)
    assert "On the batch that follows nothing overflows" in message


def test_a_batch_with_nan_is_what_is_wrong():
    x = np.full_like(ONES, np.nan)
    message = collapse(make_model(), x)
    assert "could not be found: ValueError: All numbers of the batch must be" in message


@pytest.mark.slow
def test_replicas_are_not_looked_at(strategy):
    with strategy.scope():
        model = make_model(planted())
    count = strategy.num_replicas_in_sync
    message = collapse(model, batch_size=count)
    assert f"is not looked for on {count} replicas" in message


@pytest.mark.slow
def test_a_resumed_run_names_it_too(tmp_path):
    for _ in range(2):
        backup = keras.callbacks.BackupAndRestore(tmp_path / "backup", save_freq=2)
        # Another callback that makes the train function anew.
        others = [backup, keras_mp.NumericsCallback(every=1)]
        message = collapse(make_model(planted()), patience=5, callbacks=others)
        assert "The output of 'planted' is not finite" in message
    assert message.startswith("The last 9 steps")


def test_the_train_function_is_left_as_it_was():
    model = make_model(planted())
    collapse(model)
    first = model.train_function
    model.set_weights(model.get_weights())
    options = {"batch_size": 1, "verbose": 0}
    callback = keras_mp.LossScaleCallback(patience=100)
    model.fit(ONES, ONES[:, :1], callbacks=[callback], **options)
    assert model.train_function is first


def test_a_loop_that_calls_the_callback_by_itself():
    model = make_model(planted())
    callback = keras_mp.LossScaleCallback(patience=2)
    callback.set_model(model)
    callback.on_train_begin()
    with pytest.raises(COLLAPSED, match="since no batch was left"):
        for batch in range(2):
            callback.on_train_batch_begin(batch)
            model.train_on_batch(ONES, ONES[:, :1])
            callback.on_train_batch_end(batch)
