"""What the experiments share: flags, precisions, folders, comparisons."""

import json
import os
import sys
from dataclasses import replace
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf
from experiments import curves, report
from experiments.compare import Comparison, seeds, slug
from experiments.flags import parse
from experiments.records import recorded
from experiments.run import Run
from wrapping import optimizer_for

import keras_mp

PRESET = {"data": "numbers.csv", "batch": 4, "steps": 6, "eval_every": 2, "sizes": [1]}


@pytest.fixture
def folder(tmp_path):
    """An experiment with one preset."""
    presets = tmp_path / "lines" / "presets"
    presets.mkdir(parents=True)
    (presets / "demo.json").write_text(json.dumps(PRESET | {"shuffles": True}))
    return presets.parent


@pytest.fixture(autouse=True)
def route(monkeypatch):
    """Has the route of the ops be that of before."""
    monkeypatch.setenv("KERAS_MP_OPS", os.environ.get("KERAS_MP_OPS", "auto"))


def test_flags_are_those_of_the_preset(folder):
    flags = ["--batch=8", "--sizes=[2, 3]", "--no-shuffles"]
    args = parse(folder, [*flags, "--precision=mixed", "--loss-scale=128"])
    assert args.batch == 8
    assert args.sizes == [2, 3]
    assert args.shuffles is False
    assert args.data == "numbers.csv"
    assert args.loss_scale == 128.0
    assert args.out == Path("build/lines/demo")


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        pytest.param(["--preset=large"], "invalid choice: 'large'", id="preset"),
        pytest.param(["--batch=many"], "invalid int value: 'many'", id="type"),
        pytest.param(["--loss-scale=high"], "invalid .* value: 'high'", id="scale"),
        pytest.param(["--widths=3"], "unrecognized arguments: --widths", id="name"),
        pytest.param(["--data=a.csv"], "--data: invalid choice", id="choice"),
        pytest.param(
            ["--precision=fp32", "--loss-scale=8"],
            "--precision mixed. Received: --precision fp32 --loss-scale 8.0",
            id="scale in FP32",
        ),
    ],
)
def test_bad_flags(folder, capsys, flags, message):
    with pytest.raises(SystemExit):
        parse(folder, flags, {"data": ["numbers.csv", "b.csv"]})
    assert message.split(".*")[-1] in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flags", "policy", "scale", "route"),
    [
        (["--precision=fp32"], "float32", None, None),
        (["--precision=mixed"], "float16", 2.0**15, None),
        (["--precision=mixed", "--loss-scale=128"], "float16", 128.0, None),
        (["--precision=mixed", "--loss-scale=statistical"], "float16", 2.0**15, None),
        (["--precision=mixed-no-scaling"], "float16", 1.0, None),
        (["--precision=mixed-no-masters"], "float16", 2.0**15, None),
        (["--precision=mixed-remainders-int8"], "float16", 2.0**15, None),
        (["--precision=plain-fp16"], "float16", None, None),
        (["--precision=pseudo-fp16"], "float16", 2.0**15, "reference"),
    ],
    ids=lambda flags: " ".join(flags) if isinstance(flags, list) else "",
)
def test_precisions(folder, tmp_path, flags, policy, scale, route):
    before = os.environ["KERAS_MP_OPS"]
    run = Run(folder, [*flags, f"--out={tmp_path / 'out'}"])
    assert run.dtype_policy == policy
    assert os.environ["KERAS_MP_OPS"] == (route or before)
    optimizer = optimizer_for(run, keras.optimizers.SGD())
    assert isinstance(optimizer, keras_mp.FP32MasterOptimizer) == (scale is not None)
    if scale is not None:
        optimizer.build([])
        assert float(optimizer.loss_scale) == scale


def train(folder, out, *flags, precision="mixed"):
    """Fits a line and returns the result."""
    run = Run(folder, [f"--precision={precision}", f"--out={out}", *flags])
    keras.config.set_dtype_policy(run.dtype_policy)
    x = np.linspace(-1, 1, 24, dtype="float32")[:, None]
    batches = tf.data.Dataset.from_tensor_slices((x, x / 4)).repeat()
    batches = batches.shuffle(24, seed=run.args.seed).batch(run.args.batch)
    model = keras.Sequential([keras.Input((1,)), keras_mp.layers.Dense(1)])
    optimizer = optimizer_for(run, keras.optimizers.SGD(0.1, momentum=0.9))
    model.compile(optimizer=optimizer, loss="mse", jit_compile=False)
    log = run.fit(model, batches, validation_data=(x, x / 4))
    return run.finish({"error": log[-1]["val_loss"]}, kernel=[[1.0]])


def numbers(result):
    """Returns what does not depend on the time of day."""
    rows = [(row["loss"], row["val_loss"]) for row in result["log"]]
    return rows, result["measures"], result["loss_scale"]


def test_without_masters_weights_know_no_more_than_fp16(folder, tmp_path):
    """Steps of 2^-13 are lost beside a weight of 1, and add up in a master."""
    found = {}
    for precision in ("mixed", "mixed-no-masters"):
        flags = [f"--precision={precision}", f"--out={tmp_path / precision}"]
        run = Run(folder, [*flags, "--steps=8", "--verbose=0"])
        keras.config.set_dtype_policy(run.dtype_policy)
        one = {"use_bias": False, "kernel_initializer": "ones"}
        layers = [
            keras.layers.Dense(1, dtype=dtype, **one)
            for dtype in ("float16", "float32")
        ]
        inputs = keras.Input((1,))
        outputs = keras.layers.Add()([layer(inputs) for layer in layers])
        model = keras.Model(inputs, outputs)
        optimizer = optimizer_for(run, keras.optimizers.SGD(2.0**-13))
        model.compile(optimizer, lambda y, x: keras.ops.sum(x), jit_compile=False)
        x = np.ones((1, 1), "float16")
        run.fit(model, tf.data.Dataset.from_tensors((x, x)).repeat())
        found[precision] = [float(layer.kernel[0, 0]) for layer in layers]
    # What is stored in FP32 has no master, and stays as it is.
    assert found == {"mixed": [1 - 2**-10] * 2, "mixed-no-masters": [1, 1 - 2**-10]}


@pytest.mark.parametrize("precision", ["fp32", "mixed"])
def test_a_run_leaves_its_result(folder, tmp_path, precision):
    out = tmp_path / "out"
    result = train(folder, out, "--verbose=0", precision=precision)
    assert json.loads((out / "result.json").read_text()) == result
    assert result["experiment"] == "lines"
    assert result["flags"]["data"] == "numbers.csv"
    assert result["flags"].keys() == PRESET.keys() | {
        *("shuffles", "preset", "precision", "loss_scale", "seed")
    }
    assert len(result["log"]) == 3
    assert result["measures"] == {"error": result["log"][-1]["val_loss"]}
    assert result["kernel"] == [[1.0]]
    assert result["weights"] == 2
    assert 0 < result["step_seconds"] < result["seconds"]
    assert result["loss_scale"] == (None if precision == "fp32" else 2.0**15)


def test_the_path_of_the_data_is_not_in_the_result(folder, tmp_path):
    flags = ["--verbose=0", f"--data={tmp_path / 'own.csv'}"]
    result = train(folder, tmp_path / "out", *flags)
    assert result["flags"]["data"] == "own.csv"
    assert str(tmp_path) not in (tmp_path / "out" / "result.json").read_text()


@pytest.mark.slow
def test_a_run_goes_on_where_it_was_interrupted(folder, tmp_path):
    whole = train(folder, tmp_path / "whole", "--verbose=0")
    parts = tmp_path / "parts"
    train(folder, parts, "--verbose=0", "--steps=2")
    # What a kill before the next checkpoint, and one inside of a row, leave there.
    log = (parts / "log.csv").read_text()
    row = log.splitlines(keepends=True)[-1]
    (parts / "log.csv").write_text(f"{log}{row}{row[:9]}")
    resumed = train(folder, parts, "--verbose=0", "--resume")
    assert numbers(resumed) == numbers(whole)


@pytest.mark.slow
def test_a_run_without_resume_begins_anew(folder, tmp_path):
    first = train(folder, tmp_path / "out", "--verbose=0")
    again = train(folder, tmp_path / "out", "--verbose=0")
    assert numbers(again) == numbers(first)


@pytest.mark.parametrize("resume", [[], ["--resume"]], ids=["anew", "resume"])
def test_a_folder_of_another_run_is_refused(folder, tmp_path, resume):
    out = tmp_path / "out"
    train(folder, out, "--verbose=0")
    before = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    message = r"holds one run. Received: --out .*\(batch: 4 there, 8; seed: 0 there, 1"
    with pytest.raises(ValueError, match=message):
        train(folder, out, "--verbose=0", "--batch=8", "--seed=1", *resume)
    after = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    assert after == before


SCRIPT = """
import json, pathlib, sys
flags = dict(zip(sys.argv[1::2], sys.argv[2::2]))
out = pathlib.Path(flags["--out"])
out.mkdir(parents=True)
(out / "result.json").write_text(json.dumps({
    "flags": {"eval_every": 5, "precision": "fp32"},
    "measures": {"error": float(flags["--seed"]) + 0.5},
    "step_seconds": 0.25, "seconds": 90.0, "peak_mb": 900.4,
    "loss_scale": None, "skipped_steps": 3.0,
    "log": [{"loss": 4.0, "val_loss": 5.0}, {"loss": 2.0, "val_loss": 3.0}],
}))
"""


@pytest.fixture
def comparison(folder):
    (folder / "train.py").write_text(SCRIPT)
    settings = {"fp32": ["--seed", "1"], "mixed, no masters": ["--seed", "2"]}
    return Comparison(
        folder,
        settings,
        demo=["fp32"],
        measures=["error"],
        show=lambda results, out: f"{len(results)} shown",
    )


def test_comparison(comparison, tmp_path, capfd):
    out = tmp_path / "out"
    comparison.main(["--settings", "all", "--out", str(out), "--record"])
    printed = capfd.readouterr().out
    assert "2 shown" in printed
    assert "| fp32 | 1.5 | 0.250 | 1.5 | 900 | - | 3 |" in printed
    assert "| mixed, no masters | 2.5 | 0.250 | 1.5 | 900 | - | 3 |" in printed
    assert (out / "loss.png").read_bytes().startswith(b"\x89PNG")
    found = recorded(comparison.folder, "demo")
    errors = {setting: result["measures"] for setting, result in found.items()}
    assert errors == {"fp32": {"error": 1.5}, "mixed, no masters": {"error": 2.5}}


def test_forms_of_state_are_drawn_where_there_is_nothing_else(comparison, monkeypatch):
    drawn = []
    monkeypatch.setattr(curves, "draw", lambda path, panels: drawn.extend(panels))
    a, b, c = (
        {"flags": {"precision": name}}
        for name in ("mixed-int8", "mixed-remainders", "mixed")
    )
    comparison.draw({"a": a, "b": b}, Path("curves.svg"))
    comparison.draw({"a": a, "b": b, "c": c}, Path("curves.svg"))
    assert [[*panel.runs] for panel in drawn] == [["a", "b"], ["c"]]


def test_comparison_keeps_what_is_there(comparison, tmp_path, capfd):
    out = tmp_path / "out"
    comparison.main(["--out", str(out)])
    assert capfd.readouterr().out.count("$ python") == 1
    comparison.main(["--out", str(out), "--settings", "all", "--keep"])
    assert capfd.readouterr().out.count("$ python") == 1


def test_a_comparison_is_prepared_before_the_first_run(comparison, tmp_path):
    prepared, out = [], tmp_path / "out"

    def prepare(flags):
        assert not out.exists()
        prepared.append(flags)

    comparison = replace(comparison, prepare=prepare)
    comparison.main(["--out", str(out), "--seed", "3"])
    comparison.main(["--out", str(out), "--keep"])  # trains nothing
    assert prepared == [["--preset", "demo", "--seed", "3"]]


def test_a_comparison_ends_where_a_run_fails(comparison, tmp_path, capfd):
    (comparison.folder / "train.py").write_text("raise SystemExit(3)")
    message = (
        r"--preset demo --seed 1 --out .* ended with status 3; its reason is above"
    )
    out = tmp_path / "out"
    with pytest.raises(SystemExit, match=message):
        comparison.main(["--out", str(out), "--settings", "all"])
    assert capfd.readouterr().out.count("$ python") == 1


def test_comparison_of_an_unknown_setting(comparison, capsys):
    with pytest.raises(SystemExit):
        comparison.main(["--settings", "fp8"])
    assert "Received: ['fp8']" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("setting", "name"),
    [("mixed, no masters", "mixed-no-masters"), ("scale 2^-12", "scale-2-12")],
)
def test_a_setting_names_a_file(setting, name):
    assert slug(setting) == name


def test_seeds_of_a_setting():
    assert seeds("fp32", ["--lr=2"], 3) == {
        "fp32": ["--lr=2"],
        "fp32 seed 1": ["--lr=2", "--seed", "1"],
        "fp32 seed 2": ["--lr=2", "--seed", "2"],
    }


def test_scripts_find_the_shared_modules():
    """A script is started from anywhere, with its own folder alone on the path."""
    examples = Path(sys.modules["experiments"].__file__).parents[1]
    scripts = [*examples.glob("*/train.py"), *examples.glob("*/compare.py")]
    assert scripts
    for script in scripts:
        if script.parent.name != "experiments":
            line = "sys.path.insert(0, str(Path(__file__).resolve().parents[1]))"
            assert line in script.read_text(), script


@pytest.mark.parametrize(
    ("number", "shown"),
    [(None, "-"), (0.0, "0"), (2.0**24, "16777216"), (2.0**-12, "2^-12")],
)
def test_a_scale_below_one_is_shown(number, shown):
    assert report.optional(number) == shown
