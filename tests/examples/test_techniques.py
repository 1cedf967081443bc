"""The table of what is left out: of pairs, and of single runs beside the seeds."""

from pathlib import Path

import pytest
from experiments import techniques
from experiments.compare import Comparison
from experiments.paired import Margin


def run(error, precision="fp32", seed=0):
    flags = {"precision": precision, "loss_scale": "dynamic", "seed": seed}
    return {"flags": flags, "measures": {"error": error}}


FP32 = {"fp32": run(1), "fp32 seed 1": run(2, seed=1), "fp32 seed 2": run(3, seed=2)}


@pytest.mark.parametrize(
    ("results", "cell"),
    [
        # Student's t of one degree, 12.7062, times 1 / 2, the error of the mean.
        pytest.param(
            [run(11, "plain-fp16"), run(13, "plain-fp16", 1)],
            "**+10.5 points** (+4.1 to +16.9, 2 pairs)",
            id="clear",
        ),
        # 3 pairs reach 4.30265 * 0.70711 / 1.73205 = 1.757, 4 pairs 1.125, 5 0.878.
        pytest.param(
            [run(2, "plain-fp16"), run(4, "plain-fp16", 1)],
            "+1.5 points (-4.9 to +7.9, 2 pairs; clear with 4)",
            id="not clear",
        ),
        # Beside 1, 2 and 3: 4.30265 * sqrt(4 / 3) = 4.968.
        pytest.param(
            [run(8, "plain-fp16")], "**+6.0 points** (+1.0 to +11.0, 1 run)", id="one"
        ),
        pytest.param(
            [run(6, "plain-fp16")], "+4.0 points (-1.0 to +9.0, 1 run)", id="usual"
        ),
        pytest.param([run(float("nan"), "plain-fp16")], "**NaN**", id="diverged"),
        pytest.param([], "-", id="not measured"),
    ],
)
def test_a_cell(results, cell, monkeypatch):
    named = FP32 | {f"plain fp16 {i}": result for i, result in enumerate(results)}
    margins = {"error": Margin(1, "points")}
    comparison = Comparison(Path(), {}, demo=[], measures=["error"], margins=margins)
    monkeypatch.setattr(techniques, "TASKS", {"lines": techniques.Task("lines/demo")})
    places = {"lines/demo": (comparison, named)}
    _, _, row, _, total = techniques.techniques(places.get).splitlines()
    assert row == f"| lines | error | - | - | {cell} |"
    assert total == f"Clear of chance: {int('**' in cell)} of {len(results[:1])}."
