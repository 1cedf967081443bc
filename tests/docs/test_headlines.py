"""What README, Home and other pages say in numbers, and under which conditions."""

import json
from pathlib import Path

import headlines
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


def test_numbers_are_those_of_the_results():
    found = headlines.numbers()
    assert json.loads(headlines.HEADLINES.read_text(encoding="utf-8")) == found
    for path in headlines.PAGES:
        text = path.read_text(encoding="utf-8")
        assert headlines.with_numbers(text, found) == text, "python docs/headlines.py"


def test_a_number_is_written_where_its_name_stands():
    text = "a step\n<!-- =step -->0.9\nto 1<!-- = --> of <!-- =ms --><!-- = --> ms"
    expected = (
        "a step\n<!-- =step -->0.5 to 0.7<!-- = --> of <!-- =ms -->3<!-- = --> ms"
    )
    assert headlines.with_numbers(text, {"step": "0.5 to 0.7", "ms": "3"}) == expected


def test_a_number_that_no_result_has_is_refused():
    with pytest.raises(KeyError, match="fps"):
        headlines.with_numbers("<!-- =fps -->9<!-- = -->", {"step": "1"})
