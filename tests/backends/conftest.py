"""Sets up Keras on JAX or PyTorch, on CPUs; `make test-backends` runs this folder.

The conftest.py of the other tests, which are for TensorFlow, is not read here.
"""

import os
import sys

# Read by JAX and PyTorch when they are imported.
os.environ["CUDA_VISIBLE_DEVICES"] = ""
os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=4"

import keras
import pytest

# As on a machine that does not have it: what needs it says so.
sys.modules["tensorflow"] = None

pytest_plugins = ["skip_policy"]

ONLY_FOR = {"jax": "test_jax*", "torch": "test_torch*"}
if keras.backend.backend() not in ONLY_FOR:
    raise pytest.UsageError(
        f"These tests run on the backends {', '.join(ONLY_FOR)}. Received: "
        f"{keras.backend.backend()!r}. Run `make test-backends`."
    )
# Scripts.
collect_ignore = ["bytes_of_shares.py", "jax_process.py", "jax_sharding_process.py"]
collect_ignore_glob = [
    files for backend, files in ONLY_FOR.items() if backend != keras.backend.backend()
]


@pytest.fixture(autouse=True)
def fresh_keras():
    """No test sees the names, dtype policy or random state another one left."""
    keras.utils.clear_session(free_memory=False)
    keras.config.set_dtype_policy("float32")
    keras.utils.set_random_seed(0)
