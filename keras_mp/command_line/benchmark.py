"""`keras-mp benchmark`: is mixed precision worth it on this machine?"""

import argparse
import contextlib
import dataclasses
import json
import logging
import os
import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from keras_mp.command_line.errors import check_new
from keras_mp.command_line.info import facts
from keras_mp.command_line.training_steps import BLOCKS, Size, Timing, time_recipes

STEPS, QUICK_STEPS = 30, 10
SECONDS = 240.0  # for the steps of all blocks, after XLA has compiled them
SIZES = {
    "dense": Size(batch=128, width=1024),
    "convolution": Size(batch=16, width=64, length=32),
    "LSTM": Size(batch=32, width=256, length=64),
    "Transformer": Size(batch=8, width=256, length=128),
}
QUICK_SIZES = {
    "dense": Size(batch=64, width=512),
    "convolution": Size(batch=8, width=32, length=32),
    "LSTM": Size(batch=16, width=128, length=32),
    "Transformer": Size(batch=4, width=128, length=64),
}
# Ratios that differ from 1 by less are those of a step that takes as long.
_SAME = 0.05
_ROW = "{:<12} {:<23} {:>9} {:>9} {:>10} {:>13} {:>15}"


def run(options: argparse.Namespace) -> bool:
    """Prints machine, times and advice, and writes the JSON that is asked for.

    Returns:
        bool, whether 16 bits are faster than float32.

    Raises:
        CommandError: the file for the JSON exists, or its folder does not.
    """
    if options.json:
        check_new(options.json)
    steps = QUICK_STEPS if options.quick else STEPS
    sizes = QUICK_SIZES if options.quick else SIZES
    info = machine()
    print(_one_line(info), end="\n\n")
    print(f"Training steps on the {info['device']}:")
    titles = ("step, ms", "XLA, ms", "/ float32", "weights, MiB", "optimizer, MiB")
    print(_ROW.format("block", "recipe", *titles), flush=True)
    measured = {}
    with quiet_tensorflow():
        for name, block in BLOCKS.items():
            seconds = SECONDS / len(BLOCKS)
            measured[name] = time_recipes(block, sizes[name], steps, seconds)
            print("\n".join(_rows(name, measured[name])), flush=True)
    means = mean_ratios(measured)
    for recipe, ratio in means.items():
        cells = ("all, mean", recipe, "", "", f"{ratio:.2f}", "", "")
        print(_ROW.format(*cells).rstrip())
    sentences = [*advice(measured), xla_advice(measured, info["gpu"] != "none")]
    print("", *sentences, sep="\n")
    if options.json:
        result = {
            "machine": info,
            "blocks": {
                name: [dataclasses.asdict(timing) for timing in timings]
                for name, timings in measured.items()
            },
            "mean_ratios": means,
            "advice": sentences,
        }
        options.json.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
        print(f"wrote {options.json}")
    return is_worth_it(measured)


def machine() -> dict[str, Any]:
    """Returns what is measured on: device, processor, GPU, kernels and versions."""
    info = facts()
    gpu = info["gpu"]
    has_gpu = not gpu.startswith("none")
    return {
        # TensorFlow runs a step on the first GPU, if it sees one.
        "device": f"GPU ({gpu})" if has_gpu else f"CPU ({info['processor']})",
        "processor": info["processor"],
        "cores": os.cpu_count(),
        "gpu": gpu if has_gpu else "none",
        "kernels": info.get("cpu", info["route"]),
        "tensorflow": info["tensorflow"],
        "keras": info["keras"],
    }


def mean_ratios(measured: Mapping[str, Sequence[Timing]]) -> dict[str, float]:
    """Returns for each recipe the geometric mean of its ratios to float32.

    Each ratio is of the faster of the two ways, without XLA and with it.

    Args:
        measured: for each block the timings of all recipes, float32 first.
    """
    ratios: dict[str, list[float]] = {}
    for in_float32, *others in measured.values():
        for timing in others:
            ratio = timing.fastest_ms / in_float32.fastest_ms
            ratios.setdefault(timing.recipe.name, []).append(ratio)
    return {name: statistics.geometric_mean(each) for name, each in ratios.items()}


def is_worth_it(measured: Mapping[str, Sequence[Timing]]) -> bool:
    """Tells whether a recipe of 16 bits is faster than float32."""
    return min(mean_ratios(measured).values()) < 1 - _SAME


def advice(measured: Mapping[str, Sequence[Timing]]) -> tuple[str, str]:
    """Returns what the measurements say of speed and of memory, a sentence each."""
    means = mean_ratios(measured)
    fastest, ratio = min(means.items(), key=lambda item: item[1])
    time = f"the fastest recipe, {fastest}, takes {ratio:.2f} of the time of float32"
    if is_worth_it(measured):
        first = f"Worth it for speed on this machine: {time}."
    elif ratio <= 1 + _SAME:
        first = f"On this machine 16 bits take about as long as float32: {time}."
    else:
        first = f"Not worth it for speed on this machine: {time}."
    held = {
        recipe: sum(
            timing.weights_bytes + timing.optimizer_bytes
            for timings in measured.values()
            for timing in timings
            if timing.recipe.policy == recipe
        )
        for recipe in ("float32", "float16")
    }
    share = held["float16"] / held["float32"]
    return first, (
        f"In float16, with masters, weights and optimizer take {share:.2f} of their "
        "memory in float32; activations and gradients are not counted here."
    )


def xla_advice(measured: Mapping[str, Sequence[Timing]], by_default: bool) -> str:
    """Returns where the other way than the default of `fit` is faster: a sentence.

    Args:
        measured: for each block the timings of all recipes, float32 first.
        by_default: whether `fit` compiles with XLA on this machine, as on a GPU.
    """
    means = mean_ratios(measured)
    fastest = min(means, key=lambda recipe: means[recipe])
    blocks = [
        block
        for block, timings in measured.items()
        for timing in timings
        if timing.recipe.name == fastest and _is_other_way_faster(timing, by_default)
    ]
    default, other = ("with", "without") if by_default else ("without", "with")
    start = f"`fit` compiles {default} XLA here"
    if not blocks:
        return f"{start}; in {fastest} no block is faster {other} it."
    return (
        f"{start}, but {fastest} is faster {other} it in: {', '.join(blocks)}. For "
        f"such a model, call model.compile(..., jit_compile={not by_default})."
    )


def _is_other_way_faster(timing: Timing, by_default: bool) -> bool:
    ways = timing.step_ms, timing.xla_step_ms
    other, default = ways if by_default else reversed(ways)
    return other < default * (1 - _SAME)


def _one_line(info: Mapping[str, Any]) -> str:
    return (
        f"{info['processor']}, {info['cores']} cores, GPU: {info['gpu']}, kernels: "
        f"{info['kernels']}, TensorFlow {info['tensorflow']}, Keras {info['keras']}"
    )


@contextlib.contextmanager
def quiet_tensorflow() -> Iterator[None]:
    """Hides its warning that a function is traced again: each model traces its own."""
    logger = logging.getLogger("tensorflow")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)


def _rows(block: str, timings: Sequence[Timing]) -> list[str]:
    return [
        _ROW.format(
            block,
            timing.recipe.name,
            f"{timing.step_ms:.1f}",
            f"{timing.xla_step_ms:.1f}",
            f"{timing.fastest_ms / timings[0].fastest_ms:.2f}",
            f"{timing.weights_bytes / 2**20:.2f}",
            f"{timing.optimizer_bytes / 2**20:.2f}",
        )
        for timing in timings
    ]
