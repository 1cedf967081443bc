"""`build_info`: how the ops run on this machine, and why one route is missing."""

import platform
from pathlib import Path

import tensorflow as tf

from keras_mp.ops.kernels import dispatch, native


def build_info() -> dict[str, str]:
    """Returns how the ops run on this machine; `python -m keras_mp info` prints it.

    It also loads the native library, as otherwise the first call of an op does. Call it
    before `tf.saved_model.load` loads a model that contains the ops.

    Returns:
        A dict of strings: the names of the `processor` and, if TensorFlow sees one, of
        the `gpu`; the version of `tensorflow`; the `mode` set by `KERAS_MP_OPS`; the
        `route` that `fp16_gemm` takes, `"native"` or `"reference"`; if there is a
        native library, its path (`library`), the TensorFlow version it was `built_for`,
        its `compiler`, and the `cpu` instruction set and `cuda` architectures of its
        kernels; under `missing`, why the library cannot be used, or not on the GPU.

    Example:

    >>> keras_mp.ops.build_info()["route"] in ("native", "reference")
    True
    """
    info = {"processor": _processor()}
    gpus = tf.config.list_physical_devices("GPU")
    if gpus:
        info["gpu"] = ", ".join(map(_gpu, gpus))
    info |= {"tensorflow": tf.__version__, "mode": native.mode(), "route": "reference"}
    try:
        facts = native.build_facts()
        info |= {
            "library": str(native.LIBRARY),
            "built_for": facts["tensorflow"],
            "compiler": facts["compiler"],
            "cuda": facts["cuda"] or "none: built without CUDA",
        }
        if info["mode"] != "reference":
            native.load()
            info |= {"route": "native", "cpu": native.cpu_instructions()}
            problem = native.cuda_problem()
            if dispatch.devices("GPU") and problem:
                info |= {"route": "reference", "missing": f"on the GPU: {problem}"}
    except native.NativeLibraryError as error:
        info["missing"] = str(error)
    return info


def _processor() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    for line in cpuinfo.read_text().splitlines() if cpuinfo.is_file() else []:
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _gpu(device: tf.config.PhysicalDevice) -> str:
    details = tf.config.experimental.get_device_details(device)
    return str(details.get("device_name", "GPU"))
