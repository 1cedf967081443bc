"""How long is a training step of whole models, and how much memory does it take?

`python benchmarks/training_step.py` prints a Markdown table: the translator of
examples/translation, ResNet-50 and MobileNetV2 on small images, a small Transformer,
decoders like GPT-2 with 256 and 1,024 tokens and 2,000 words, one with 50,257 words,
and that of keras-hub if it is installed; each in FP32, in mixed precision as Keras has
it, and in ours, where models of words have the loss that needs no logits. A second
table has some of them compiled by XLA. A step is `train_on_batch` of the compiled
model, its time the median of many; in each round the variants step one after the other,
so that what else the machine does slows all of them. The first step, which traces and
compiles, runs in a process of each variant alone. The memory is what three steps let
that process grow by at its peak. A ratio of ours to FP32 is bold above its goal: 1.0,
and for bfloat16 0.65 where the kernels have instructions for it. Names as arguments
choose models; `--xla` compiles all their steps.
"""

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ.setdefault("KERAS_BACKEND", "tensorflow")

import argparse
import time

from machine import alone, machine, marked, medians, peak
from training_models import MODELS
from variants import VARIANTS, goal, make_step

# XLA takes minutes to compile the others.
UNDER_XLA = ("MobileNetV2", "GPT-2-256", "GPT-2-50257-words")


def first_step(name, variant, xla):
    """Returns the seconds of the first step, and the MiB that three steps take."""
    before = peak()
    step = make_step(MODELS[name], variant, xla)
    start = time.perf_counter()
    step()
    seconds = time.perf_counter() - start
    step()
    step()
    return seconds, peak() - before


def print_rows(name, rounds, xla, only_medians):
    steps = [make_step(MODELS[name], variant, xla) for variant in VARIANTS]
    times = dict(zip(VARIANTS, medians(steps, rounds), strict=True))
    for variant, ms in times.items():
        ratio = ms / times["FP32"]
        cells = [name, variant, f"{ms:.0f}", marked(ratio, ratio <= goal(variant))]
        if only_medians:
            cells += ["", ""]
        else:
            seconds, mebibytes = alone(first_step, name, variant, xla)
            cells += [f"{seconds:.1f}", f"{mebibytes:.0f}"]
        print(f"| {' | '.join(cells)} |", flush=True)


def print_table(names, rounds, xla, only_medians):
    print(f"\nXLA: {xla}\n")
    print("| model | variant | step, ms | / FP32 | first step, s | peak memory, MiB |")
    print("|---|---|---|---|---|---|")
    for name in names:
        print_rows(name, rounds, xla, only_medians)


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(MODELS))
    parser.add_argument("--rounds", type=int, default=15, help="default 15")
    parser.add_argument("--xla", action="store_true", help="compile with XLA")
    parser.add_argument(
        "--only-medians",
        action="store_true",
        help="neither first steps nor memory, which take a process each",
    )
    arguments = parser.parse_args(argv)
    names, options = arguments.names, (arguments.rounds, arguments.only_medians)
    print(f"{machine()}; median of {arguments.rounds} steps")
    if not arguments.xla:
        print_table(names or MODELS, options[0], False, options[1])
    if arguments.xla or not names:
        print_table(names or UNDER_XLA, options[0], True, options[1])


if __name__ == "__main__":
    main()
