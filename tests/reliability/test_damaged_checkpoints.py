"""Checkpoints that were cut short or have flipped bits: noticed, named, passed over."""

import re

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_mp

pytestmark = pytest.mark.slow


class State:
    """A variable that holds the number of the checkpoint it belongs to."""

    built = True

    def __init__(self):
        self.variable = keras.Variable(np.zeros(16), dtype="float16", name="weight")
        self.variables = [self.variable]

    @property
    def number(self):
        (number,) = set(keras.ops.convert_to_numpy(self.variable))
        return number


@pytest.fixture
def saved(tmp_path):
    """Three checkpoints, and the state that they were saved from."""
    state, checkpoints = State(), keras_mp.Checkpoints(tmp_path, keep=3)
    for number in (1, 2, 3):
        state.variable.assign(np.full(16, number))
        checkpoints.save(number, state)
    state.variable.assign(np.zeros(16))
    return checkpoints, state, sorted(tmp_path.iterdir())


def cut(data, position):
    return data[:position]


def flip(data, position):
    byte = data[position] ^ 1 << position % 8
    return data[:position] + bytes([byte]) + data[position + 1 :]


def grow(data, position):
    return data + data[: position + 1]


DAMAGE = {"cut": cut, "flip": flip, "grow": grow}


@pytest.mark.parametrize("damage", DAMAGE)
def test_damage_at_every_byte_is_noticed(damage, saved):
    checkpoints, state, (_, earlier, last) = saved
    data = last.read_bytes()
    for position in range(len(data)):
        last.write_bytes(DAMAGE[damage](data, position))
        with pytest.warns(UserWarning) as caught:
            assert checkpoints.restore(state) == 2
        assert state.number == 2
        (warning,) = caught
        assert f"Received: {last}, cut short or changed" in str(warning.message)
        assert f"Restored instead: {earlier}." in str(warning.message)
        assert warning.filename == __file__


def test_training_goes_on_from_the_earlier_one(saved):
    checkpoints, state, (first, earlier, last) = saved
    last.write_bytes(b"")
    earlier.write_bytes(b"")
    with pytest.warns(UserWarning, match=re.escape(f"{last}, {earlier}, cut short")):
        assert checkpoints.restore(state) == 1
    checkpoints.save(2, state)
    # Those that were damaged have made room for what replaces them.
    found = sorted(first.parent.iterdir())
    assert found[0] == first and len(found) == 2 and earlier not in found
    assert checkpoints.restore(state) == 2


def test_no_checkpoint_is_whole(saved):
    checkpoints, state, paths = saved
    for path in paths:
        path.write_bytes(path.read_bytes()[:-1])
    named = ", ".join(str(path) for path in reversed(paths))
    with pytest.raises(OSError, match=re.escape(f"{named}, cut short")):
        checkpoints.restore(state)
    assert state.number == 0


# Where a loop of its own uses the checkpoints of TensorFlow.


@pytest.mark.parametrize("damage", [cut, flip])
@pytest.mark.parametrize("part", ["index", "data-00000-of-00001"])
def test_tensorflow_notices_damage_and_keeps_the_earlier_one(part, damage, tmp_path):
    variable = tf.Variable(tf.zeros(16, "float16"))
    state = tf.train.Checkpoint(variable=variable)
    manager = tf.train.CheckpointManager(state, tmp_path, max_to_keep=2)
    for number in (1, 2):
        variable.assign(tf.fill(16, tf.constant(number, "float16")))
        manager.save()
    path = tmp_path / f"ckpt-2.{part}"
    data = path.read_bytes()
    for position in range(0, len(data), max(1, len(data) // 100)):
        path.write_bytes(damage(data, position))
        variable.assign(tf.zeros(16, "float16"))
        try:
            state.read(manager.checkpoints[-1]).assert_consumed()
        except (tf.errors.OpError, IndexError):
            state.read(manager.checkpoints[-2]).assert_consumed()
            assert set(variable.numpy()) == {1}
        else:
            # A bit that means nothing.
            assert set(variable.numpy()) == {2}
