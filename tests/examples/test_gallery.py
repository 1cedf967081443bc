"""docs/gallery.md and the results that its tables are made of."""

import json
import re
import sys
from dataclasses import replace

import gallery
import matplotlib
import numpy as np
import pytest
from experiments.compare import Comparison
from experiments.exponents import Figure
from image_classification.model import NETWORKS

SEEDS = ("fp32 seed 1", "fp32 seed 2")

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
    monkeypatch.setattr(gallery, "comparison_of", lambda name: found)
    (tmp_path / "results" / "demo").mkdir(parents=True)
    return found


def test_table(comparison):
    mixed = result(0.251, loss_scale=8.0, skipped_steps=3.0)
    folder = comparison.folder / "results" / "demo"
    (folder / "fp32.json").write_text(json.dumps(result(0.25)))
    (folder / "mixed-scale-8.json").write_text(json.dumps(mixed))
    page = "before\n<!-- results: lines/demo -->\nold\n<!-- end -->\nafter\n"
    assert gallery.with_tables(page) == (
        "before\n"
        "<!-- results: lines/demo -->\n"
        "| setting | error | steps | minutes | loss scale | skipped |\n"
        "| --- | --- | --- | --- | --- | --- |\n"
        "| fp32 | 0.25 | 400 | 1.5 | - | - |\n"
        "| mixed, scale 8 | 0.251 | 400 | 1.5 | 8 | 3 |\n"
        "\n"
        "Made on EPYC, 2 cores, kernels avx2, TensorFlow 2.21.0, Keras 3.15.1: "
        "fp32; mixed, scale 8.\n"
        "\n"
        "![loss by step](figures/gallery/lines.svg)\n"
        "\n"
        "Not measured yet: plain fp16.\n"
        "<!-- end -->\n"
        "after\n"
    )


def test_an_experiment_that_fails_leaves_the_others(comparison, monkeypatch, capsys):
    broken = replace(comparison, prepare=lambda flags: sys.exit("error: no data"))
    found = {"broken": broken, "whole": comparison}
    monkeypatch.setattr(gallery, "comparison_of", found.get)
    monkeypatch.chdir(comparison.folder)
    (comparison.folder / "train.py").write_text(SCRIPT)
    message = "error: there is no result of broken; see above."
    with pytest.raises(SystemExit, match=message):
        gallery.train(["broken", "whole"], [])
    printed = capsys.readouterr()
    assert "error: no data" in printed.err
    assert "| fp32 | 0.5 |" in printed.out


def test_caption(tmp_path, monkeypatch):
    (tmp_path / "fp32.json").write_text('{"zeros": 3}')
    figure = Figure(
        name="figure_0",
        title="Zeros",
        result=tmp_path / "fp32.json",
        key="zeros",
        draw_on=lambda axes, result: None,
        caption=lambda result: f"There are {result['zeros']}.",
    )
    monkeypatch.setattr(gallery, "paper_figure", {"lines/figure0": figure}.get)
    page = "before\n<!-- figure: lines/figure0 -->\nold\n<!-- end -->\nafter\n"
    assert gallery.with_tables(page) == (
        "before\n"
        "<!-- figure: lines/figure0 -->\n"
        "![Zeros](figures/gallery/figure_0.svg)\n"
        "\n"
        "There are 3.\n"
        "<!-- end -->\n"
        "after\n"
    )


def test_curves_are_drawn_of_several_settings(comparison, tmp_path, monkeypatch):
    monkeypatch.setattr(gallery, "FIGURES", tmp_path / "figures")
    gallery.FIGURES.mkdir()
    folder = comparison.folder / "results" / "demo"
    flags, log = {"steps": 400, "eval_every": 200}, [{"loss": 2.0}, {"loss": 1.0}]
    content = json.dumps(result(0.25, flags=flags, log=log))
    for name, drawn in (("fp32", []), ("plain-fp16", ["figures/a_lines.svg"])):
        (folder / f"{name}.json").write_text(content)
        gallery.draw("a/lines", "demo")
        found = [str(p.relative_to(tmp_path)) for p in tmp_path.glob("figures/*")]
        assert found == drawn


def test_the_readme_shows_settings_that_were_recorded():
    for experiment, names in gallery.README.values():
        found = gallery.results_of(gallery.comparison_of(experiment), "demo")
        assert {*names} <= {*found}


def test_the_page_agrees_with_the_results():
    page = gallery.PAGE.read_text()
    assert gallery.with_tables(page) == page


def test_the_mean_difference_of_the_image_networks():
    """Of mixed precision to the mean of FP32, and its standard error by the seeds."""
    found = gallery.results_of(
        gallery.comparison_of("image_classification"), "demo"
    ).items()
    top_1 = {name: result["measures"]["top-1"] for name, result in found}
    seeds = np.array(
        [
            [top_1[f"{network}, {name}"] for name in ("fp32", *SEEDS)]
            for network in NETWORKS
        ]
    )
    mixed = np.array([top_1[f"{network}, mixed"] for network in NETWORKS])
    difference = np.mean(mixed - seeds.mean(axis=1))
    networks, runs = seeds.shape
    variance = seeds.var(axis=1, ddof=1).mean() * (1 + 1 / runs) / networks
    assert (f"{-difference:.1f}", f"{variance**0.5:.1f}") == ("0.6", "0.9")
    assert "it is 0.6 points below the mean of FP32" in gallery.PAGE.read_text()
    assert (
        "0.6 points of top-1 below\nFP32, with a standard error of 0.9"
        in (gallery.PAGE.parents[1] / "README.md").read_text()
    )


def test_the_pictures_of_the_page_are_there():
    paths = re.findall(r"!\[.*?\]\((.*?)\)", gallery.PAGE.read_text())
    assert paths
    assert [path for path in paths if not (gallery.PAGE.parent / path).is_file()] == []


def test_the_pictures_are_those_of_the_results(tmp_path, monkeypatch):
    """Drawn again they are the same to the byte, by the same version of matplotlib."""
    committed, version = gallery.FIGURES, f"Matplotlib v{matplotlib.__version__},"
    monkeypatch.setattr(gallery, "FIGURES", tmp_path)
    gallery.draw_page(gallery.PAGE.read_text())
    for path in tmp_path.iterdir():
        content = (committed / path.name).read_text()
        if version in content:
            assert content == path.read_text(), path.name


def test_every_experiment_with_results_is_on_the_page():
    blocks = {(m[2], m[3]) for m in gallery.BLOCK.finditer(gallery.PAGE.read_text())}
    folders = {
        (name, folder.name)
        for name in gallery.experiments_here()
        for folder in (gallery.EXAMPLES / name / "results").glob("*/")
    }
    assert folders <= blocks


def test_results_tell_no_paths():
    for name in gallery.experiments_here():
        for path in (gallery.EXAMPLES / name / "results").rglob("*.json"):
            flags = json.loads(path.read_text())["flags"]
            assert not [v for v in flags.values() if str(v).startswith(("/", ".."))]


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
    ],
)
def test_a_wrong_command(flags, message, capsys):
    with pytest.raises(SystemExit):
        gallery.main(flags)
    assert message in capsys.readouterr().err


def test_flags_follow_those_of_the_short_form(comparison, monkeypatch):
    found = []
    monkeypatch.setattr(Comparison, "main", lambda self, argv: found.append(argv))
    object.__setattr__(comparison, "short", ["--steps=2"])
    gallery.main(["train", "translation", "--data", "FILE"])
    out = ["--out", "build/gallery/translation"]
    assert found == [["--steps=2", "--data", "FILE", *out]]
