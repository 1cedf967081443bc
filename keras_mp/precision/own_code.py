"""Finds products and sums in the code of layers that are not Keras's."""

import dis
import inspect
from collections.abc import Iterator
from contextlib import suppress
from types import CodeType, FunctionType
from typing import Any

import keras

# Names of functions in keras.ops, keras.activations, tf, tf.nn and tf.linalg that
# compute products or sums in 16 bits. Keras's `mean` and `var` compute in FP32.
PRODUCTS_AND_SUMS = frozenset(
    {
        "adaptive_average_pool",
        "average",
        "average_pool",
        "avg_pool",
        "conv",
        "conv1d",
        "conv2d",
        "conv3d",
        "conv_transpose",
        "convolution",
        "correlate",
        "cumsum",
        "depthwise_conv",
        "depthwise_conv2d",
        "dot",
        "dot_product_attention",
        "einsum",
        "inner",
        "l2_normalize",
        "log_softmax",
        "logsumexp",
        "matmul",
        "matvec",
        "nanmean",
        "nansum",
        "norm",
        "normalize",
        "reduce_logsumexp",
        "reduce_mean",
        "reduce_std",
        "reduce_sum",
        "reduce_variance",
        "segment_sum",
        "separable_conv",
        "softmax",
        "std",
        "sum",
        "tensordot",
        "trace",
        "vdot",
    }
)
_LIBRARIES = ("keras", "keras_mp", "tensorflow", "numpy")


def products_and_sums(layer: keras.Layer) -> tuple[list[str], bool]:
    """Returns the products and sums in a layer's code, and whether it names float32.

    The bytecode of `call` is analysed, not run, and also the bytecode of the methods
    and functions it refers to, except in Keras, TensorFlow, NumPy and keras_mp. Which
    branch runs, and in which dtype, is not known.

    Args:
        layer: `keras.Layer`.
    """
    is_lambda = type(layer) is keras.layers.Lambda
    call = layer.function if is_lambda else getattr(type(layer), "call", None)
    waiting = [("call", call)]
    found, seen, casts = set(), set(), False
    while waiting:
        name, value = waiting.pop()
        if (operation := _operation(name, value)) is not None:
            found.add(operation)
        function = inspect.unwrap(_unwrap_method(value))
        if not isinstance(function, FunctionType) or function in seen:
            continue
        seen.add(function)
        if _package(function) in _LIBRARIES:
            continue
        casts |= any("float32" in code.co_consts for code in nested(function.__code__))
        waiting += _references(function, layer)
    return sorted(found), casts


def _unwrap_method(value: Any) -> Any:
    """Returns the function of a method or property, and other values unchanged."""
    return getattr(value, "__func__", None) or getattr(value, "fget", None) or value


# Stands for a value that is known only when the code runs.
_UNKNOWN = object()


def _operation(name: str, value: Any) -> str | None:
    """Returns the name in the table of what a function loads, None for another value.

    A value that is not known counts by the name it is loaded by. A sublayer, and a
    function of keras_mp or NumPy, is none.
    """
    names = [name]
    if value is not _UNKNOWN:
        if not callable(value) or _package(value) not in ("keras", "tensorflow"):
            return None
        names.append(getattr(value, "__name__", "").removesuffix("_v2"))
    return next((each for each in names if each in PRODUCTS_AND_SUMS), None)


def _package(value: Any) -> str:
    """Returns the package that made a function; none for a layer of Keras's."""
    if isinstance(value, keras.Layer):
        return ""
    return (getattr(value, "__module__", None) or "").partition(".")[0]


def _references(
    function: FunctionType, layer: keras.Layer
) -> Iterator[tuple[str, Any]]:
    """Yields the names that a function loads, each with its value or `_UNKNOWN`.

    An attribute of an object that is not known is looked up on the layer, and what a
    method that calls `super()` names, also in the classes above.
    """
    captured = _captured(function)
    classes = type(layer).__mro__
    owner = captured.get("__class__")
    above = classes[classes.index(owner) + 1 :] if owner in classes else ()
    for code in nested(function.__code__):
        value = None
        for instruction in dis.get_instructions(code):
            kind, name = instruction.opname, instruction.argval
            if kind == "EXTENDED_ARG":
                continue
            if kind in ("LOAD_ATTR", "LOAD_METHOD"):
                is_known = value is not None and value is not _UNKNOWN
                source = value if is_known else layer
                value = inspect.getattr_static(source, name, _UNKNOWN)
            elif kind == "LOAD_GLOBAL":
                value = function.__globals__.get(name)
            elif kind == "LOAD_DEREF":
                value = captured.get(name)
            elif "MATRIX_MULTIPLY" in kind or instruction.argrepr in ("@", "@="):
                name, value = "matmul", _UNKNOWN
            else:
                value = None
                continue
            yield name, value
        for cls in above:
            yield from ((k, v) for k, v in vars(cls).items() if k in code.co_names)


def _captured(function: FunctionType) -> dict[str, Any]:
    """Returns the variables of the function around that a function uses."""
    cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
    found = {}
    for name, cell in cells:
        with suppress(ValueError):  # it has no value yet
            found[name] = cell.cell_contents
    return found


def nested(code: CodeType | None) -> Iterator[CodeType]:
    """Yields the code object of a function and of the functions nested in it."""
    if code is None:
        return
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from nested(constant)
