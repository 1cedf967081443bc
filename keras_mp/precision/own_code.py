"""Finds products and sums in the code of layers that are not Keras's."""

import dis
import inspect
from collections.abc import Iterator
from types import CodeType, FunctionType
from typing import Any

import keras

# Names of functions in keras.ops, keras.activations, tf, tf.nn and tf.linalg.
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
_LIBRARIES = ("keras", "keras_mp", "tensorflow", "numpy")


def products_and_sums(layer: Any) -> tuple[list[str], bool]:
    """Returns the products and sums in a layer's code, and whether it names float32.

    The bytecode of `call` is analysed, not run, and also the bytecode of the methods
    and functions it refers to, except in Keras, TensorFlow, NumPy and keras_mp.

    Args:
        layer: `keras.Layer`.
    """
    is_lambda = type(layer) is keras.layers.Lambda
    waiting = [layer.function if is_lambda else getattr(type(layer), "call", None)]
    found, seen, casts = set(), set(), False
    while waiting:
        function = inspect.unwrap(_unwrap_method(waiting.pop()))
        if not isinstance(function, FunctionType) or function in seen:
            continue
        seen.add(function)
        if _is_library_code(function):
            continue
        casts |= any("float32" in code.co_consts for code in nested(function.__code__))
        for name, value in _references(function, layer):
            if name in PRODUCTS_AND_SUMS and _is_operation(value):
                found.add(name)
            waiting.append(value)
    return sorted(found), casts


def _unwrap_method(value: Any) -> Any:
    """Returns the function of a method or property, and other values unchanged."""
    return getattr(value, "__func__", None) or getattr(value, "fget", None) or value


# Stands for a value that is known only when the code runs.
_UNKNOWN = object()


def _is_operation(value: Any) -> bool:
    """Tells whether a value with a name of the table can be that function.

    A sublayer of that name, for example, is not.
    """
    return value is _UNKNOWN or (callable(value) and _is_library_code(value))


def _is_library_code(value: Any) -> bool:
    module = getattr(value, "__module__", None) or ""
    return module.partition(".")[0] in _LIBRARIES and not isinstance(value, keras.Layer)


def _references(function: FunctionType, layer: Any) -> Iterator[tuple[str, Any]]:
    """Yields the names that a function loads, each with its value or `_UNKNOWN`.

    An attribute is looked up on the layer, since the object it is read from is not
    known.
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
    """Yields the code object of a function and of the functions nested in it."""
    if code is None:
        return
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from nested(constant)
