"""Attention of many heads by the op that makes no tensor of the scores."""

from typing import Any

from keras import ops

from keras_mp import keras_internals
from keras_mp.layers.attention.dropout import drops_by_position
from keras_mp.layers.precision import uses_ops
from keras_mp.typing import Tensor

# The einsums of scores and outputs that Keras builds for [batch, length, heads, size].
_EQUATIONS = (
    ("aecd,abcd->acbe", "acbe,aecd->abcd"),  # MultiHeadAttention: key and query
    ("bquh,bkuh->buqk", "buqk,bkuh->bquh"),  # GroupQueryAttention: query and key
)


def can_attend_in_one_pass(
    layer: Any, query: Tensor, key: Tensor, value: Tensor
) -> bool:
    """Tells whether `attend_in_one_pass` computes what a layer is to compute.

    It does in 16 bits, if the kernel of the op runs.

    Args: as in `attend_in_one_pass`.
    """
    if not uses_ops(layer, query, key, value) or not drops_by_position(layer.dropout):
        return False
    equations = (
        keras_internals.scores_equation(layer),
        keras_internals.outputs_equation(layer),
    )
    if equations not in _EQUATIONS or (query.shape[0] is None) != (
        key.shape[0] is None
    ):
        return False
    from keras_mp.ops.attention import has_kernel

    return has_kernel(layer.compute_dtype)


def can_attend_without_heads(layer: Any, *inputs: Any) -> bool:
    """Tells the same of `attend_without_heads`.

    Args:
        layer: `keras.layers.Attention`.
        *inputs: query, value, and key if it has one.
    """
    if not uses_ops(layer, *inputs) or not drops_by_position(layer.dropout):
        return False
    batch = inputs[0].shape[0]
    if any(len(x.shape) != 3 or x.shape[0] != batch for x in inputs):
        return False
    from keras_mp.ops.attention import has_kernel

    return has_kernel(layer.compute_dtype)


def attend_without_heads(
    layer: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor,
    training: bool | None,
    is_causal: bool,
) -> Any:
    """Returns the outputs of an attention without heads and scale, with its dropout.

    Args:
        layer: `keras.layers.Attention`.
        query: `[batch, queries, size]`.
        key: `[batch, keys, size]`.
        value: `[batch, keys, value_size]`.
        mask: `[batch, keys]`, or None.
        training: bool, or None for False, as the layer is called.
        is_causal: bool, whether later keys are hidden too.
    """
    from keras_mp.ops import dot_product_attention

    if mask is not None:
        mask = ops.cast(mask[:, None, None, :], "bool")
    drops = training and layer.dropout > 0.0
    outputs = dot_product_attention(
        ops.expand_dims(query, 2),
        ops.expand_dims(key, 2),
        ops.expand_dims(value, 2),
        mask=mask,
        scale=1.0,
        is_causal=is_causal,
        dropout=layer.dropout if drops else 0.0,
        seed=layer.seed_generator if drops else None,
    )
    return ops.squeeze(outputs, 2)


def attend_in_one_pass(
    layer: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor,
    scale: float,
    training: bool | None,
    is_causal: bool = False,
) -> Any:
    """Returns the outputs of an attention, with its dropout.

    Args:
        layer: a multi-head or grouped-query attention.
        query: projected, `[batch, queries, heads, size]`.
        key: `[batch, keys, heads, size]`.
        value: `[batch, keys, heads, value_size]`.
        mask: `[batch, queries, keys]`, `[batch, heads, queries, keys]`, or None.
        scale: factor of the scores.
        training: bool, or None for False, as the layer is called.
        is_causal: bool, whether later keys are hidden too.
    """
    from keras_mp.ops import dot_product_attention

    query, key, value = _with_equal_batches(query, key, value)
    if mask is not None:
        for _ in range(4 - len(mask.shape)):
            mask = ops.expand_dims(mask, -3)
        mask = ops.cast(mask, "bool")
    drops = training and layer.dropout > 0.0
    outputs = dot_product_attention(
        query,
        key,
        value,
        mask=mask,
        scale=scale,
        is_causal=is_causal,
        dropout=layer.dropout if drops else 0.0,
        seed=keras_internals.attention_seeds(layer) if drops else None,
    )
    if mask is not None and layer.dropout > 0.0:
        return _zero_without_keys(outputs, mask, is_causal)
    return outputs


def _with_equal_batches(*tensors: Any) -> list[Any]:
    """Repeats a batch of one, as the einsums of Keras do; its gradient sums in FP32."""
    batch = next((x.shape[0] for x in tensors if x.shape[0] != 1), 1)

    def repeated(x: Tensor) -> Any:
        if x.shape[0] == batch:
            return x
        wide = ops.broadcast_to(ops.cast(x, "float32"), (batch, *x.shape[1:]))
        return ops.cast(wide, x.dtype)

    return [repeated(x) for x in tensors]


def _zero_without_keys(outputs: Tensor, mask: Tensor, is_causal: bool) -> Any:
    """Returns 0 for a query if all its keys are masked.

    If a layer has dropout, Keras lets it attend to nothing; else to all equally.
    """
    sees_any = ops.any(mask, axis=-1)
    if is_causal:
        first_seen = ops.argmax(ops.cast(mask, "int32"), axis=-1)
        queries = ops.arange(ops.shape(outputs)[1], dtype=first_seen.dtype)
        sees_any = ops.logical_and(sees_any, first_seen <= queries)
    sees_any = ops.expand_dims(ops.transpose(sees_any, (0, 2, 1)), -1)
    return ops.where(sees_any, outputs, ops.zeros((), outputs.dtype))
