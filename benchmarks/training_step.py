"""How long is a training step of whole models, and how much memory does it take?

`python benchmarks/training_step.py` prints a Markdown table: the translator of
examples/translation, ResNet-50 and MobileNetV2 on small images, a small Transformer,
decoders like GPT-2 with 256 and 1,024 tokens and 2,000 words, one with 50,257 words,
and that of keras-hub if it is installed; each in FP32, in mixed precision as Keras has
it, and in ours, where models of words have the loss that needs no logits; and each
without XLA and compiled by it. A step is `train_on_batch` of the compiled model, its
time the median of many; in each round all steps of a model run one after the other, so
that what else the machine does slows all of them. The first step, which traces and
compiles, runs in a process of each variant alone. The memory is what three steps let
that process grow by at its peak. "Best" divides the faster way by the faster way of
FP32. A ratio of ours to FP32 is bold above its goal: 1.0, and for bfloat16 0.65 where
the kernels have instructions for it. Names as arguments choose models.

`--torch PYTHON` names an interpreter that has PyTorch, in an environment of its own:
the decoders like GPT-2 get rows for the same decoder there, in FP32 and with autocast
to bfloat16, in the same rounds, with the cross entropy of logits. What these rows call
XLA is `torch.compile`, and their ratios are to Keras's FP32.
"""

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ.setdefault("KERAS_BACKEND", "tensorflow")

import argparse
import json
import subprocess
import time

from machine import HERE, alone, machine, marked, medians, peak
from training_models import MODELS, gpt2
from variants import VARIANTS, goal, make_step

OF_A_WAY = ("step, ms", "/ FP32", "first step, s", "peak memory, MiB")
COLUMNS = [
    "model",
    "variant",
    *OF_A_WAY,
    *(f"XLA: {name}" for name in OF_A_WAY),
    "best",
]
WITH_XLA = (False, True)
PYTORCH = {"PyTorch, FP32": "float32", "PyTorch, bfloat16": "bfloat16"}


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


def print_row(cells):
    print(f"| {' | '.join(cells)} |", flush=True)


class PyTorchStep:
    """A training step of a decoder in PyTorch, in a process of its own.

    Args:
        python: the interpreter.
        name: of the decoder in `MODELS`.
        dtype: "float32" or "bfloat16".
        compiled: whether `torch.compile` compiles it.
    """

    def __init__(self, python, name, dtype, compiled):
        given = {"words": 2000} | MODELS[name].keywords
        sizes = [given[key] for key in ("tokens", "batch", "words")]
        command = [python, HERE / "gpt2_in_pytorch.py", dtype, int(compiled), *sizes]
        self._process = subprocess.Popen(
            [*map(str, command), str(os.cpu_count())],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            # Else a first step may find what an earlier run has compiled.
            env=os.environ | {"TORCHINDUCTOR_FORCE_DISABLE_CACHES": "1"},
        )
        #: Seconds of the first step, and the MiB that three steps take.
        self.first_step = json.loads(self._process.stdout.readline())

    def __call__(self):
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        self._process.stdout.readline()

    def close(self):
        self._process.communicate()


def print_rows(name, rounds, only_medians, python):
    ways = [(variant, xla) for variant in VARIANTS for xla in WITH_XLA]
    steps = {way: make_step(MODELS[name], *way) for way in ways}
    has_peer = python and getattr(MODELS[name], "func", None) is gpt2
    peers = {
        (variant, compiled): PyTorchStep(python, name, dtype, compiled)
        for variant, dtype in (PYTORCH.items() if has_peer else ())
        for compiled in WITH_XLA
    }
    steps |= peers
    times = dict(zip(steps, medians(steps.values(), rounds), strict=True))
    for peer in peers.values():
        peer.close()
    for variant in dict.fromkeys(variant for variant, _ in steps):
        cells = [name, variant]
        both = [(times[variant, xla], times["FP32", xla]) for xla in WITH_XLA]
        for xla, (ms, fp32) in zip(WITH_XLA, both, strict=True):
            cells += [f"{ms:.0f}", ratio(variant, ms, fp32)]
            if only_medians:
                cells += ["-", "-"]
            else:
                peer = peers.get((variant, xla))
                seconds, mebibytes = (
                    peer.first_step if peer else alone(first_step, name, variant, xla)
                )
                cells += [f"{seconds:.1f}", f"{mebibytes:.0f}"]
        best, best_fp32 = map(min, zip(*both, strict=True))
        print_row([*cells, ratio(variant, best, best_fp32)])


def ratio(variant, ms, fp32):
    return marked(ms / fp32, variant in PYTORCH or ms / fp32 <= goal(variant))


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(MODELS))
    parser.add_argument("--rounds", type=int, default=15, help="default 15")
    parser.add_argument(
        "--only-medians",
        action="store_true",
        help="neither first steps nor memory, which take a process each",
    )
    parser.add_argument("--torch", metavar="PYTHON", help="an interpreter with PyTorch")
    arguments = parser.parse_args(argv)
    print(f"{machine()}; median of {arguments.rounds} steps\n")
    print_row(COLUMNS)
    print_row(["---"] * len(COLUMNS))
    for name in arguments.names or MODELS:
        print_rows(name, arguments.rounds, arguments.only_medians, arguments.torch)


if __name__ == "__main__":
    main()
