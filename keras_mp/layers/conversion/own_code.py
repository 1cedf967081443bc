"""Which products and sums the code of a layer that is not Keras's computes."""

import dis
import inspect
from collections.abc import Iterator
from types import CodeType, FunctionType
from typing import Any

import keras

# Functions of keras.ops, keras.activations, tf, tf.nn and tf.linalg.
PRODUCTS_AND_SUMS = frozenset(
    {
        "adaptive_average_pool",
        "average",
        "average_pool",
        "avg_pool",
        "batch_normalization",
        "conv",
        "conv1d",
        "conv2d",
        "conv3d",
        "conv_transpose",
        "cumsum",
        "depthwise_conv",
        "dot",
        "dot_product_attention",
        "einsum",
        "inner",
        "layer_normalization",
        "log_softmax",
        "logsumexp",
        "matmul",
        "matvec",
        "mean",
        "moments",
        "norm",
        "normalize",
        "reduce_logsumexp",
        "reduce_mean",
        "reduce_std",
        "reduce_sum",
        "reduce_variance",
        "rms_normalization",
        "segment_sum",
        "separable_conv",
        "softmax",
        "std",
        "sum",
        "tensordot",
        "trace",
        "var",
        "vdot",
    }
)
_HOSTS = ("keras", "keras_mp", "tensorflow", "numpy")


def products_and_sums(layer: Any) -> tuple[list[str], bool]:
    """Returns which the layer's own `call` refers to, and whether it names float32.

    The code is read, not run: that of `call`, and of the methods and functions that it
    refers to, as far as they are neither Keras's nor TensorFlow's.

    Args:
        layer: `keras.Layer`.
    """
    is_lambda = type(layer) is keras.layers.Lambda
    waiting = [layer.function if is_lambda else getattr(type(layer), "call", None)]
    found, seen, casts = set(), set(), False
    while waiting:
        function = inspect.unwrap(_function_of(waiting.pop()))
        if not isinstance(function, FunctionType) or function in seen:
            continue
        seen.add(function)
        if _is_hosts(function):
            continue
        casts |= any("float32" in code.co_consts for code in nested(function.__code__))
        for name, value in _references(function, layer):
            if name in PRODUCTS_AND_SUMS and _is_operation(value):
                found.add(name)
            waiting.append(value)
    return sorted(found), casts


def _function_of(value: Any) -> Any:
    """Returns the function inside of a method or property."""
    return getattr(value, "__func__", None) or getattr(value, "fget", None) or value


# What stands for a value that is only known when the code runs.
_UNKNOWN = object()


def _is_operation(value: Any) -> bool:
    """Tells whether a name of the table can be what it says: not a sublayer, say."""
    return value is _UNKNOWN or (callable(value) and _is_hosts(value))


def _is_hosts(value: Any) -> bool:
    module = getattr(value, "__module__", None) or ""
    return module.partition(".")[0] in _HOSTS and not isinstance(value, keras.Layer)


def _references(function: FunctionType, layer: Any) -> Iterator[tuple[str, Any]]:
    """Yields the names that the code loads, each with its value or `_UNKNOWN`.

    An attribute is looked up on the layer, whatever the code has it of.
    """
    for code in nested(function.__code__):
        for instruction in dis.get_instructions(code):
            name = instruction.argval
            if instruction.opname == "BINARY_MATRIX_MULTIPLY" or (
                instruction.opname == "BINARY_OP" and instruction.argrepr == "@"
            ):
                yield "matmul", _UNKNOWN
            elif instruction.opname == "LOAD_GLOBAL":
                yield name, function.__globals__.get(name)
            elif instruction.opname in ("LOAD_ATTR", "LOAD_METHOD"):
                yield name, inspect.getattr_static(layer, name, _UNKNOWN)


def nested(code: CodeType | None) -> Iterator[CodeType]:
    """Yields the code of a function and of those inside it, if there is any."""
    if code is None:
        return
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from nested(constant)
