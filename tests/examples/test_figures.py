"""The paper's figures of gradients by exponent."""

import matplotlib.pyplot as plt
import pytest
from experiments.exponents import (
    Figure,
    draw_range,
    percent,
    percent_below,
    percent_between,
    percent_zero,
)
from experiments.records import record
from object_detection import figure3
from speech_recognition import figure2b

# 2 zeros and 8 others.
COUNTS = {"elements": 10, "zeros": 2, "exponents": {"-34": 1, "-25": 2, "-24": 5}}


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        pytest.param(percent(COUNTS), {-34: 10, -25: 20, -24: 50}, id="each"),
        pytest.param(percent_zero(COUNTS), 20, id="zeros"),
        pytest.param(percent_between(COUNTS, -34, -32), 10, id="first"),
        pytest.param(percent_between(COUNTS, -25, -24), 20, id="not the last"),
        pytest.param(percent_between(COUNTS, -33, -25), 0, id="none"),
        pytest.param(percent_below(COUNTS, -24), 50, id="zeros and below"),
    ],
)
def test_percentages(found, expected):
    assert found == expected


@pytest.mark.parametrize(
    ("first", "last", "ticks"),
    [
        (-46, -5, [-40, -32, -24, -16, -8]),
        (-32, 0, [-32, -24, -16, -8, 0]),
        # What FP16 makes zero is shown even where there is no such gradient.
        (-10, 4, [-24, -16, -8, 0]),
    ],
)
def test_the_bin_of_zeros_is_beside_the_others(first, last, ticks):
    figure, axes = plt.subplots()
    zeros = draw_range(axes, first, last)
    zero, subnormal = axes.patches
    plt.close(figure)
    assert [*axes.get_xticks()] == [zeros, *ticks]
    assert [axes.get_xticklabels()[i].get_text() for i in (0, -1)] == [
        "0",
        f"$2^{{{ticks[-1]}}}$",
    ]
    assert zeros + 1 < zero.get_x() <= first
    assert zero.get_x() + zero.get_width() == subnormal.get_x() == -25
    assert subnormal.get_x() + subnormal.get_width() == -14


def test_caption_of_figure_3():
    gradients = {"elements": 2_000_000, "zeros": 500_000}
    gradients["exponents"] = {"-35": 100_000, "-34": 15_000, "-33": 5_000}
    gradients["exponents"] |= {"-24": 40_000, "-23": 1_340_000}
    assert figure3.caption({"gradients": gradients}) == (
        "Of the 2.0 million activation gradients of a batch after the last step in "
        "FP32, 25% are zero (67% in the paper, over all of training), 1% are in "
        "[2^-34, 2^-32) (2%) and 2% in [2^-24, 2^-23) (2%)."
    )


def test_figure_2b_has_a_line_for_each_step():
    later = COUNTS | {"zeros": 1, "exponents": {"-25": 4, "-24": 3, "-23": 2}}
    result = {"flags": {"eval_every": 50}, "gradients_over_training": [COUNTS, later]}
    figure, axes = plt.subplots()
    figure2b.draw(axes, result)
    lines = axes.lines
    plt.close(figure)
    # Each with its point for zeros.
    assert [line.get_label() for line in lines[::2]] == ["step 50", "step 100"]
    middles = [e + 0.5 for e in range(-34, -22)]
    assert [*lines[0].get_xdata()] == [*lines[2].get_xdata()] == middles
    none = float("nan")
    shares = [10, *[none] * 8, 20, 50, none]
    assert [*lines[0].get_ydata()] == pytest.approx(shares, nan_ok=True)
    assert [line.get_ydata()[0] for line in lines[1::2]] == [20, 10]
    assert figure2b.caption(result) == (
        "At most 50% of the 10 weight gradients of the batch are below 2^-24 at any of "
        "2 steps in FP32, about 5% in the paper's Mandarin model. Most frequent are "
        "those in [2^-24, 2^-23) after step 50, and in [2^-25, 2^-24) after step 100."
    )


@pytest.mark.parametrize("figure", [figure2b.FIGURE, figure3.FIGURE], ids=["2b", "3"])
@pytest.mark.parametrize("content", [None, "{}"], ids=["missing", "not FP32"])
def test_a_figure_of_another_file(figure, content, tmp_path, capsys):
    path = tmp_path / "result.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(SystemExit):
        figure.main([str(path)])
    message = capsys.readouterr().err
    assert "must be that of a run in FP32" in message
    assert f"Received: {path}." in message


def test_a_figure_is_drawn_of_the_recorded_result(tmp_path, capsys):
    record(tmp_path, "demo", "fp32", {"counts": 3})
    shown = []

    def draw(axes, result):
        axes.plot([1, 2], label="a line")
        shown.append((axes.get_title(), result))

    figure = Figure(
        name="figure_0",
        title="None of the paper's",
        folder=tmp_path,
        key="counts",
        draw_on=draw,
        caption=lambda result: f"There are {result['counts']}.",
    )
    out = tmp_path / "out.svg"
    assert figure.main([f"--out={out}"]) == figure.recorded() == {"counts": 3}
    assert shown == [("None of the paper's", {"counts": 3})]
    assert capsys.readouterr().out == f"{out}\n\nThere are 3.\n"
    first = out.read_bytes()
    figure.draw({"counts": 3}, out)
    assert first == out.read_bytes()
