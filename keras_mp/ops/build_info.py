"""`build_info`: which routes the ops have on this machine, and why one is missing."""

import tensorflow as tf

from keras_mp.ops.kernels import dispatch, native


def build_info() -> dict[str, str]:
    """Tells how the ops run here; `python -m keras_mp.info` prints it.

    It also loads the native library, which otherwise the first call of an op does:
    call it before `tf.saved_model.load` reads a model that was saved with the ops.

    Returns:
        Texts by name: the versions of `tensorflow` and, where there is a native
        library, the `compiler` and the TensorFlow it was `built_for`; the `mode` that
        `KERAS_MP_OPS` asks for; the `route` that `fp16_gemm` takes; the `cpu`
        instruction set and the `cuda` architectures of the native kernels; and under
        `missing` why the native library cannot be used, or not on the GPU.

    Example:

    >>> keras_mp.ops.build_info()["route"] in ("native", "reference")
    True
    """
    info = {"tensorflow": tf.__version__, "mode": native.mode(), "route": "reference"}
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
