"""benchmarks/training_step.py: its decoders, and its table."""

import functools
import re
import sys
from types import SimpleNamespace

import pytest
import tensorflow as tf

TINY = {"tokens": 8, "batch": 2, "blocks": 1, "width": 16, "words": 16}


def operations(model, inputs):
    """The names of the operations that a model and its gradient are made of."""

    @tf.function
    def step(inputs):
        with tf.GradientTape() as tape:
            y = model(inputs, training=True)
        return tape.gradient(y, model.trainable_variables)

    graph = step.get_concrete_function(inputs).graph.as_graph_def()
    return {node.op for node in graph.node}


@pytest.mark.parametrize("name", ["gpt2", "hub_gpt2"])
@pytest.mark.parametrize("variant", ["ours, float16", "ours, bfloat16"])
def test_a_decoder_attends_in_one_pass(script, name, variant):
    if name == "hub_gpt2":
        pytest.importorskip("keras_hub", reason="needs keras-hub")
    make_parts = getattr(script("training_models"), name)
    model, (inputs, _) = script("variants").compiled(
        functools.partial(make_parts, **TINY), variant
    )
    found = operations(model, inputs)
    assert {"KerasMp>Attention", "KerasMp>AttentionGradient"} <= found
    assert "Softmax" not in found


@pytest.mark.slow
def test_the_table_has_a_row_for_each_variant(script, monkeypatch, capsys):
    training_step = script("training_step")
    gpt2 = script("training_models").gpt2
    monkeypatch.setattr(
        training_step, "MODELS", {"tiny": functools.partial(gpt2, **TINY)}
    )
    variants = training_step.VARIANTS
    kept = {name: variants[name] for name in ("FP32", "ours, float16")}
    monkeypatch.setattr(training_step, "VARIANTS", kept)
    milliseconds = {"FP32": (4.0, 2.0), "ours, float16": (3.0, 5.0)}
    first_steps = {"FP32": (2.0, 40.0), "ours, float16": (1.0, 30.0)}
    monkeypatch.setattr(
        training_step, "medians", lambda steps, rounds: sum(milliseconds.values(), ())
    )
    monkeypatch.setattr(
        training_step,
        "alone",
        lambda run, name, which, xla: [x * (1 + xla) for x in first_steps[which]],
    )
    made = []
    monkeypatch.setattr(
        training_step, "make_step", lambda parts, *way: made.append(way)
    )
    training_step.main(["tiny", "--rounds=1"])
    assert made == [(variant, xla) for variant in kept for xla in (False, True)]
    columns, _, *rows = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in re.findall(r"^\|.*$", capsys.readouterr().out, re.MULTILINE)
    ]
    of_a_way = ["step, ms", "/ FP32", "first step, s", "peak memory, MiB"]
    with_xla = [f"XLA: {name}" for name in of_a_way]
    assert columns == ["model", "variant", *of_a_way, *with_xla, "best"]
    fp32 = ["4", "1.00", "2.0", "40", "2", "1.00", "4.0", "80", "1.00"]
    # 5 / 2 and, at their fastest, 3 / 2: slower than the goal of 1.
    ours = ["3", "0.75", "1.0", "30", "5", "**2.50**", "2.0", "60", "**1.50**"]
    assert rows == [["tiny", "FP32", *fp32], ["tiny", "ours, float16", *ours]]
    training_step.main(["tiny", "--only-medians"])
    assert "| tiny | FP32 | 4 | 1.00 | - | - | 2 | 1.00 | - | - | 1.00 |" in (
        capsys.readouterr().out
    )


# A program in place of the decoder in PyTorch: its first step, then one a line.
PEER = """
import sys
print([len(sys.argv) + 0.5, 60], flush=True)
for line in sys.stdin:
    print(flush=True)
"""


def test_the_same_decoder_in_pytorch(script, monkeypatch, capsys, tmp_path):
    """Its steps run in the same rounds, each in a process of its own."""
    training_step = script("training_step")
    tiny = functools.partial(script("training_models").gpt2, **TINY)
    (tmp_path / "gpt2_in_pytorch.py").write_text(PEER)
    monkeypatch.setattr(training_step, "HERE", tmp_path)
    models = {"tiny": tiny, "another": lambda: None}
    monkeypatch.setattr(training_step, "MODELS", models)
    monkeypatch.setattr(training_step, "VARIANTS", {"FP32": ("float32", False)})
    monkeypatch.setattr(training_step, "make_step", lambda *made: lambda: None)
    monkeypatch.setattr(training_step, "alone", lambda *given: (2.0, 40.0))
    ran = []

    def medians(steps, rounds):
        for step in steps:
            step()
            ran.append(step)
        return [8.0, 4.0, 6.0, 2.0, 5.0, 3.0][: len(steps)]

    monkeypatch.setattr(training_step, "medians", medians)
    training_step.main(["another", "tiny", "--torch", sys.executable])
    assert len(ran) == 2 + 6
    rows = re.findall(r"^\| \w+ \| (.*) \|$", capsys.readouterr().out, re.MULTILINE)
    assert rows[-4:] == [
        "FP32 | 8 | 1.00 | 2.0 | 40 | 4 | 1.00 | 2.0 | 40 | 1.00",
        "FP32 | 8 | 1.00 | 2.0 | 40 | 4 | 1.00 | 2.0 | 40 | 1.00",
        "PyTorch, FP32 | 6 | 0.75 | 7.5 | 60 | 2 | 0.50 | 7.5 | 60 | 0.50",
        "PyTorch, bfloat16 | 5 | 0.62 | 7.5 | 60 | 3 | 0.75 | 7.5 | 60 | 0.75",
    ]


def test_the_first_step_is_the_one_that_traces(script, monkeypatch):
    training_step = script("training_step")
    clock = SimpleNamespace(perf_counter=iter([10.0, 13.5]).__next__)
    taken = []
    step = functools.partial(taken.append, 1)
    monkeypatch.setattr(training_step, "time", clock)
    monkeypatch.setattr(training_step, "make_step", lambda *made: step)
    monkeypatch.setattr(training_step, "peak", lambda: 100.0 + 7 * len(taken))
    assert training_step.first_step("GPT-2-256", "FP32", False) == (3.5, 21.0)
