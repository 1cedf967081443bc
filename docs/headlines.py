"""Writes numbers of README, Home, FAQ and Performance: `python docs/headlines.py`.

It reads them from the tables of the benchmarks and from the recorded runs of the
examples, writes them to benchmarks/results/headlines.json, and from there into the
pages: between `<!-- =NAME -->` and `<!-- = -->`.
"""

import json
import re
import sys
from collections.abc import Iterable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "examples"))

from charts import Row, number, tables
from experiments import page
from experiments.report import markdown

ROOT = Path(__file__).resolve().parents[1]
PAGES = [
    ROOT / name
    for name in ("README.md", "docs/index.md", "docs/faq.md", "docs/performance.md")
]
WRITTEN = re.compile(r"(<!-- =(.+?) -->).*?(<!-- = -->)", re.DOTALL)
RESULTS = ROOT / "benchmarks" / "results"
HEADLINES = RESULTS / "headlines.json"
ZEN, XEON = RESULTS / "amd_epyc_avx512_bf16", RESULTS / "intel_xeon_amx_bf16"
# Variants of a training step, by the policy, and whose the layers are.
STEPS = {
    "Keras, float16": "Keras, mixed_float16",
    "ours, float16": "ours, float16",
    "Keras, bfloat16": "Keras, mixed_bfloat16",
    "ours, bfloat16": "ours, bfloat16",
}
# What is compared at its fastest: 16 bits as Keras has them, and as we have.
KINDS = {
    "FP32": ["FP32"],
    "Keras, bfloat16": ["Keras, mixed_bfloat16"],
    "ours, bfloat16": ["ours, mixed_bfloat16", "ours, bfloat16"],
    "Keras, FP16": ["Keras, mixed_float16"],
    "ours, FP16": ["ours, mixed_float16", "ours, float16"],
}
# The same decoders there, in the same rounds.
PYTORCH = {
    **{name: KINDS[name] for name in ("FP32", "ours, bfloat16")},
    **{name: [name] for name in ("PyTorch, FP32", "PyTorch, bfloat16")},
}
MODELS = {
    "translator": "translator, LSTM with attention",
    "Transformer": "Transformer of 4 blocks",
    "GPT-2-256": "decoder like GPT-2, 256 tokens",
    "GPT-2-1024": "the same, 1,024 tokens",
    "GPT-2-50257-words": "the same, 50,257 words",
    "keras-hub-GPT-2": "GPT-2 of keras-hub",
    "ResNet-50": "ResNet-50, images of 64 x 64",
    "MobileNetV2": "MobileNetV2, images of 64 x 64",
}
TRANSLATORS = {
    "FP32, three seeds": ["fp32", "fp32 seed 1", "fp32 seed 2"],
    "mixed, the same seeds": ["mixed", "mixed seed 1", "mixed seed 2"],
    "mixed, scale 128": ["mixed, scale 128"],
    "mixed, no scaling": ["mixed, no scaling"],
    "plain FP16": ["plain fp16"],
}


def span(values: Iterable[float], form: str = ".2f") -> str:
    """Returns "0.59 to 0.73", or "0.82" where both ends are that."""
    values = list(values)
    ends = [f"{end:{form}}" for end in (min(values), max(values))]
    return " to ".join(dict.fromkeys(ends))


def column(rows: Iterable[Row], name: str, **wanted: str) -> list[float]:
    """Returns the numbers of a column, of the rows whose other cells are as wanted."""
    cells = [row[name] for row in rows if wanted.items() <= row.items()]
    return [number(cell) for cell in cells if cell != "-"]


def numbers() -> dict[str, str]:
    """Returns what the tables and the recorded runs say, by the name on the pages."""
    pages = "".join(path.read_text(encoding="utf-8") for path in PAGES)
    used = {name for _, name, _ in WRITTEN.findall(pages)}
    found = {**of_steps(), **of_bytes(), **of_examples()}
    return {name: text for name, text in found.items() if name in used}


def of_steps() -> dict[str, str]:
    """Returns how long training steps and updates take, and their peak memory."""
    [zen], [amx] = (tables(machine / "training_step.md") for machine in (ZEN, XEON))
    decoders = [row for row in amx if row["model"].startswith("GPT-2")]
    found = {}
    for machine, rows in (("step", zen), ("AMX", decoders)):
        for way, prefix in (("", ""), (", XLA", "XLA: ")):
            for name, variant in STEPS.items():
                times = column(rows, f"{prefix}/ FP32", variant=variant)
                found[f"{machine}{way}: {name}"] = span(times)
    for name, variant in STEPS.items():
        found[f"best: {name}"] = span(column(zen, "best", variant=variant))
    adam = column(
        tables(ZEN / "update_step.md")[0],
        "wrap FP32 / bare",
        optimizer="Adam",
        XLA="no",
    )
    return found | {
        "steps": table_of_steps(zen),
        "best ways": table_of_best_ways(zen, KINDS),
        "AMX: best ways": table_of_best_ways(amx, KINDS),
        "PyTorch": table_of_best_ways(zen, PYTORCH),
        "decoders": times_of_decoders(zen, "ours, bfloat16"),
        "decoders: PyTorch": times_of_decoders(zen, "PyTorch, bfloat16"),
        "update of Adam": span(adam),
        "peak": span(peaks(zen, amx)),
    }


def peaks(*machines: list[Row]) -> list[float]:
    """Returns the peak memory of each model of ours, divided by that in FP32."""
    return [
        number(row["peak memory, MiB"]) / fp32
        for rows in machines
        for row in rows
        if row["variant"] in ("ours, float16", "ours, bfloat16")
        for fp32 in column(rows, "peak memory, MiB", model=row["model"], variant="FP32")
    ]


def table_of_steps(rows: list[Row]) -> str:
    """Returns the table of the README: milliseconds, in brackets those under XLA."""
    variants = ["FP32", *STEPS.values()]
    columns = [re.sub(r", (.*)", r", `\1`", variant) for variant in variants]
    table = []
    for model, title in MODELS.items():
        cells = []
        for variant in variants:
            [ms], [xla] = (
                column(rows, name, model=model, variant=variant)
                for name in ("step, ms", "XLA: step, ms")
            )
            cells.append(f"{ms:.0f} ({xla:.0f})")
        table.append([title, *cells])
    return "\n".join(["", *markdown(["", *columns], table), ""])


def table_of_best_ways(rows: list[Row], kinds: dict[str, list[str]]) -> str:
    """Returns a row a model: the fastest way of each kind, and its time over FP32's.

    A model that was not measured in all kinds has no row.
    """
    table = []
    for model, title in MODELS.items():
        of_model = [row for row in rows if row["model"] == model]
        measured = {row["variant"] for row in of_model}
        if all(measured.intersection(variants) for variants in kinds.values()):
            cells = [fastest(of_model, variants) for variants in kinds.values()]
            table.append([title, *cells])
    return "\n".join(["", *markdown(["", *kinds], table), ""])


def times_of_decoders(rows: list[Row], kind: str) -> str:
    """Returns the milliseconds of the decoders like GPT-2, each in its fastest way."""
    if not any(row["variant"] in PYTORCH[kind] for row in rows):
        raise ValueError(
            f"The table of training steps must have rows of {kind}. Received: none. "
            "Give `make bench` or the benchmark `--torch PYTHON`."
        )
    table = [
        min(
            ms
            for variant in PYTORCH[kind]
            for name in ("step, ms", "XLA: step, ms")
            for ms in column(rows, name, model=model, variant=variant)
        )
        for model in MODELS
        if model.startswith("GPT-2")
    ]
    *most, last = (f"{ms:.0f}" for ms in table)
    return f"{', '.join(most)} and {last}"


def fastest(rows: list[Row], variants: list[str]) -> str:
    """Returns the fastest way, as "56 (XLA), 0.65"."""
    ms, way, variant = min(
        (ms, suffix, variant)
        for variant in variants
        for name, suffix in (("step, ms", ""), ("XLA: step, ms", " (XLA)"))
        for ms in column(rows, name, variant=variant)
    )
    ratios = column(rows, "best", variant=variant)  # or, without XLA:
    [ratio] = ratios or column(rows, "/ FP32", variant=variant)
    return f"{ms:.0f}{way}, {ratio:.2f}"


def of_bytes() -> dict[str, str]:
    """Returns the bytes for the backward pass, and for each parameter with Adam."""
    stored = tables(ZEN / "held_bytes.md")[0]
    adam = {
        row["form"]: number(row["bytes a parameter"])
        for row in tables(ZEN / "optimizer_state.md")[0]
        if row["optimizer"] == "Adam"
    }
    fp32, masters = adam["bare, FP32"], adam["FP32 masters"]
    compressed = adam["remainders, 8-bit state"]
    found = {
        f"stored, {name}": span(
            value
            for policy in policies
            for value in column(stored, "/ Keras float32", model=policy)
        )
        for name, policies in {
            "ours": ["keras_mp mixed_float16", "keras_mp float16"],
            "Keras": ["Keras mixed_float16"],
        }.items()
    }
    # The table counts the gradients: 4 bytes in FP32, 2 in FP16.
    counted = {
        "bytes, FP32": fp32,
        "bytes, masters": masters,
        "bytes, compressed": compressed,
        "bytes before gradients, FP32": fp32 - 4,
        "bytes before gradients, masters": masters - 2,
    }
    return found | {name: f"{value:.0f}" for name, value in counted.items()}


def of_examples() -> dict[str, str]:
    """Returns what the recorded runs of the paper's experiments show."""
    _, converged = page.measured("image_classification/converged/demo")
    top_1 = [
        result["measures"]["top-1"]
        for name, result in converged.items()
        if name.startswith("fp32")
    ]
    _, translators = page.measured("translation/demo")
    rows = [
        [
            title,
            *(
                ", ".join(
                    f"{translators[name]['measures'][measure]:{form}}" for name in names
                )
                for names in TRANSLATORS.values()
            ),
        ]
        for title, measure, form in (
            ("held-out perplexity", "held-out perplexity", ".2f"),
            ("BLEU (greedy)", "BLEU greedy", ".1f"),
        )
    ]
    table = "\n".join(["", *markdown(["", *TRANSLATORS], rows), ""])
    return {"top-1 of ResNet-9 in FP32": span(top_1, ".1f"), "translators": table}


def with_numbers(text: str, found: dict[str, str]) -> str:
    """Returns a page with its numbers in their places."""
    return WRITTEN.sub(lambda place: place[1] + found[place[2]] + place[3], text)


def main() -> None:
    """Writes the file of results, and from it the pages."""
    found = numbers()
    HEADLINES.write_text(json.dumps(found, indent=2, ensure_ascii=False) + "\n")
    for path in PAGES:
        text = path.read_text(encoding="utf-8")
        path.write_text(with_numbers(text, found), encoding="utf-8")


if __name__ == "__main__":
    main()
