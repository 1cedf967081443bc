"""Which dimension of a variable is sharded, and where state cannot be.

tests/backends/test_jax_sharded_state.py trains with sharded state on JAX, and
test_sharded_replicas.py on TensorFlow.
"""

import keras
import pytest

import keras_mp
from keras_mp.optimizer.backend import SingleProgramBackend
from keras_mp.optimizer.sharding import sharded_layout


@pytest.mark.parametrize(
    ("shape", "axes", "expected"),
    [
        ((), (), ()),
        ((8,), (None,), ("batch",)),
        ((5,), (None,), (None,)),
        ((0,), (None,), (None,)),
        ((1, 2), (None, None), (None, "batch")),
        ((5, 8, 8), (None, None, None), (None, "batch", None)),
        ((8, 8), ("model", None), ("model", "batch")),
        ((8, 8), ("model",), ("model", "batch")),
        ((8, 8), ("batch", None), ("batch", None)),
        ((8, 8), (None, "batch"), (None, "batch")),
        ((8,), ("model",), ("model",)),
    ],
)
def test_sharded_layout(shape, axes, expected):
    devices = [f"cpu:{i}" for i in range(8)]
    mesh = keras.distribution.DeviceMesh((2, 4), ["batch", "model"], devices)
    layout = keras.distribution.TensorLayout(axes, mesh)
    found = sharded_layout(layout, shape, "batch")
    assert (found.axes, found.device_mesh) == (expected, mesh)
    assert layout.axes == axes


def test_a_backend_without_devices_that_share_says_so(monkeypatch):
    monkeypatch.setattr(keras.backend, "backend", lambda: "torch")
    with pytest.raises(
        RuntimeError, match=r"backend='torch'\. Leave it .* compile=False"
    ):
        SingleProgramBackend().check_shards_state()


def test_a_config_has_the_option_if_it_is_used():
    config = keras_mp.wrap("adam").get_config()
    assert "shard_state" not in config
    for value in (True, False):
        optimizer = keras_mp.FP32MasterOptimizer.from_config(
            config | {"shard_state": value}
        )
        assert optimizer.shard_state is value


def test_shard_state_is_a_bool():
    with pytest.raises(TypeError, match="shard_state='batch'"):
        keras_mp.wrap("adam", shard_state="batch")
