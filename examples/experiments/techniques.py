"""Which technique saves what: the table of docs/gallery.md."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from experiments.compare import Comparison
from experiments.paired import Difference, difference_of_one, pairs, same_but_seed
from experiments.report import Results, markdown
from experiments.verdicts import ALL, differences, interval, shown

# What is left out, and the precision that does without.
COLUMNS = {
    "no loss scaling": "mixed, no scaling",
    "no masters": "mixed, no masters",
    "plain FP16": "plain fp16",
}


@dataclass(frozen=True)
class Task:
    """A row: runs that leave out one technique, beside FP32.

    Attributes:
        place: that of the results, experiment/preset.
        label: what distinguishes the runs from others there, as `paired.label` has it.
        without: the precisions of the columns.
    """

    place: str
    label: str = ""
    without: Mapping[str, str] = field(default_factory=lambda: COLUMNS)


_AUTOENCODER = "where_it_breaks/image_to_image/demo"
_FINE_TUNING = "where_it_breaks/fine_tuning/demo"
TASKS = {
    "six networks that classify images": Task("image_classification/demo", ALL),
    "ResNet-9, until it is good": Task("image_classification/converged/demo"),
    "SSD": Task("object_detection/demo"),
    "SSD, its loss divided by 4096": Task(
        "object_detection/demo", without={"no loss scaling": "mixed, scale 2^-12"}
    ),
    "SSD, from a trained backbone": Task("object_detection/pretrained_demo"),
    "Faster R-CNN": Task("object_detection/faster_rcnn_demo"),
    "Faster R-CNN, its loss divided by 4096": Task(
        "object_detection/faster_rcnn_demo",
        without={"no loss scaling": "mixed, scale 2^-12"},
    ),
    "DeepSpeech 2": Task("speech_recognition/demo"),
    "translation": Task("translation/demo"),
    "bigLSTM": Task("language_model/demo"),
    "bigLSTM, mean over 32,768 words": Task("language_model/share"),
    "DCGAN": Task("image_generation/demo"),
    "autoencoder, mean over 12.6 million": Task(_AUTOENCODER),
    "autoencoder, mean over 6.3 million": Task(_AUTOENCODER, "batch 32"),
    "autoencoder, mean over 3.1 million": Task(_AUTOENCODER, "batch 16"),
    "super-resolution, mean over 720,000": Task(
        "where_it_breaks/super_resolution/demo"
    ),
    "fine-tuning, Adam at 1e-5": Task(_FINE_TUNING),
    "fine-tuning, Adam at 1e-5, else in FP32": Task(
        _FINE_TUNING, without={"no masters": "rounded weights"}
    ),
    "fine-tuning, SGD at 1e-3": Task(_FINE_TUNING, "sgd"),
    "fine-tuning, SGD at 1e-3, else in FP32": Task(
        _FINE_TUNING, "sgd", {"no masters": "rounded weights"}
    ),
}


def techniques(measured: Callable[[str], tuple[Comparison, Results]]) -> str:
    """Returns the table: the first measure of each task that has a margin.

    Args:
        measured: as `page.measured`.
    """
    rows, clear, count = [], 0, 0
    for name, task in TASKS.items():
        comparison, results = measured(task.place)
        measure = next(iter(comparison.margins))
        cells = []
        for column in COLUMNS:
            other = task.without.get(column)
            found = other and _difference(comparison, results, task, measure, other)
            cells.append(_cell(found) if found else "-")
            count += bool(found)
            clear += bool(found and found.is_clear_of_chance)
        rows.append([name, measure, *cells])
    return (
        "\n".join(markdown(["minus FP32", "measure", *COLUMNS], rows))
        + f"\n\nClear of chance: {clear} of {count}.\n"
    )


def _difference(
    comparison: Comparison, results: Results, task: Task, measure: str, other: str
) -> Difference | None:
    """Returns that of all pairs; a single run is compared with all seeds of FP32."""
    found = differences(comparison, results, measure, other).get(task.label)
    if found is None or found.count > 1:
        return found
    ((first, one),) = pairs(results, "fp32", other)[task.label]
    seeds = same_but_seed(results, first)
    if len(seeds) < 2:
        return found
    return difference_of_one(seeds, one, measure, found.margin)


def _cell(difference: Difference) -> str:
    if not math.isfinite(difference.mean):
        return "**NaN**"
    mean = shown(difference)
    mean = f"**{mean}**" if difference.is_clear_of_chance else mean
    what = f"{difference.count} pairs" if difference.count > 1 else "1 run"
    # So many pairs have an interval around this mean that excludes 0.
    needed = difference.pairs_within(abs(difference.mean))
    if needed is not None and not difference.is_clear_of_chance:
        what += f"; clear with {needed}"
    return f"{mean} ({interval(difference)}, {what})"
