"""What a benchmark ran on, and how much time and memory its steps take."""

import datetime
import multiprocessing
import os
import re
import statistics
import subprocess
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import keras
import tensorflow as tf

import keras_mp

HERE = Path(__file__).parent


def processor():
    """Returns the name of the processor."""
    return keras_mp.ops.build_info()["processor"]


def gpus():
    """Returns the names of the GPUs."""
    names = keras_mp.ops.build_info()["gpu"]
    return [] if names.startswith("none: ") else names.split(", ")


def instruction_set():
    """Returns that of the kernels of keras_mp, or `reference` where it has none."""
    info = keras_mp.ops.build_info()
    return info.get("cpu", info["route"])


def commit():
    """Returns the name of the commit, with `-dirty` where code has changed since.

    Not where tables have, which a benchmark before this one may have written.
    """

    def git(*command):
        done = subprocess.run(("git", *command), cwd=HERE.parent, capture_output=True)
        return done.stdout.decode().strip()

    try:
        name = git("rev-parse", "--short", "HEAD") or "unknown"
        code = ("keras_mp", "custom_ops", "benchmarks/*.py")
        return name + "-dirty" * bool(git("status", "--porcelain", "--", *code))
    except OSError:
        return "unknown"


def generation():
    """Returns family and model of an x86 processor, which its name may not tell."""
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return ""
    found = re.search(r"^cpu family\s*: (\d+)\nmodel\s*: (\d+)$", text, re.MULTILINE)
    return " (family {}, model {})".format(*found.groups()) if found else ""


def machine():
    """One line: processor, cores, GPU, versions, instruction sets, date, commit."""
    held = os.environ.get("ONEDNN_MAX_CPU_ISA")
    return ", ".join(
        [
            processor() + generation(),
            f"{os.cpu_count()} cores",
            *(gpus() or ["no GPU"]),
            f"TensorFlow {tf.__version__}" + (f" held to {held}" if held else ""),
            f"Keras {keras.__version__}",
            f"keras_mp with {instruction_set()}",
            f"{datetime.date.today()}",
            f"commit {commit()}",
        ]
    )


def directory(processor, gpus, instruction_set):
    """Returns the name of the directory in results/ for the tables of a machine.

    The instruction set is part of it: a processor may not tell its generation by name.
    """
    plain = re.sub(r"\((R|TM)\)|@.*|\b(CPU|Processor|\d+-Core)\b", " ", processor)
    words = " ".join([plain, *gpus, instruction_set]).lower()
    return "_".join(re.findall(r"[a-z0-9]+", words))


def marked(ratio, met):
    """Returns a ratio for a table, bold where it misses its goal."""
    return f"{ratio:.2f}" if met else f"**{ratio:.2f}**"


def medians(steps, rounds):
    """Milliseconds of each step, after one run that compiles and one that warms up.

    In each round they run one after the other, so that what else the machine does slows
    all of them.
    """
    for step in steps:
        step()
        step()
    times = [[] for _ in steps]
    for _ in range(rounds):
        for step, spent in zip(steps, times, strict=True):
            start = time.perf_counter()
            step()
            spent.append(1e3 * (time.perf_counter() - start))
    return [statistics.median(spent) for spent in times]


def peak():
    """Returns the most MiB of memory that this process has held, on Linux."""
    # `ru_maxrss` would begin with what the parent process held.
    status = Path("/proc/self/status").read_text()
    return int(re.search(r"VmHWM:\s+(\d+)", status)[1]) / 1024


def forget_peak():
    """Lets `peak` begin with what this process holds now."""
    Path("/proc/self/clear_refs").write_text("5")


def alone(function, *arguments):
    """Returns what a function returns in a process of its own.

    It is a copy of one that has imported keras_mp and run nothing: each begins with the
    same memory, and none waits for the imports.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["keras_mp"])
    with ProcessPoolExecutor(1, context) as pool:
        return pool.submit(function, *arguments).result()
