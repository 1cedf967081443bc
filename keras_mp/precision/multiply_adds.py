"""How many multiply-adds the products of a model make, and how many of them in FP16."""

import functools
import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import keras

from keras_mp.precision.compute_dtype import is_below_fp32
from keras_mp.precision.model_index import ModelIndex

# What changes no number of its first input.
_MOVES = frozenset(
    {"Identity", "IdentityN", "Reshape", "Transpose", "ExpandDims", "Squeeze"}
    | {"Pad", "PadV2", "StridedSlice", "EnsureShape", "BroadcastTo", "ConcatV2"}
)
_CONVOLUTIONS = frozenset(
    {"Conv2D", "Conv3D", "DepthwiseConv2dNative", "KerasMp>DepthwiseConv"}
)


def float16_share(model: keras.Model, x: Any) -> float:
    """Returns the share of multiply-adds in the forward pass with FP16 inputs.

    The graph of the model is traced and its matrix products are counted: in layers, and
    in the code of layers; but not in loops over time. A layer in FP32 multiplies in
    FP32, whatever its inputs were before.

    Args:
        model: `keras.Model`, built.
        x: tensor, or a structure of several: a batch of inputs.

    Returns:
        float from 0 to 1; 1 without matrix products.
    """
    import tensorflow as tf

    def forward() -> Any:
        with keras.StatelessScope():  # losses and statistics of the graph do not stay
            return model(x, training=True)

    with _calls_of(model) as calls:
        traced = tf.function(forward, autograph=False).get_concrete_function()
    operations = traced.graph.get_operations()
    in_fp32 = [False] * len(operations)
    for begin, end, layer in sorted(calls, key=lambda call: call[0]):  # inner ones last
        is_fp32 = layer.compute_dtype == "float32" and not is_below_fp32(layer)
        in_fp32[begin:end] = [is_fp32] * (end - begin)
    counts = {True: 0, False: 0}
    for operation, is_fp32 in zip(operations, in_fp32, strict=True):
        if count := _multiply_adds(operation):
            factor = operation.inputs[0]
            is_fp16 = factor.dtype.name == "float16"
            counts[is_fp16 if is_fp32 else _casts_from_fp16(factor)] += count
    total = sum(counts.values())
    return counts[True] / total if total else 1.0


@contextmanager
def _calls_of(model: keras.Model) -> Iterator[list[tuple[int, int, Any]]]:
    """Lists the calls of layers that are traced inside a `with` block.

    Each with the number of operations in the graph before and after it, and the layer.
    """
    import tensorflow as tf

    calls: list[tuple[int, int, Any]] = []
    layers = [e.layer for e in ModelIndex(model).values() if e.kind != "input"]
    before = [(layer, vars(layer).get("call")) for layer in layers]

    def listed(layer: keras.Layer) -> Any:
        call = layer.call

        @functools.wraps(call)
        def run(*args: Any, **kwargs: Any) -> Any:
            graph = tf.compat.v1.get_default_graph()
            begin = len(graph.get_operations())
            outputs = call(*args, **kwargs)
            calls.append((begin, len(graph.get_operations()), layer))
            return outputs

        return run

    try:
        for layer in layers:
            vars(layer)["call"] = listed(layer)
        yield calls
    finally:
        for layer, call in before:
            vars(layer).pop("call", None)
            if call is not None:
                vars(layer)["call"] = call


def _multiply_adds(operation: Any) -> int:
    """Returns the multiply-adds of an operation, 0 for what is no product."""
    kind = operation.type
    if kind == "Einsum":
        return _of_einsum(operation)
    if kind in _CONVOLUTIONS:
        kernel = operation.inputs[1].shape
        channels = kernel[-1] if kind.startswith("Conv") else kernel[-1] * kernel[-2]
        return _size(operation.outputs[0]) * _elements(kernel) // max(channels, 1)
    if kind == "KerasMp>Attention":
        return _of_attention(operation)
    inner = _inner_axis(operation)
    if inner is None:
        return 0
    return _size(operation.outputs[0]) * (operation.inputs[0].shape[inner] or 1)


def _inner_axis(operation: Any) -> int | None:
    """Returns the axis of the first matrix that is summed over, None for no product."""
    names = {
        "MatMul": "transpose_a",
        "BatchMatMul": "adj_x",
        "BatchMatMulV2": "adj_x",
        "BatchMatMulV3": "adj_x",
        "KerasMp>Fp16Gemm": "transpose_a",
    }
    if operation.type not in names:
        return None
    return -2 if operation.get_attr(names[operation.type]) else -1


def _of_einsum(operation: Any) -> int:
    terms, _, _ = operation.get_attr("equation").decode().partition("->")
    sizes: dict[str, int] = {}
    for term, tensor in zip(terms.split(","), operation.inputs, strict=True):
        rank = len(tensor.shape)
        labels = term.replace("...", "0123456789"[: rank - len(term) + 3])
        sizes |= {k: n or 1 for k, n in zip(labels, tensor.shape, strict=True)}
    return math.prod(sizes.values()) if len(operation.inputs) > 1 else 0


def _of_attention(operation: Any) -> int:
    query, key, value = (tensor.shape for tensor in operation.inputs[:3])
    # A score and its share of the result, for each pair of a query and a key.
    of_a_pair = (key[3] or 1) + (value[3] or 1)
    return _elements(query[:3]) * (key[1] or 1) * of_a_pair


def _casts_from_fp16(tensor: Any) -> bool:
    """Tells whether a factor is FP16, or was cast from FP16 and not changed since."""
    while tensor.dtype.name != "float16":
        maker = tensor.op
        if maker.type not in {*_MOVES, "Cast"} or not maker.inputs:
            return False
        tensor = maker.inputs[0]
    return True


def _size(tensor: Any) -> int:
    return _elements(tensor.shape)


def _elements(shape: Any) -> int:
    return math.prod(size or 1 for size in shape) if shape.rank is not None else 1
