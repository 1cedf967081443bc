"""docs/gallery.md and the results that its tables are made of."""

import json
import re
import statistics
import sys
from dataclasses import replace

import gallery
import matplotlib
import pytest
from experiments import page
from experiments.compare import Comparison
from experiments.exponents import Figure
from experiments.paired import Margin
from experiments.records import record, recorded
from scipy import stats

MACHINE = {"processor": "EPYC", "cores": 2, "gpu": "none", "kernels": "avx2"}
MACHINE |= {"tensorflow": "2.21.0", "keras": "3.15.1", "keras_mp": "0.1.0"}


def result(error, **changes):
    return {
        "flags": {"steps": 400},
        "machine": MACHINE,
        "measures": {"error": error},
        "seconds": 90.0,
        "loss_scale": None,
        "skipped_steps": None,
    } | changes


SCRIPT = f"""
import json, pathlib, sys
out = pathlib.Path(sys.argv[sys.argv.index("--out") + 1])
out.mkdir(parents=True)
result = {{"flags": {{"eval_every": 5}}, "measures": {{"error": 0.5}},
    "machine": {MACHINE}, "log": [{{"loss": 4.0}}], "step_seconds": 0.25,
    "seconds": 90.0, "peak_mb": 900, "loss_scale": None, "skipped_steps": None}}
(out / "result.json").write_text(json.dumps(result))
"""


@pytest.fixture
def comparison(tmp_path, monkeypatch):
    settings = {"fp32": [], "mixed, scale 8": [], "plain fp16": []}
    found = Comparison(tmp_path, settings, demo=["fp32"], measures=["error"])
    monkeypatch.setattr(page, "comparison_of", lambda name: found)
    return found


def test_table(comparison):
    mixed = result(0.251, loss_scale=8.0, skipped_steps=3.0)
    record(comparison.folder, "demo", "fp32", result(0.25))
    record(comparison.folder, "demo", "mixed, scale 8", mixed)
    text = "before\n<!-- results: lines/demo -->\nold\n<!-- end -->\nafter\n"
    assert page.with_tables(text, page.PAGE.parent) == (
        "before\n"
        "<!-- results: lines/demo -->\n"
        "| setting | error | steps | loss scale | skipped |\n"
        "| --- | --- | --- | --- | --- |\n"
        "| fp32 | 0.25 | 400 | - | - |\n"
        "| mixed, scale 8 | 0.251 | 400 | 8 | 3 |\n"
        "\n"
        "![loss by step](figures/gallery/lines.svg)\n"
        "\n"
        "Not measured yet: plain fp16.\n"
        "<!-- end -->\n"
        "after\n"
    )


def run(error, precision, seed, **machine):
    flags = {"steps": 4, "precision": precision, "loss_scale": "dynamic", "seed": seed}
    return result(error, flags=flags, machine=MACHINE | machine)


def paired_page(comparison, *runs):
    """Returns the block of verdicts of runs, which are of the settings in order."""
    for name, content in zip(comparison.settings, runs, strict=False):
        record(comparison.folder, "demo", name, content)
    return page.with_tables(
        "<!-- paired: lines/demo -->\n<!-- end -->", page.PAGE.parent
    )


PAIRED = {
    "fp32": ["--precision", "fp32"],
    "mixed": ["--precision", "mixed"],
    "fp32 seed 1": ["--precision", "fp32", "--seed", "1"],
    "mixed seed 1": ["--precision", "mixed", "--seed", "1"],
}


@pytest.fixture
def pairs(comparison):
    object.__setattr__(comparison, "settings", PAIRED)
    object.__setattr__(comparison, "margins", {"error": Margin(1, "points")})
    return comparison


def test_no_verdict_without_a_pair(pairs):
    found = paired_page(pairs, run(1, "fp32", 0))
    assert "-->\nNo pair of runs is measured yet.\n<!--" in found


def test_verdicts_of_pairs(pairs):
    """Differences of 2 and 3: Student's t of one degree is 12.706."""
    runs = run(1, "fp32", 0), run(3, "mixed", 0), run(4, "fp32", 1), run(7, "mixed", 1)
    assert paired_page(pairs, *runs) == (
        "<!-- paired: lines/demo -->\n"
        "**error: inconclusive.** Mixed precision minus FP32, over 2 pairs: +2.5 "
        "points, 95% interval -3.9 to +8.9; the margin is 1 point. At this scatter 5 "
        "pairs would show a difference of 0.\n"
        "\n"
        "| minus FP32 | measure | pairs | difference | 95% interval | verdict |\n"
        "| --- | --- | --- | --- | --- | --- |\n"
        "| mixed | error | 2 | +2.5 points | -3.9 to +8.9 "
        "| inconclusive: takes 5 pairs |\n"
        "<!-- end -->"
    )


def test_forms_are_compared_with_fp32_masters(pairs):
    """The same number each time has a scatter of 0; one run alone has no interval."""
    settings = {
        f"{name}{end}": ["--precision", precision, "--seed", seed]
        for name, precision in (
            ("mixed", "mixed"),
            ("mixed, remainders", "mixed-remainders"),
            ("mixed, int8", "mixed-int8"),
        )
        for end, seed in (("", "0"), (" seed 1", "1"))
    }
    object.__setattr__(pairs, "settings", settings)
    runs = [run(5, "mixed", 0), run(7, "mixed", 1)]
    runs += [run(5, "mixed-remainders", 0), run(7, "mixed-remainders", 1)]
    runs += [run(6, "mixed-int8", 0)]
    paired_page(pairs, *runs)
    assert page.with_tables(
        "<!-- forms: lines/demo -->\n<!-- end -->", page.PAGE.parent
    ) == (
        "<!-- forms: lines/demo -->\n"
        "| minus mixed | measure | pairs | difference | 95% interval | verdict |\n"
        "| --- | --- | --- | --- | --- | --- |\n"
        "| mixed, remainders | error | 2 | +0.0 points | +0.0 to +0.0 "
        "| equal within the margin |\n"
        "<!-- end -->"
    )


def test_a_verdict_before_all_pairs_are_measured(pairs):
    assert paired_page(pairs, run(1, "fp32", 0), run(3, "mixed", 0)) == (
        "<!-- paired: lines/demo -->\n"
        "**error: preliminary, 1 of 2 pairs.** Mixed precision minus FP32: "
        "+2.0 points; the margin is 1 point.\n"
        "<!-- end -->"
    )


def test_machines(pairs):
    names = ["fp32", "fp32 seed 1", "mixed", "mixed seed 1", "mixed seed 2"]
    object.__setattr__(pairs, "settings", {name: [] for name in names})
    other = [run(1, "fp32", n, kernels="avx512") for n in range(2)]
    paired_page(pairs, *other, *(run(3, "mixed", n) for n in range(3)))
    # Each run took 90 seconds.
    assert page.machines(["lines/demo"]) == (
        "| machine | runs | hours |\n"
        "| --- | --- | --- |\n"
        "| EPYC, 2 cores, kernels avx2, TensorFlow 2.21.0, Keras 3.15.1 | 3 | 0.1 |\n"
        "| EPYC, 2 cores, kernels avx512, TensorFlow 2.21.0, Keras 3.15.1 | 2 | 0.1 |\n"
    )


def test_an_experiment_that_fails_leaves_the_others(comparison, monkeypatch, capsys):
    broken = replace(comparison, prepare=lambda flags: sys.exit("error: no data"))
    found = {"broken": broken, "whole": comparison}
    monkeypatch.setattr(page, "comparison_of", found.get)
    monkeypatch.chdir(comparison.folder)
    (comparison.folder / "train.py").write_text(SCRIPT)
    message = "error: there is no result of broken; see above."
    with pytest.raises(SystemExit, match=message):
        gallery.train(["broken", "whole"], [])
    printed = capsys.readouterr()
    assert "error: no data" in printed.err
    assert "| fp32 | 0.5 |" in printed.out


def test_caption(tmp_path, monkeypatch):
    record(tmp_path, "demo", "fp32", {"zeros": 3})
    figure = Figure(
        name="figure_0",
        title="Zeros",
        folder=tmp_path,
        key="zeros",
        draw_on=lambda axes, result: None,
        caption=lambda result: f"There are {result['zeros']}.",
    )
    monkeypatch.setattr(page, "paper_figure", {"lines/figure0": figure}.get)
    text = "before\n<!-- figure: lines/figure0 -->\nold\n<!-- end -->\nafter\n"
    assert page.with_tables(text, page.PAGE.parent) == (
        "before\n"
        "<!-- figure: lines/figure0 -->\n"
        "![Zeros](figures/gallery/figure_0.svg)\n"
        "\n"
        "There are 3.\n"
        "<!-- end -->\n"
        "after\n"
    )


def test_curves_are_drawn_of_several_settings(comparison, tmp_path, monkeypatch):
    monkeypatch.setattr(page, "FIGURES", tmp_path / "figures")
    monkeypatch.setattr(page, "PAGE", tmp_path / "gallery.md")
    page.PAGE.write_text("<!-- results: a/lines/demo -->\n<!-- end -->")
    flags, log = {"steps": 400, "eval_every": 200}, [{"loss": 2.0}, {"loss": 1.0}]
    content = result(0.25, flags=flags, log=log)
    for name, drawn in (("fp32", []), ("plain fp16", ["figures/a_lines.svg"])):
        record(comparison.folder, "demo", name, content)
        page.draw_gallery()
        found = [str(p.relative_to(tmp_path)) for p in tmp_path.glob("figures/*")]
        assert found == drawn


def test_the_readme_shows_settings_that_were_recorded():
    for experiment, names in page.IN_README.values():
        _, found = page.measured(f"{experiment}/demo")
        assert {*names} <= {*found}


def test_the_picture_of_the_readme_has_the_verdict_of_its_text(monkeypatch):
    drawn = []
    monkeypatch.setattr(page.curves, "draw", lambda path, panels: drawn.extend(panels))
    page.draw_readme()
    measured = page.measured("translation/demo")
    verdict = page.first_difference(*measured).verdict
    assert drawn[0].title.endswith(f":\n{verdict}")
    sentence = page.headline(*measured)
    assert sentence.endswith(f": **{verdict}**.\n")


@pytest.mark.parametrize(
    "path", [*page.pages(), page.README], ids=lambda path: path.name
)
def test_a_page_agrees_with_the_results(path):
    text = path.read_text()
    assert page.with_tables(text, path.parent) == text


@pytest.mark.parametrize("page", page.pages(), ids=lambda path: path.name)
def test_the_pictures_of_a_page_are_there(page):
    paths = re.findall(r"!\[.*?\]\((.*?)\)", page.read_text())
    assert paths
    assert [path for path in paths if not (page.parent / path).is_file()] == []


@pytest.mark.slow
def test_the_pictures_are_those_of_the_results(tmp_path, monkeypatch):
    """Drawn again they are the same to the byte, by the same version of matplotlib."""
    committed, version = page.FIGURES, f"Matplotlib v{matplotlib.__version__},"
    monkeypatch.setattr(page, "FIGURES", tmp_path)
    page.draw_gallery()
    for path in tmp_path.iterdir():
        content = (committed / path.name).read_text()
        if version in content:
            assert content == path.read_text(), path.name


def presets(folder):
    """Returns the names of the presets that have a recorded result."""
    lines = (folder / "results.jsonl").read_text().splitlines()
    return {json.loads(line)["preset"] for line in lines}


def test_every_experiment_with_results_is_on_the_page():
    shown = {kind: {*page.blocks(kind)} for kind in ("paired", "results")}
    places = {
        f"{name}/{preset}"
        for name in page.EXPERIMENTS
        for preset in presets(page.EXAMPLES / name)
    }
    assert places <= shown["paired"] == shown["results"]


def test_the_log_of_each_result_is_whole():
    """No two processes wrote into the folder of a run."""
    for place in page.blocks("results"):
        for name, found in page.measured(place)[1].items():
            flags, epochs = found["flags"], [row["epoch"] for row in found["log"]]
            expected = range(flags["steps"] // flags["eval_every"])
            assert epochs == [*expected], (place, name)


def test_results_have_the_flags_of_their_preset():
    """One that came later would keep their runs from being pairs of new ones."""
    for place in page.blocks("results"):
        comparison, results = page.measured(place)
        preset = place.rpartition("/")[2]
        path = comparison.folder / "presets" / f"{preset}.json"
        flags = json.loads(path.read_text()).keys()
        for name, found in results.items():
            assert flags <= found["flags"].keys(), (place, name)


def test_the_differences_of_the_image_networks():
    """Those of the page, from the files alone, by another function of scipy."""
    path = page.EXAMPLES / "image_classification" / "results.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    top_1 = {
        row["setting"]: row["measures"]["top-1"]
        for row in rows
        if row["preset"] == "demo"
    }
    differences = [
        top_1[name] - top_1[name.replace("mixed", "fp32")]
        for name in top_1
        if re.search(r"mixed( seed \d)?$", name)
    ]
    found = stats.ttest_1samp(differences, 0)
    low, high = found.confidence_interval(0.95)
    count, mean = len(differences), statistics.mean(differences)
    row = f"| {count} | {mean:+.1f} points | {low:+.1f} to {high:+.1f} |"
    assert f"| all networks, mixed | top-1 {row}" in page.gallery()
    headline = f"{mean:+.1f} points of top-1 (95% interval {low:+.1f} to {high:+.1f})"
    assert f"Mixed precision minus FP32 is {headline}" in page.README.read_text()


def test_a_share_of_the_loss_trains_in_fp32_as_the_sum_does():
    """What the page says of it: not to the last bit, as another processor rounds."""
    text = " ".join(page.gallery().split())
    assert "the three seeds end within 0.02% of the earlier ones" in text
    measure = "held-out perplexity"
    by_sum, by_share = (
        page.measured(f"language_model/{preset}")[1] for preset in ("demo", "share")
    )
    seeds = ["fp32", "fp32 seed 1", "fp32 seed 2"]
    for name in seeds:
        found = by_share[name]["measures"][measure]
        assert found == pytest.approx(by_sum[name]["measures"][measure], rel=2e-4)
        processors = {r[name]["machine"]["processor"] for r in (by_sum, by_share)}
        assert len(processors) == 2


def test_results_tell_no_paths():
    for place in page.blocks("results"):
        for found in page.measured(place)[1].values():
            flags = found["flags"].values()
            assert not [v for v in flags if str(v).startswith(("/", ".."))]


def test_each_recorded_run_is_shown():
    for name in page.EXPERIMENTS:
        for preset in presets(page.EXAMPLES / name):
            found = recorded(page.EXAMPLES / name, preset)
            assert found.keys() == page.measured(f"{name}/{preset}")[1].keys()


def test_recorded_runs_are_in_order_and_replace_earlier_ones(tmp_path):
    for preset, setting, error in [
        ("long", "fp32", 1.0),
        ("demo", "mixed", 2.0),
        ("demo", "fp32", 3.0),
        ("demo", "mixed", 4.0),
    ]:
        record(tmp_path, preset, setting, {"error": error})
    assert (tmp_path / "results.jsonl").read_text() == (
        '{"preset": "demo", "setting": "fp32", "error": 3.0}\n'
        '{"preset": "demo", "setting": "mixed", "error": 4.0}\n'
        '{"preset": "long", "setting": "fp32", "error": 1.0}\n'
    )
    assert recorded(tmp_path, "demo") == {
        "fp32": {"error": 3.0},
        "mixed": {"error": 4.0},
    }
    assert recorded(tmp_path / "none", "demo") == {}


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        pytest.param(["train", "chess"], "Received: ['chess']", id="unknown"),
        pytest.param(
            ["train", "--data=a"],
            "Received: ['--data=a'] for ['image_classification'",
            id="flags of all",
        ),
        pytest.param(["tables", "--new"], "Received: ['--new']", id="flags of tables"),
        pytest.param(
            ["measure", "translation", "--steps=1"],
            "`measure` hands no flags on. Received: ['--steps=1']",
            id="flags of measure",
        ),
        pytest.param(
            ["measure", "--data=a"], "Received: ['--data', 'a'] for", id="data of all"
        ),
    ],
)
def test_a_wrong_command(flags, message, capsys):
    with pytest.raises(SystemExit):
        gallery.main(flags)
    assert message in capsys.readouterr().err


@pytest.fixture
def queue(comparison, tmp_path, monkeypatch):
    """What the page shows of one experiment, with a result of FP32 and no other."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(page, "PAGE", tmp_path / "gallery.md")
    monkeypatch.setattr(page, "EXPERIMENTS", ["lines"])
    page.PAGE.write_text("<!-- results: lines/demo -->\n<!-- end -->")
    record(comparison.folder, "demo", "fp32", result(0.25, seconds=3510.0))
    (comparison.folder / "train.py").write_text(SCRIPT)
    return comparison


def test_what_has_no_result_is_trained_and_recorded(queue, capfd):
    gallery.main(["measure"])
    printed = capfd.readouterr().out
    # A script of the fixture has trained for 90 s, and FP32 has for 3510.
    assert "2 settings have no result: lines/demo, mixed, scale 8; lines" in printed
    assert printed.count("$ python") == 2
    assert "What is recorded now trained for 1.0 hours." in printed
    assert recorded(queue.folder, "demo").keys() == queue.settings.keys()
    gallery.main(["measure", "lines"])
    assert "0 settings have no result" in capfd.readouterr().out


def test_a_preset_is_measured_with_what_is_planned_for_it(queue, capfd):
    object.__setattr__(queue, "planned", {"long": ["plain fp16", "fp32"]})
    assert [*page.measured("lines/demo")[0].settings] == [*queue.settings]
    assert [*page.measured("lines/long")[0].settings] == ["plain fp16", "fp32"]
    queue.main(["--preset", "long", "--settings", "all", "--record"])
    assert capfd.readouterr().out.count("$ python") == 2
    assert recorded(queue.folder, "long").keys() == {"fp32", "plain fp16"}


STOPPED = """
import pathlib, sys
out = pathlib.Path(sys.argv[sys.argv.index("--out") + 1])
if "--resume" not in sys.argv:
    (out / "checkpoints").mkdir(parents=True)
    sys.exit(1)
out.rename(f"{out}-stopped")
"""


def test_a_queue_that_was_stopped_goes_on(queue, capfd, monkeypatch):
    """Ctrl-C comes while a run trains, which has written a checkpoint."""
    trained = Comparison.main

    def interrupted(self, argv):
        with pytest.raises(SystemExit):
            trained(self, argv)
        raise KeyboardInterrupt

    (queue.folder / "train.py").write_text(STOPPED + SCRIPT)
    with monkeypatch.context() as stopping:
        stopping.setattr(Comparison, "main", interrupted)
        with pytest.raises(SystemExit, match="130"):
            gallery.main(["measure"])
    assert "0 of 2 are done. The same command goes on." in capfd.readouterr().out
    with pytest.raises(SystemExit, match="error: there is no result of lines/demo, p"):
        gallery.main(["measure"])
    lines = [line for line in capfd.readouterr().out.splitlines() if "$ python" in line]
    assert ["--resume" in line for line in lines] == [True, False]


def test_flags_follow_those_of_the_short_form(comparison, monkeypatch):
    found = []
    monkeypatch.setattr(Comparison, "main", lambda self, argv: found.append(argv))
    object.__setattr__(comparison, "short", ["--steps=2"])
    gallery.main(["train", "translation", "--data", "FILE"])
    out = ["--out", "build/gallery/translation"]
    assert found == [["--steps=2", "--data", "FILE", *out]]
