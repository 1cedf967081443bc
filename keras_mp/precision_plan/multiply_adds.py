"""How many multiply-adds the products of a model make, and how many of them in FP16."""

import math
from typing import Any

# What changes no number of its first input.
_MOVES = frozenset(
    {"Identity", "IdentityN", "Reshape", "Transpose", "ExpandDims", "Squeeze"}
    | {"Pad", "PadV2", "StridedSlice", "EnsureShape", "BroadcastTo", "ConcatV2"}
)
_CONVOLUTIONS = frozenset(
    {"Conv2D", "Conv3D", "DepthwiseConv2dNative", "KerasMp>DepthwiseConv"}
)


def float16_share(model: Any, x: Any) -> float:
    """Returns the share of multiply-adds in the forward pass whose inputs are FP16.

    The graph of the model is traced and its matrix products are counted: those of
    layers, and those in the code of layers; but not those in loops over time.

    Args:
        model: `keras.Model`, built.
        x: tensor, or a structure of several: a batch of inputs.

    Returns:
        float from 0 to 1; 1 where there are no matrix products.
    """
    import tensorflow as tf

    traced = tf.function(lambda: model(x, training=True), autograph=False)
    counts = {True: 0, False: 0}
    for operation in traced.get_concrete_function().graph.get_operations():
        counts[_is_in_fp16(operation)] += _multiply_adds(operation)
    total = sum(counts.values())
    return counts[True] / total if total else 1.0


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


def _is_in_fp16(operation: Any) -> bool:
    """Tells whether the first factor of a product has only FP16 numbers."""
    if not operation.inputs:
        return False
    tensor = operation.inputs[0]
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
