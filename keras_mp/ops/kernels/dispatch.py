"""Which of two computations runs: a kernel, or the formula in TensorFlow."""

import os
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from keras_mp.ops.kernels import native


def choose(
    formula: Callable[..., Any], kernel: Callable[..., Any] | None, *arguments: Any
) -> Any:
    """Computes with a kernel, or with the formula where there is none.

    A kernel is an op that XLA compiles to the formula, and whose gradient is
    registered. Tapes see the formula as one operation, too: what it computes on the way
    is not held, and where two tapes ask for its gradient it is computed again.

    Args:
        formula: of the arguments.
        kernel: the same; or None.
        *arguments: tensors.
    """
    if kernel is not None:
        return kernel(*arguments)

    @tf.custom_gradient
    def computed(*arguments: tf.Tensor) -> tuple[Any, Any]:
        def gradient(*upstream: tf.Tensor) -> Any:
            return slopes_of(formula, arguments, upstream)

        constants = [tf.stop_gradient(x) for x in arguments]
        return formula(*constants), gradient

    return computed(*arguments)


def slopes_of(
    formula: Callable[..., Any],
    arguments: Sequence[tf.Tensor],
    upstream: Sequence[tf.Tensor],
) -> list[tf.Tensor | None]:
    """Returns the gradients of the arguments, by the operations of the formula.

    Args:
        formula: of the arguments, with one result or a tuple.
        arguments: tensors.
        upstream: the gradient of each result.
    """
    with tf.GradientTape() as tape:
        tape.watch(arguments)
        results = formula(*arguments)
    several = isinstance(results, tuple)
    slopes = tape.gradient(
        results, list(arguments), tuple(upstream) if several else upstream[0]
    )
    return list(slopes)


def devices(kind: str) -> list[Any]:
    """Returns the devices that TensorFlow sees: `"CPU"`, `"GPU"` or `"TPU"`."""
    return tf.config.list_logical_devices(kind)


def has_accelerator() -> bool:
    """Tells whether TensorFlow sees a GPU or TPU."""
    return bool(devices("GPU") or devices("TPU"))


def multiplies_bfloat16() -> bool:
    """Tells whether oneDNN multiplies bfloat16 on this CPU, and sums it in FP32.

    TensorFlow's other kernels of a CPU sum in bfloat16.
    """
    is_off = os.environ.get("TF_ENABLE_ONEDNN_OPTS", "1").lower() in ("0", "false")
    is_held = {"ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA"} & os.environ.keys()
    return (
        not is_off
        and not is_held
        and native.library() is not None
        and native.cpu_instructions() == "avx512_bf16"
    )


def has_kernels() -> bool:
    """Tells whether the native kernels are there, and made for this machine: a CPU."""
    return native.library() is not None and not has_accelerator()


def has_product() -> bool:
    """Tells whether the native product is there for every device of this machine.

    Where it is not, TensorFlow would place it on the CPU, whatever that costs.
    """
    if native.library() is None or devices("TPU"):
        return False
    return not devices("GPU") or native.has_cuda()
