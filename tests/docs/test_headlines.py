"""What README, Home and other pages say in numbers, and under which conditions."""

from pathlib import Path

import keras
import pytest
import tensorflow as tf

ROOT = Path(__file__).resolve().parents[2]
CPU, GPU = (tf.config.PhysicalDevice(f"{kind}:0", kind) for kind in ("CPU", "GPU"))


@pytest.mark.parametrize(
    ("devices", "expected"),
    [([CPU], False), ([CPU, GPU], True)],
    ids=["cpu", "gpu"],
)
def test_fit_compiles_with_xla_only_where_there_is_a_gpu(
    devices, expected, monkeypatch
):
    """So on a CPU the times without XLA are those of `fit`, as these pages say."""
    for page in ("README.md", "docs/faq.md", "docs/performance.md"):
        text = " ".join((ROOT / page).read_text(encoding="utf-8").split())
        assert "without XLA, as `fit` runs on a CPU" in text, page
    monkeypatch.setattr(tf.config, "list_physical_devices", lambda: devices)
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    assert model.jit_compile is expected
