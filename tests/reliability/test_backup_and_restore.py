"""What `keras.callbacks.BackupAndRestore` leaves open, and `Checkpoints` does not.

Each test puts on the disk what a kill at a certain moment leaves there.
"""

import keras
import numpy as np
import oracle
import pytest

import keras_mp

pytestmark = pytest.mark.slow

EPOCHS, BATCHES = 3, 2


def make_model(dropout=0.0):
    keras.utils.set_random_seed(0)
    layers = [keras.Input((2,)), keras.layers.Dense(4)]
    layers += [keras.layers.Dropout(dropout), keras.layers.Dense(1)]
    model = keras.Sequential(layers)
    optimizer = keras_mp.wrap(keras.optimizers.SGD(0.1, momentum=0.5), 8)
    model.compile(optimizer, "mse", run_eagerly=True)
    return model


class Interrupt(keras.callbacks.Callback):
    """Ends a run after so many batches."""

    def __init__(self, batches):
        super().__init__()
        self.left = batches

    def on_train_batch_end(self, batch, logs=None):
        self.left -= 1
        if self.left == 0:
            raise KeyboardInterrupt


def fit(model, *callbacks, epochs=EPOCHS, **options):
    x = np.linspace(-1, 1, 2 * BATCHES, dtype="float32").reshape(BATCHES, 2)
    options |= {"batch_size": 1, "epochs": epochs, "shuffle": False, "verbose": 0}
    model.fit(x, x[:, :1], callbacks=list(callbacks), **options)
    return model


def interrupted_fit(model, batches, *callbacks):
    with pytest.raises(KeyboardInterrupt):
        fit(model, *callbacks, Interrupt(batches))


def backup(folder, **options):
    return keras.callbacks.BackupAndRestore(folder, **options)


def assert_as_if_never_stopped(model, dropout=0.0):
    expected = fit(make_model(dropout))
    variables = [*expected.variables, *expected.optimizer.variables]
    found = [*model.variables, *model.optimizer.variables]
    for one, other in zip(found, variables, strict=True):
        oracle.assert_same_bits(oracle.value(one), oracle.value(other), one.path)


def test_backup_killed_between_its_two_files_trains_an_epoch_twice(tmp_path):
    folder = tmp_path / "backup"
    interrupted_fit(make_model(), BATCHES + 1, backup(folder))
    epoch_1 = (folder / "training_metadata.json").read_text()
    interrupted_fit(make_model(), BATCHES + 1, backup(folder))
    # Of the second epoch, the weights were written and the metadata were not.
    (folder / "training_metadata.json").write_text(epoch_1)
    model = fit(make_model(), backup(folder))
    assert int(model.optimizer.iterations) == (EPOCHS + 1) * BATCHES


def test_backup_killed_inside_its_first_file_does_not_start_again(tmp_path):
    folder = tmp_path / "backup"
    interrupted_fit(make_model(), BATCHES + 1, backup(folder))
    weights = folder / "latest.weights.h5"
    weights.write_bytes(weights.read_bytes()[:-1000])
    with pytest.raises(OSError, match="truncated file"):
        fit(make_model(), backup(folder))


def test_backup_in_steps_trains_batches_twice(tmp_path):
    interrupted_fit(make_model(), BATCHES + 1, backup(tmp_path / "a", save_freq=1))
    model = fit(make_model(), backup(tmp_path / "a", save_freq=1))
    # The backup was made after the first batch of an epoch, which began again.
    assert int(model.optimizer.iterations) == EPOCHS * BATCHES + 1


def test_backup_loses_the_seeds_of_dropout(tmp_path):
    interrupted_fit(make_model(0.5), BATCHES + 1, backup(tmp_path / "backup"))
    model = fit(make_model(0.5), backup(tmp_path / "backup"))
    with pytest.raises(AssertionError, match="is not to the bit"):
        assert_as_if_never_stopped(model, 0.5)


def test_checkpoints_keep_the_seeds_of_dropout(tmp_path):
    checkpoints, model = keras_mp.Checkpoints(tmp_path), make_model(0.5)
    interrupted_fit(model, BATCHES + 1, checkpoints)
    model = make_model(0.5)
    fit(model, checkpoints, initial_epoch=checkpoints.restore(model))
    assert_as_if_never_stopped(model, 0.5)
