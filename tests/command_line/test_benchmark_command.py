"""`keras-mp benchmark`: what it measures, prints, writes and advises."""

import json
import re

import keras
import pytest

from keras_mp.command_line import benchmark
from keras_mp.command_line.training_steps import (
    BLOCKS,
    RECIPES,
    Recipe,
    Size,
    Timing,
    time_recipes,
)
from keras_mp_cli import main

NAMES = [recipe.name for recipe in RECIPES]
TINY = Size(batch=2, width=8, length=4)


@pytest.fixture
def tiny(monkeypatch):
    """The smallest models of one block, and two steps."""
    monkeypatch.setattr(benchmark, "BLOCKS", {"dense": BLOCKS["dense"]})
    monkeypatch.setattr(benchmark, "QUICK_SIZES", dict.fromkeys(BLOCKS, TINY))
    monkeypatch.setattr(benchmark, "QUICK_STEPS", 2)


def timing(policy, step_ms, xla_step_ms=100.0):
    return Timing(Recipe(policy, policy), step_ms, xla_step_ms, 4, 8, 10)


def measured(**ratios):
    """Two blocks in which each policy has the same ratio to float32."""
    return {
        "a": [timing("float32", 10.0), *(timing(p, 10 * r) for p, r in ratios.items())],
        "b": [timing("float32", 2.0), *(timing(p, 2 * r) for p, r in ratios.items())],
    }


@pytest.mark.slow
def test_tables_and_json(tiny, tmp_path, capsys):
    keras.config.set_dtype_policy("mixed_bfloat16")
    path = tmp_path / "benchmark.json"
    code = main(["benchmark", "--quick", "--json", str(path)])
    assert keras.config.dtype_policy().name == "mixed_bfloat16"
    printed = capsys.readouterr().out
    machine, _, device, titles, *rows = printed.splitlines()
    assert machine.endswith(f"Keras {keras.__version__}")
    assert re.fullmatch(r"Training steps on the (CPU|GPU) \(.+\):", device)
    assert titles.split()[:2] == ["block", "recipe"]
    shown = [row[:12].strip() for row in rows[:-5]]
    assert shown[: 5 + 4] == 5 * ["dense"] + 4 * ["all, mean"]
    assert f"wrote {path}" in printed
    written = json.loads(path.read_text())
    assert code == (min(written["mean_ratios"].values()) >= 0.95)
    advice = "\n".join(written["advice"])
    assert printed.endswith(f"\n\n{advice}\nwrote {path}\n")
    assert list(written["blocks"]) == ["dense"]
    timings = written["blocks"]["dense"]
    assert [each["recipe"]["name"] for each in timings] == NAMES
    for found in timings:
        assert found["step_ms"] > 0 and found["xla_step_ms"] > 0
        assert found["steps"] == 2
    # Four layers of 8 x 8 and one of 8 x 10 in FP32, with their biases.
    weights, last = 4 * (8 * 8 + 8), 8 * 10 + 10
    moments = 2 * 4 * (weights + last)
    for found in timings:
        is_stored_in_16_bits = found["recipe"]["policy"] in ("float16", "bfloat16")
        size, masters = (2, 4 * weights) if is_stored_in_16_bits else (4, 0)
        assert found["weights_bytes"] == size * weights + 4 * last
        # Besides them at most 50 counters and flags, of at most 4 bytes each.
        assert 0 < found["optimizer_bytes"] - moments - masters < 50 * 4


@pytest.mark.xslow
@pytest.mark.parametrize("block", BLOCKS)
def test_a_slow_machine_takes_three_steps(block):
    timings = time_recipes(BLOCKS[block], TINY, steps=100, seconds=0)
    assert [found.steps for found in timings] == 5 * [3]
    assert all(found.fastest_ms > 0 for found in timings)


def test_mean_of_ratios_is_geometric():
    two = {
        "a": [timing("float32", 10.0), timing("float16", 5.0)],
        "b": [timing("float32", 10.0), timing("float16", 20.0)],
    }
    assert benchmark.mean_ratios(two) == {"float16": pytest.approx(1.0)}


@pytest.mark.parametrize(
    ("ratios", "sentence"),
    [
        (
            {"float16": 0.9, "bfloat16": 0.5},
            "Worth it for speed on this machine: the fastest recipe, bfloat16, takes "
            "0.50 of the time of float32.",
        ),
        ({"float16": 0.97}, "On this machine 16 bits take about as long as float32: "),
        ({"float16": 1.04}, "On this machine 16 bits take about as long as float32: "),
        (
            {"float16": 3.0, "bfloat16": 1.5},
            "Not worth it for speed on this machine: the fastest recipe, bfloat16, "
            "takes 1.50 of",
        ),
    ],
    ids=["faster", "about-as-fast", "about-as-slow", "slower"],
)
def test_advice(ratios, sentence):
    speed, memory = benchmark.advice(measured(**ratios))
    assert speed.startswith(sentence)
    assert benchmark.is_worth_it(measured(**ratios)) == speed.startswith("Worth")
    assert memory == (
        "In float16, with masters, weights and optimizer take 1.00 of their memory in "
        "float32; activations and gradients are not counted here."
    )


def test_a_ratio_compares_the_faster_ways():
    block = [timing("float32", 10.0, 8.0), timing("float16", 6.0, 9.0)]
    assert benchmark.mean_ratios({"a": block}) == {"float16": 6.0 / 8.0}


@pytest.mark.parametrize(
    ("by_default", "ways", "sentence"),
    [
        (
            False,
            [(5.0, 5.0), (5.0, 4.0), (5.0, 4.9)],
            "`fit` compiles without XLA here, but float16 is faster with it in: 1. For "
            "such a model, call model.compile(..., jit_compile=True).",
        ),
        (
            True,
            [(4.0, 5.0), (4.0, 5.0), (5.0, 4.0)],
            "`fit` compiles with XLA here, but float16 is faster without it in: 0, 1. "
            "For such a model, call model.compile(..., jit_compile=False).",
        ),
        (
            False,
            [(4.0, 5.0)],
            "`fit` compiles without XLA here; in float16 no block is faster with it.",
        ),
        (
            True,
            [(4.9, 5.0)],
            "`fit` compiles with XLA here; in float16 no block is faster without it.",
        ),
    ],
    ids=["XLA-faster", "XLA-slower", "default-faster", "as-fast"],
)
def test_which_way_to_compile(by_default, ways, sentence):
    blocks = {
        str(i): [timing("float32", 10.0, 1.0), timing("float16", *way)]
        for i, way in enumerate(ways)
    }
    assert benchmark.xla_advice(blocks, by_default) == sentence


@pytest.mark.parametrize(("ratio", "code"), [(0.5, 0), (1.0, 1), (2.0, 1)])
def test_the_exit_code_says_whether_it_is_worth_it(
    ratio, code, tiny, monkeypatch, capsys
):
    timings = measured(float16=ratio)["a"]
    monkeypatch.setattr(benchmark, "time_recipes", lambda *arguments: timings)
    assert main(["benchmark", "--quick"]) == code
    assert "half of the memory" not in capsys.readouterr().out


def test_an_old_file_is_kept(tmp_path, capsys):
    path = tmp_path / "benchmark.json"
    path.write_text("old")
    assert main(["benchmark", "--quick", "--json", str(path)]) == 2
    assert f"Received: {path}, which exists." in capsys.readouterr().err
    assert path.read_text() == "old"
