"""benchmarks/growth.py: its counts and its laws, of costs that are known."""

import importlib
import re
from pathlib import Path

import pytest

import keras_mp

DOCS = Path(__file__).resolve().parents[2] / "docs"


@pytest.fixture
def growth(script):
    return script("growth")


@pytest.mark.parametrize("power", [0, 0.5, 1, 2])
def test_the_exponent_of_a_law(growth, power):
    sizes = [1, 3, 8, 20]
    costs = [7 * size**power for size in sizes]
    costs[0] = 1000  # of the smallest sizes, which may cost anything
    assert growth.exponent(sizes, costs) == pytest.approx(power, abs=1e-12)


# Weight, gradient and two moments of 4 bytes; in 16 bits, two of 2 bytes and a master.
@pytest.mark.parametrize("variant", ["FP32", "ours, float16", "ours, bfloat16"])
def test_adam_holds_16_bytes_a_weight(growth, variant):
    weights, held = growth.count(8, variant)
    # The counters of the optimizer and of the loss scale, 8 bytes each at most.
    assert 0 <= weights * (held - 16) <= 8 * 24


def test_what_is_counted_is_what_the_optimizer_counts(growth):
    model, _ = growth.compiled(lambda: growth.wide_gpt2(8), "ours, float16")
    model.optimizer.build(model.trainable_variables)
    assert model.optimizer.bytes_per_parameter()["total"] == 16
    assert isinstance(model.optimizer, keras_mp.FP32MasterOptimizer)


@pytest.fixture
def table(growth, monkeypatch, capsys, tmp_path):
    """What the benchmark prints where time ~ size, and memory ~ size^2."""

    def known(function, *given):
        if function is growth.count:
            return 1e6 * given[0], 16.0
        size = given[1]
        if function is growth.times:
            # XLA doubles the time, and triples the memory.
            variants = range(len(growth.compared(given[0])))
            return [
                size * (1 + i) * (1 + x)
                for i in variants
                for x in growth.ways(given[0])
            ]
        assert function is growth.memory
        return 10 * size**2 * (3 if given[-1] else 1)

    monkeypatch.setattr(growth, "alone", known)
    growth.main([])
    path = tmp_path / "growth.md"
    path.write_text(capsys.readouterr().out)
    return path


@pytest.fixture
def charts(monkeypatch):
    """The modules of docs/ that draw."""
    monkeypatch.syspath_prepend(DOCS)
    return importlib.import_module


def test_the_tables_and_the_laws(table, charts):
    *grown, laws = charts("charts").tables(table)
    first_columns = [next(iter(rows[0])) for rows in grown]
    assert first_columns == ["weights, millions", "batch", "tokens", "replicas"]
    longest = [row for row in grown[2] if row["tokens"] == "2048"]
    assert [row["step, ms"] for row in longest] == [
        *("2048.0", "4096.0", "6144.0", "8192.0")
    ]
    for way in ("", "XLA: "):
        ratios = [row[f"{way}time / FP32"] for row in longest]
        assert ratios == ["1.00", "2.00", "3.00", "4.00"]
    assert {row["XLA: peak, MiB"] for row in longest} == {str(30.0 * 2048**2)}
    assert longest[0]["XLA: step, ms"] == "4096.0"
    assert {row["time / smallest"] for row in longest} == {"32.00"}
    assert {row["peak / smallest"] for row in longest} == {"1024.00"}
    exponents = {row.pop("exponent of"): set(row.values()) for row in laws}
    assert len(exponents) == 3 * 4 + 2  # XLA cannot reach several replicas
    assert exponents["time over weights"] == {"1.00"}
    assert exponents["memory over replicas"] == {"2.00"}
    # Ours misses its goals in time, and Keras's has none.
    lines = table.read_text().splitlines()
    [row] = [line for line in lines if line.startswith("| 2048 | ours, float16 ")]
    assert re.findall(r"\*\*(.*?)\*\*", row) == ["3.00", "3.00"]
    assert not any("**" in line for line in lines if "Keras" in line)


def test_the_largest_models_are_counted(table, charts):
    weights, *_ = charts("charts").tables(table)
    counted = {
        (row["weights, millions"], row["peak, MiB"])
        for row in weights
        if row["step, ms"] == "counted"
    }
    # 16 bytes a weight, of 256 and 1,000 million.
    assert counted == {("256", "3906"), ("1000", "15259")}


def test_each_table_has_a_chart(table, charts):
    text = charts("growth_charts").growth_charts(table)
    assert text.count("<figure") == 4
    # Tables, panels and variants, of which replicas have one more; what is counted.
    lines = 4 * 2 * 4 + 2
    assert text.count("<polyline") == lines
    assert text.count('fill="none" stroke') == lines + 2 * 4
    assert "NaN" not in text
    assert "memory ~ tokens^p with p = 2.00 (FP32), 2.00 (Keras, mixed_float16)" in text


def test_costs_that_do_not_grow_have_an_axis_too(table, charts):
    step = r"(?<=(?:FP32|at16|tate) \| )\d+\.0"
    flat = re.sub(step, "64.0", table.read_text())
    table.write_text(flat)
    text = charts("growth_charts").growth_charts(table)
    # Each of the four panels has a line at 64, and one at 128.
    assert text.count('text-anchor="end">64<') >= 4
    assert text.count('text-anchor="end">128<') >= 4


@pytest.mark.xslow
def test_each_replica_holds_weights_masters_and_moments(script, growth):
    alone = script("machine").alone  # here there are virtual CPUs of other tests
    model, *_ = growth.small_gpt2(batch=1)
    mebibytes = alone(growth.memory, "replicas", 2, "ours, float16", False)
    assert mebibytes > 2 * (2 + 4 + 8) * model.count_params() / 2**20
