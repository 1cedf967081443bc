"""Dispatch: which results a native kernel computes on this machine."""

import os
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from keras_mp.ops.kernels import native, selftest, update
from keras_mp.ops.kernels.selftest_ops import product_problem, reduction_problem
from keras_mp.ops.kernels.selftest_update import update_problem

# What computes softmax, normalization and sums on a GPU. No GPU has measured these
# kernels yet. The native library also reads the switch, when it is loaded: it registers
# them if they are on.
GPU_REDUCTIONS = "KERAS_MP_GPU_REDUCTIONS"
_GPU_REDUCTIONS_BY = ("formula", "kernels")


def devices(kind: str) -> list[Any]:
    """Returns the devices that TensorFlow sees: `"CPU"`, `"GPU"` or `"TPU"`."""
    return tf.config.list_logical_devices(kind)


def has_accelerator() -> bool:
    """Tells whether TensorFlow sees a GPU or TPU."""
    return bool(devices("GPU") or devices("TPU"))


def multiplies_bfloat16() -> bool:
    """Tells whether oneDNN multiplies bfloat16 on this CPU with FP32 accumulation.

    If oneDNN does not, TensorFlow's kernels for CPUs accumulate in bfloat16.
    """
    is_off = os.environ.get("TF_ENABLE_ONEDNN_OPTS", "1").lower() in ("0", "false")
    is_limited = {"ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA"} & os.environ.keys()
    return (
        not is_off
        and not is_limited
        and native.library() is not None
        and native.cpu_instructions() in ("avx512_bf16", "amx_bf16", "amx_fp16")
    )


def has_cpu_kernels() -> bool:
    """Tells whether the kernels that exist for CPUs only are to be used.

    They are where the native library is loaded and TensorFlow sees no accelerator.
    """
    return native.library() is not None and not has_accelerator()


def gpu_reductions_are_on() -> bool:
    """Tells whether kernels are to compute softmax, normalization and sums on a GPU."""
    chosen = os.environ.get(GPU_REDUCTIONS) or "formula"
    if chosen not in _GPU_REDUCTIONS_BY:
        raise ValueError(
            f"The environment variable {GPU_REDUCTIONS} must be one of "
            f"{_GPU_REDUCTIONS_BY}: what computes softmax, normalization and sums on a "
            f"GPU. Received: {GPU_REDUCTIONS}={chosen!r}."
        )
    return chosen == "kernels"


def has_reduction_kernels() -> bool:
    """Tells whether kernels compute softmax, normalization and sums.

    They do on a CPU; on a GPU where `KERAS_MP_GPU_REDUCTIONS` is `kernels` and the
    self-test finds nothing wrong.
    """
    if native.library() is None or devices("TPU"):
        return False
    if not has_accelerator():
        return True
    return (
        gpu_reductions_are_on()
        and native.has_cuda()
        and selftest.passes(reduction_problem)
    )


def has_gemm_kernel(dtype: tf.DType) -> bool:
    """Tells whether the native matrix product runs on every device of this machine.

    Without a kernel for the GPU, TensorFlow would copy the matrices to the CPU.

    Args:
        dtype: `tf.DType` of the matrices, float16 or bfloat16.
    """
    if native.library() is None or devices("TPU"):
        return False
    if not devices("GPU"):
        return True
    return native.has_cuda() and selftest.passes(product_problem, dtype.name)


def has_update_kernels(variables: Sequence[Any]) -> bool:
    """Tells whether kernels run the update step: variables on one CPU or CUDA device.

    Args:
        variables: list of `keras.Variable` or `tf.Variable`.
    """
    if native.library() is None:
        return False
    places = update.devices_of(variables)
    if len(places) != 1:
        return False
    kind = tf.DeviceSpec.from_string(*places).device_type
    if kind != "GPU":
        return kind == "CPU"
    return native.has_cuda() and selftest.passes(update_problem)
