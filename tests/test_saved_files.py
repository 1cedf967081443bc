"""Files that version 0.1 saved before its modules moved into folders load after it.

`saved_files.py` says how they were made, and puts them together again.
"""

import keras
import numpy as np
import oracle
import pytest
import saved_files
from saved_files import FOLDER, MORE_STEPS, STEPS

import keras_mp
from keras_mp import keras_internals

EXPECTED = saved_files.read_json(FOLDER / "layers" / "expected.json")


def from_keras_file(folder):
    path = folder / "model.keras"
    saved_files.keras_from_text(FOLDER / "layers", path)
    return keras.saving.load_model(path)


def from_checkpoint(folder):
    saved_files.npz_from_text(FOLDER / "layers" / "checkpoint.json", folder, STEPS)
    model = saved_files.layers_model()
    assert keras_mp.Checkpoints(folder).restore(model) == STEPS
    return model


LOADERS = {"keras": from_keras_file, "checkpoint": from_checkpoint}


@pytest.fixture(params=LOADERS)
def load(request, tmp_path):
    return lambda: LOADERS[request.param](tmp_path)


def assert_stands_at(model, expected):
    """Asserts the counters, and the predictions as far as every CPU has them alike.

    Kernels of two CPUs sum in another order, so that a rounding may fall to the other
    side: a step of bfloat16 in the hidden layer and in the logits, which are below 4
    where such a step is 2^-6. A probability moves by at most half of what the logits
    move.
    """
    found, expected = saved_files.summary(model), dict(expected)
    answer, wanted = (
        saved_files.array_from_json(each.pop("predictions"))
        for each in (found, expected)
    )
    assert found == expected
    assert answer.dtype == wanted.dtype == np.float16
    np.testing.assert_allclose(answer, wanted, rtol=0, atol=2**-6)


def test_variables_are_those_that_were_saved(load):
    model = load()
    saved = saved_files.read_json(FOLDER / "layers" / "checkpoint.json")
    variables = [*model.variables, *model.optimizer.variables]
    found = {
        f"{i} {v.path} {v.dtype}": saved_files.array_to_json(oracle.value(v))
        for i, v in enumerate(variables)
    }
    assert found == saved


def test_predicts_as_before(load):
    assert_stands_at(load(), EXPECTED["saved"])


@pytest.mark.slow
def test_trains_on_as_before(load):
    model = load()
    saved_files.train(model, MORE_STEPS, first=1)
    assert_stands_at(model, EXPECTED["trained on"])


@pytest.mark.slow
def test_two_optimizers_still_share_their_scale(tmp_path):
    path = tmp_path / "players.keras"
    saved_files.keras_from_text(FOLDER / "players", path)
    model = keras.saving.load_model(path)
    for loaded in (model, saved_files.players_model()):
        if loaded is not model:
            saved_files.train_players(loaded, STEPS)
        first, second = loaded.optimizers
        assert first.loss_scale is second.loss_scale
        assert float(first.loss_scale) == 16.0
        saved_files.train_players(loaded, MORE_STEPS)
        assert float(second.loss_scale) == 32.0
        assert [int(each.iterations) for each in loaded.optimizers] == [8, 8]


def test_a_tensorflow_checkpoint_is_restored(tmp_path):
    keras.config.set_dtype_policy("float16")
    prefix = str(tmp_path / "checkpoint")
    saved_files.checkpoint_from_text(FOLDER / "tf_checkpoint.json", prefix)
    model = saved_files.dense_model()
    model.optimizer.build(model.trainable_variables)
    status = saved_files.checkpoint_of(model).read(prefix)
    status.assert_existing_objects_matched()
    saved_files.checkpoint_of(model).write(str(tmp_path / "again"))
    saved_files.checkpoint_to_text(str(tmp_path / "again"), tmp_path / "again.json")
    saved, again = (
        saved_files.read_json(path)
        for path in (FOLDER / "tf_checkpoint.json", tmp_path / "again.json")
    )
    for tensors in (saved, again):  # also names objects that hold no values
        del tensors[saved_files.OBJECT_GRAPH]
    assert again == saved


NAMES = (FOLDER / "registered.txt").read_text().split()


def test_every_name_of_a_file_is_still_registered():
    known = keras.saving.get_custom_objects()
    names = [name for name in NAMES if keras_internals.has(name.partition(">")[2])]
    assert [name for name in names if name not in known] == []
