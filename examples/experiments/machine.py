"""What a run was made on."""

import importlib.metadata
import os
import platform
from pathlib import Path

import keras
import tensorflow as tf

import keras_mp


def machine() -> dict[str, str | int]:
    """Returns processor, cores, GPU, instruction set of the kernels, and versions."""
    gpus = [
        tf.config.experimental.get_device_details(gpu).get("device_name", "GPU")
        for gpu in tf.config.list_physical_devices("GPU")
    ]
    info = keras_mp.ops.build_info()
    return {
        "processor": _processor(),
        "cores": os.cpu_count() or 1,
        "gpu": ", ".join(gpus) or "none",
        "kernels": info.get("cpu", info["route"]),
        "tensorflow": tf.__version__,
        "keras": keras.__version__,
        "keras_mp": importlib.metadata.version("keras_mp"),
    }


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    for line in info.read_text().splitlines() if info.is_file() else []:
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
