"""`build_info`: how the ops run on this machine, and why one route is missing."""

import ctypes
import platform
from pathlib import Path

import tensorflow as tf

from keras_mp.ops.kernels import dispatch, native


def build_info() -> dict[str, str]:
    """Returns how the ops run on this machine; `python -m keras_mp info` prints it.

    It also loads the native library, as otherwise the first call of an op does. Call it
    before `tf.saved_model.load` loads a model that contains the ops.

    Returns:
        Dict of str with these keys.

        - `processor`, `gpu`: their names, or why TensorFlow sees no GPU
        - `tensorflow`: its version
        - `mode`: what `KERAS_MP_OPS` asks for
        - `route`: what `fp16_gemm` takes, `"native"` or `"reference"`
        - `library`, `built_for`, `compiler`: the path of the native library, if there
          is one, the TensorFlow version that it was built for, and with what
        - `cpu`, `cuda`: the instruction set and the architectures of its kernels
        - `missing`: why the library cannot be used, or not on the GPU

    Example:

    >>> keras_mp.ops.build_info()["route"] in ("native", "reference")
    True
    """
    gpus = tf.config.list_physical_devices("GPU")
    info = {
        "processor": _processor(),
        "gpu": ", ".join(map(_gpu, gpus)) if gpus else f"none: {_why_no_gpu()}",
        "tensorflow": tf.__version__,
        "mode": native.mode(),
        "route": "reference",
    }
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


def _why_no_gpu() -> str:
    if not tf.test.is_built_with_cuda():
        return "this TensorFlow is built without CUDA"
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        return "this machine has no NVIDIA driver"
    return (
        "TensorFlow sees none. Its CUDA comes with pip install "
        f"'tensorflow[and-cuda]=={tf.__version__}'; CUDA_VISIBLE_DEVICES may hide GPUs"
    )


def _gpu(device: tf.config.PhysicalDevice) -> str:
    details = tf.config.experimental.get_device_details(device)
    return str(details.get("device_name", "GPU"))
