"""What a benchmark ran on, and how long its steps take."""

import os
import platform
import statistics
import time
from pathlib import Path

import keras
import tensorflow as tf


def processor():
    """Returns the name of the processor."""
    info = Path("/proc/cpuinfo")
    for line in info.read_text().splitlines() if info.is_file() else []:
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def machine():
    """One line: processor, cores, GPU, versions."""
    gpus = [
        tf.config.experimental.get_device_details(gpu).get("device_name", "GPU")
        for gpu in tf.config.list_physical_devices("GPU")
    ]
    return ", ".join(
        [
            processor(),
            f"{os.cpu_count()} cores",
            *(gpus or ["no GPU"]),
            f"TensorFlow {tf.__version__}",
            f"Keras {keras.__version__}",
        ]
    )


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
