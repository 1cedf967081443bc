"""What a run was made on."""

import importlib.metadata
import os

import keras
import tensorflow as tf

import keras_mp


def machine() -> dict[str, str | int]:
    """Returns processor, cores, GPU, instruction set of the kernels, and versions."""
    info = keras_mp.ops.build_info()
    return {
        "processor": info["processor"],
        "cores": os.cpu_count() or 1,
        "gpu": info["gpu"].partition(": ")[0],
        "kernels": info.get("cpu", info["route"]),
        "tensorflow": tf.__version__,
        "keras": keras.__version__,
        "keras_mp": importlib.metadata.version("keras_mp"),
    }
