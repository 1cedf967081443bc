"""Which of two computations runs: a kernel, or the formula in TensorFlow."""

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from keras_mp.ops import native


def choose(
    formula: Callable[..., Any], kernel: Callable[..., Any] | None, *arguments: Any
) -> Any:
    """Computes with a kernel, and with the formula where XLA compiles or it is None.

    While a function is traced, nobody knows whether XLA will compile it: an op of the
    native library tells when the graph runs. Without the library, a graph takes the
    formula.

    TensorFlow knows no gradient of the kernels, but asks for it where two tapes record:
    so it sees constants here, and is told the gradient of the formula.

    Args:
        formula: of the arguments.
        kernel: the same, of the same number of results.
        *arguments: tensors.
    """

    @tf.custom_gradient
    def chosen(*arguments: tf.Tensor) -> tuple[Any, Any]:
        def gradient(*upstream: tf.Tensor) -> Any:
            with tf.GradientTape() as tape:
                tape.watch(arguments)
                results = formula(*arguments)
            slopes = upstream if isinstance(results, tuple) else upstream[0]
            return tape.gradient(results, arguments, slopes)

        constants = [tf.stop_gradient(x) for x in arguments]
        return _choose(formula, kernel, constants), gradient

    return chosen(*arguments)


def _choose(
    formula: Callable[..., Any], kernel: Callable[..., Any] | None, arguments: list[Any]
) -> Any:
    if kernel is None:
        return formula(*arguments)
    if tf.executing_eagerly():
        return kernel(*arguments)
    ops = native.library()
    if ops is None:
        return formula(*arguments)
    branches = [lambda: kernel(*arguments), lambda: formula(*arguments)]
    return tf.switch_case(ops.keras_mp_in_xla(), branches)


def devices(kind: str) -> list[Any]:
    """Returns the devices that TensorFlow sees: `"CPU"`, `"GPU"` or `"TPU"`."""
    return tf.config.list_logical_devices(kind)


def has_accelerator() -> bool:
    """Tells whether TensorFlow sees a GPU or TPU."""
    return bool(devices("GPU") or devices("TPU"))


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
