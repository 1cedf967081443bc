"""Curves of runs: small multiples whose colours mean the same in each."""

import math

import matplotlib.pyplot as plt
import pytest
from experiments import curves


def result(*losses, **more):
    log = [{"loss": loss, **more} for loss in losses]
    return {"flags": {"eval_every": 5}, "log": log}


def test_curves_without_held_out_numbers(tmp_path):
    panels = curves.panels({"fp32": result(2.0, math.nan)}, "loss", log_scale=True)
    curves.draw(tmp_path / "curves.png", panels)
    assert (tmp_path / "curves.png").read_bytes().startswith(b"\x89PNG")


def test_curves_of_the_same_results_are_the_same_file(tmp_path):
    results = {"fp32": result(2.0, 1.0, val_loss=3.0)}
    first, second = tmp_path / "first.svg", tmp_path / "second.svg"
    for path in (first, second):
        curves.draw(path, curves.panels(results, "loss"))
    assert first.read_bytes() == second.read_bytes()
    # The background is that of the page.
    assert "fill: #ffffff" not in first.read_text()


def test_seeds_are_the_runs_of_one_setting():
    names = ["b, fp32", "b, fp32 seed 1", "b, mixed, no scaling seed 12", "a, fp32"]
    found = curves.by_setting({name: name for name in names}, "b")
    assert found == {
        "fp32": names[:2],
        "mixed, no scaling": [names[2]],
        "a, fp32": [names[3]],
    }


@pytest.mark.parametrize(
    ("groups", "expected"),
    [
        pytest.param(
            ["a", "b", "none"],
            {"a": ["fp32", "mixed"], "b": ["fp32", "mixed"]},
            id="all have one",
        ),
        pytest.param(
            ["rest", "b"],
            {"rest": ["a, fp32", "a, mixed"], "b": ["fp32", "mixed"]},
            id="some have none",
        ),
    ],
)
def test_groups_of_settings_are_drawn_apart(groups, expected):
    names = ("b, fp32", "a, fp32", "mixed, b", "a, mixed")
    found = curves.panels({name: {} for name in names}, "loss", groups=groups)
    assert {panel.title: [*panel.runs] for panel in found} == expected


def test_the_mean_of_the_seeds_and_their_range(tmp_path, monkeypatch):
    drawn = []
    monkeypatch.setattr(plt, "close", drawn.append)
    runs = {"fp32": result(2.0, 1.0), "fp32 seed 1": result(4.0, 5.0)}
    curves.draw(tmp_path / "curves.svg", curves.panels(runs, "loss"))
    (axes,) = drawn[0].axes
    monkeypatch.undo()
    plt.close(drawn[0])
    assert axes.lines[0].get_xydata().tolist() == [[5, 3], [10, 3]]
    box = axes.collections[0].get_paths()[0].get_extents()
    assert box.extents.tolist() == [5, 1, 10, 5]


def test_no_color_is_that_of_two_settings():
    names = [*(f"setting {i}" for i in range(len(curves.PALETTE))), "fp32"]
    found = curves.colors([*names, *names])
    assert found["fp32"] == curves.INK
    assert len({*found.values()}) == len(names)
    with pytest.raises(ValueError, match="has colors for 9 settings besides FP32"):
        curves.colors([*names, "one more"])
