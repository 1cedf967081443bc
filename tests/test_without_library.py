"""An installation whose native library is missing, or is for other TensorFlows."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import tensorflow as tf

import keras_mp

# The files in place of the library: none, or those of a wheel for other minor versions.
INSTALLATIONS = {
    "no-library": [],
    "libraries-of-other-minors": ["_keras_mp_ops_tf2_16.so", "_keras_mp_ops_tf2_99.so"],
}
# One step of what a user runs, eagerly, in a graph and under XLA.
PROGRAM = """
import keras
import numpy as np
import keras_mp

print(keras_mp.__file__)
keras.config.set_dtype_policy("float16")
x, y = np.ones((4, 3), "float16"), np.ones((4, 2))
for way in ({"run_eagerly": True}, {"jit_compile": False}, {"jit_compile": True}):
    model = keras.Sequential([keras_mp.layers.Dense(2), keras_mp.layers.Softmax()])
    model.compile(keras_mp.wrap("adam"), "mse", **way)
    model.fit(x, y, verbose=0)
    assert np.isfinite(model.predict(x, verbose=0)).all()
    assert model.optimizer.master_weights[0].dtype == "float32"
    assert model.optimizer.iterations.numpy() == 1
keras_mp.ops.fp16_gemm(x, x.T)
print(keras_mp.ops.build_info()["route"])
"""


@pytest.mark.slow
@pytest.mark.xslow_except("no-library")
@pytest.mark.parametrize("name", INSTALLATIONS)
def test_plain_tensorflow_computes_and_one_warning_names_the_fix(name, tmp_path):
    package = tmp_path / "keras_mp"
    installed = Path(keras_mp.__file__).parent
    shutil.copytree(installed, package, ignore=shutil.ignore_patterns("*.so", "__py*"))
    for library in INSTALLATIONS[name]:
        (package / "ops" / "kernels" / library).touch()
    hidden = ("KERAS_MP_OPS", "PYTHONWARNINGS")
    environment = {k: v for k, v in os.environ.items() if k not in hidden}
    # Every warning of ours, as often as it is given; others are not counted.
    told = ("-W", "ignore", "-W", "always:keras_mp")
    result = subprocess.run(
        [sys.executable, *told, "-c", PROGRAM],
        cwd=tmp_path,
        env=environment | {"PYTHONPATH": str(tmp_path), "TF_CPP_MIN_LOG_LEVEL": "3"},
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout.splitlines() == [str(package / "__init__.py"), "reference"]
    (warning,) = re.findall("UserWarning: (.*)", result.stderr)
    for part in (
        "ops run in plain TensorFlow",
        f"for TensorFlow {tf.__version__} is missing",
        f"in its folder {INSTALLATIONS[name]}",
        "`pip install --force-reinstall --no-deps .`",
        "TensorFlow 2.20 or newer",
        "KERAS_MP_OPS=reference turns this warning off",
    ):
        assert part in warning
