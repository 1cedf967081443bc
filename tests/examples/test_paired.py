"""Differences of pairs of runs: what makes a pair, the interval, the verdict."""

import math

import pytest
from experiments.paired import (
    Difference,
    Margin,
    beside_seeds,
    difference_of_one,
    label,
    mean_difference,
    pairs,
    precision,
)

POINTS = Margin(1, "points")
PERCENT = Margin(2, "%", relative=True)
# Of Student's t, two-sided, 95%, for 1, 2 and 4 degrees of freedom: printed tables have
# 12.706, 4.303 and 2.776.
T_1, T_2, T_4 = 12.7062, 4.30265, 2.77645


def run(error=0.0, **flags):
    flags = {"precision": "fp32", "loss_scale": "dynamic", "seed": 0} | flags
    return {"flags": flags, "measures": {"error": error}}


def paired(*differences):
    return [(run(10.0), run(10.0 + difference)) for difference in differences]


def test_pairs_have_all_flags_in_common_but_the_precision():
    results = {
        "fp32": run(1, batch=8),
        "fp32 seed 1": run(2, batch=8, seed=1),
        "fp32 seed 2": run(3, batch=8, seed=2),  # without a partner
        "fp32, batch 4": run(4, batch=4),
        "mixed seed 1": run(5, batch=8, seed=1, precision="mixed"),
        "mixed": run(6, batch=8, precision="mixed"),
        "mixed, scale 8": run(7, batch=8, precision="mixed", loss_scale=8.0),
        "mixed, batch 4": run(8, batch=4, precision="mixed"),
        "mixed, batch 2": run(9, batch=2, precision="mixed"),
    }
    found = pairs(results, "fp32", "mixed")
    numbers = {
        name: [tuple(r["measures"]["error"] for r in pair) for pair in each]
        for name, each in found.items()
    }
    assert numbers == {"": [(1, 6), (2, 5)], "batch 4": [(4, 8)]}
    assert pairs(results, "mixed, scale 8", "plain fp16") == {}


@pytest.mark.parametrize(
    ("flags", "name"),
    [
        ({"precision": "fp32"}, "fp32"),
        ({"precision": "fp32", "round_weights": True}, "rounded weights"),
        ({"precision": "mixed"}, "mixed"),
        ({"precision": "mixed", "loss_scale": 128.0}, "mixed, scale 128"),
        (
            {"precision": "mixed", "loss_scale": "statistical"},
            "mixed, statistical scale",
        ),
        ({"precision": "mixed-no-scaling"}, "mixed, no scaling"),
        ({"precision": "mixed-remainders-int8"}, "mixed, remainders int8"),
        ({"precision": "mixed-stochastic"}, "mixed, stochastic"),
        ({"precision": "mixed-no-masters"}, "mixed, no masters"),
        ({"precision": "plain-fp16"}, "plain fp16"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_the_name_of_a_precision(flags, name):
    assert precision(run(**flags)) == name


@pytest.mark.parametrize(
    ("setting", "expected"),
    [
        ("fp32 seed 1", ""),
        ("vgg-d, fp32 seed 12", "vgg-d"),
        ("fp32, batch 4", "batch 4"),
    ],
)
def test_what_else_distinguishes_a_setting(setting, expected):
    assert label(setting) == expected


@pytest.mark.parametrize(
    ("values", "mean", "half"),
    [
        pytest.param([1, 3], 2, T_1 * math.sqrt(2) / math.sqrt(2), id="2 pairs"),
        pytest.param([1, 2, 3], 2, T_2 / math.sqrt(3), id="3 pairs"),
        # Squares about the mean: 4 + 1 + 0 + 1 + 4, over 4.
        pytest.param(
            [0, 1, 2, 3, 4], 2, T_4 * math.sqrt(2.5) / math.sqrt(5), id="5 pairs"
        ),
        pytest.param([0.5, 0.5], 0.5, 0, id="no scatter"),
    ],
)
def test_the_interval_is_that_of_student(values, mean, half):
    found = mean_difference(paired(*values), "error", POINTS)
    assert found.count == len(values)
    low, high = found.interval
    assert (low, high) == pytest.approx((mean - half, mean + half), abs=1e-5)


def test_a_relative_difference_is_that_of_logarithms():
    found = mean_difference([(run(100.0), run(102.0))] * 2, "error", PERCENT)
    assert found.mean == pytest.approx(math.log(1.02))
    assert found.mean <= found.margin.bound + 1e-12
    assert found.margin.shown(found.mean) == "+2.0"
    assert found.margin.shown(-math.log(1.02)) == "-2.0"


@pytest.mark.parametrize(
    ("mean", "half", "verdict"),
    [
        pytest.param(0.1, 0.9, "equal within the margin", id="inside"),
        pytest.param(0.5, 0.2, "equal within the margin", id="inside without 0"),
        pytest.param(0.9, 0.2, "different", id="without 0, over the margin"),
        pytest.param(-3.0, 1.0, "different", id="below"),
        pytest.param(0.1, 1.0, "inconclusive", id="too wide"),
        pytest.param(5.0, math.inf, "inconclusive", id="one pair"),
        pytest.param(math.nan, math.nan, "different", id="diverged"),
    ],
)
def test_verdicts(mean, half, verdict):
    assert Difference(mean, 1.0, half, 3, POINTS).verdict == verdict


@pytest.mark.parametrize(
    ("deviation", "needed"),
    [
        # 4 pairs: 3.18245 * s / 2; 3 pairs: 4.30265 * s / 1.73205.
        pytest.param(1 / 1.6, 4, id="4"),
        pytest.param(1 / 2.5, 3, id="3"),
        pytest.param(0.0, 2, id="no scatter"),
        pytest.param(1000.0, None, id="too many"),
    ],
)
def test_pairs_within_a_margin_of_one(deviation, needed):
    assert Difference(0.3, deviation, 9.0, 3, POINTS).pairs_within(1.0) == needed


@pytest.mark.parametrize(
    ("mean", "needed"),
    # 3 pairs reach 4.30265 / 1.73205 deviations, 4 pairs 3.18245 / 2.
    [(2.5, 3), (-1.6, 4), (1e-9, None)],
)
def test_pairs_that_would_exclude_zero(mean, needed):
    found = Difference(mean, 1.0, 9.0, 2, POINTS)
    assert found.pairs_within(abs(mean)) == needed


@pytest.mark.parametrize(
    ("mixed", "expected"),
    [
        pytest.param(
            6.0, "6, within the spread of 3 seeds of FP32 (5 to 7).", id="within"
        ),
        pytest.param(
            4.5, "4.5, below the spread of 3 seeds of FP32 (5 to 7).", id="below"
        ),
        pytest.param(
            7.5, "7.5, above the spread of 3 seeds of FP32 (5 to 7).", id="above"
        ),
    ],
)
def test_mixed_precision_beside_the_seeds_of_fp32(mixed, expected):
    """The run of seed 0 counts as it was just made, and not as it was recorded."""
    recorded = {
        "fp32": run(1.0, batch=8),
        "fp32 seed 1": run(7.0, batch=8, seed=1),
        "fp32 seed 2": run(6.5, batch=8, seed=2),
        "fp32, batch 4": run(9.0, batch=4, seed=1),
        "mixed seed 1": run(9.5, batch=8, seed=1, precision="mixed"),
    }
    found = beside_seeds(recorded, run(5.0, batch=8), run(mixed), "error")
    assert found == f"error: FP32 5, mixed precision {expected}"


def test_no_spread_without_other_seeds():
    found = beside_seeds({"fp32": run(5.0)}, run(5.0), run(6.0), "error")
    assert found == (
        "error: FP32 5, mixed precision 6. "
        "No other seed of FP32 is recorded with these flags."
    )


def test_a_single_pair_tells_nothing():
    found = mean_difference(paired(7), "error", POINTS)
    assert (found.mean, found.verdict) == (7, "inconclusive")
    assert found.pairs_within(1.0) is None


def test_one_run_beside_several():
    """That of three with deviation 1 is off by more than 4.303 * sqrt(1 + 1 / 3)."""
    runs = [run(error, seed=seed) for seed, error in enumerate((1.0, 2.0, 3.0))]
    bound = T_2 * math.sqrt(4 / 3)
    for error, is_clear in ((2 + bound - 0.01, False), (2 + bound + 0.01, True)):
        found = difference_of_one(runs, run(error), "error", POINTS)
        assert found.mean == pytest.approx(error - 2)
        assert found.is_clear_of_chance is is_clear


@pytest.mark.parametrize(
    ("margin", "difference", "shown"),
    [
        (POINTS, 0.26, "+0.3"),
        (POINTS, -0.04, "-0.0"),
        (Margin(0.02), -0.01234, "-0.012"),
        (Margin(10, "%", relative=True), math.log(6.0), "+500"),
    ],
    ids=["points", "the sign", "hundredths", "percent"],
)
def test_a_difference_is_shown_one_digit_finer_than_its_margin(
    margin, difference, shown
):
    assert margin.shown(difference) == shown
