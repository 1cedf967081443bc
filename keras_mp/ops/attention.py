"""`dot_product_attention`: 16 bits in and out, FP32 between, in one pass."""

from dataclasses import dataclass
from numbers import Real
from typing import Any

import numpy as np
import tensorflow as tf

from keras_mp.ops import attention_dropout
from keras_mp.ops.checks import to_float_tensor
from keras_mp.ops.exponentials import softmax
from keras_mp.ops.gradients import as_one_operation, vjp
from keras_mp.ops.kernels import native
from keras_mp.ops.kernels.dispatch import has_cpu_kernels
from keras_mp.ops.reductions import accumulator_dtype
from keras_mp.ops.symbolic import symbolic

# The score of a hidden key: half of the lowest number, so that its difference to any
# score is finite, and that a query that sees no key attends to all of them.
_HIDDEN = float(np.finfo("float32").min) / 2


def has_kernel(dtype: str) -> bool:
    """Tells whether a kernel computes the attention of tensors of a dtype."""
    return dtype in ("float16", "bfloat16", "float32") and has_cpu_kernels()


@symbolic("query", "key", "value", "bias", "mask")
def dot_product_attention(
    query: Any,
    key: Any,
    value: Any,
    bias: Any = None,
    mask: Any = None,
    scale: Any = None,
    is_causal: bool = False,
    dropout: float = 0.0,
    seed: Any = None,
) -> tf.Tensor:
    """Computes `round(softmax(scale * query @ key.T + bias) @ value)` in FP32.

    `keras.ops.dot_product_attention` with the same arguments rounds the scores, and the
    weights, to 16 bits. Here scores, softmax and sums are FP32, and only the result is
    rounded. (On a CPU with AMX the weights err by up to `2**-16` of themselves if the
    values are FP16.)

    On a CPU one native kernel goes over blocks of keys (flash attention), forward and
    backward, so that no tensor of all scores is in memory: for the backward pass it
    keeps its inputs, the result, and an FP32 number for each query and head. Without a
    kernel, or with a bias, with a scale that is a tensor or with float64, the formula
    runs in TensorFlow: then the scores are in memory while it runs, and the backward
    pass, for which only the inputs are kept, computes them again.

    A key that the mask hides has weight 0. A query that sees no key attends to all of
    them equally, as in Keras; without keys the result is 0.

    With dropout each weight of the softmax is 0 with a probability of `dropout`,
    rounded down to a multiple of `2**-32`, and else multiplied by `1 / (1 - dropout)`
    in FP32. A hash of the seed and of batch, head, query and key decides: no mask is
    stored, and every route, eager, graph, XLA, kernel and formula, drops the same
    weights. On a GPU, outside of XLA, TensorFlow computes that hash on the CPU; the
    attention layers use Keras's dropout there.

    Args:
        query: float16, bfloat16 or float32, `[batch, queries, heads, size]`. With
            float64, all is float64.
        key: the dtype of `query`, `[batch, keys, key_heads, size]`. `heads` is a
            multiple of `key_heads`: with fewer of them, consecutive heads of the query
            share one (grouped-query attention).
        value: the dtype of `query`, `[batch, keys, key_heads, value_size]`.
        bias: added to the scores, in FP32; default None. It broadcasts to `[batch,
            heads, queries, keys]`.
        mask: bool, which broadcasts to the same; default None. False hides a key.
        scale: a number, or a scalar tensor; default None: `size**-0.5`.
        is_causal: bool, default False. If True, query `t` does not see the keys after
            the `t`-th.
        dropout: number from [0, 1), default 0; it is rounded to FP32.
        seed: int, two ints, or a `keras.random.SeedGenerator`, which drops other
            weights at every call; default None. With dropout it is needed. With
            `keras.KerasTensor` no generator is possible.

    Returns:
        A tensor of the dtype of `query`, `[batch, queries, heads, value_size]`.

    Raises:
        ValueError: if shapes or dtypes do not fit, there is dropout without a seed, or
            a generator with `keras.KerasTensor`.

    Example:

    >>> query = np.full((1, 1, 1, 2), 300.0, "float16")
    >>> key = np.float16([[[[300, 300]], [[150, 150]]]])    # scores: 180000, 90000
    >>> value = np.float16([[[[1]], [[2]]]])
    >>> keras_mp.ops.dot_product_attention(query, key, value).numpy().item()
    1.0

    Reference: Mixed Precision Training, section 3.3.
    """
    query, key, value = (
        to_float_tensor(x, name)
        for x, name in ((query, "query"), (key, "key"), (value, "value"))
    )
    _check(query, key, value)
    biases = (
        () if bias is None else (_at_scores(to_float_tensor(bias, "bias"), "bias"),)
    )
    masks = () if mask is None else (_at_scores(_to_bool(mask), "mask"),)
    if scale is None:
        scale = _default_scale(query)
    dropout = attention_dropout.check_rate(dropout)
    seeds = (attention_dropout.draw(seed),) if dropout else ()
    if has_kernel(query.dtype.name) and not biases and isinstance(scale, Real):
        result, _ = native.library().keras_mp_attention(
            query=query,
            key=key,
            value=value,
            mask=masks,
            seed=seeds,
            scale=float(scale),
            is_causal=is_causal,
            dropout=dropout,
        )
        return result  # its gradient is registered
    wide = tf.cast(scale, accumulator_dtype(query))
    formula = _Formula(masks, is_causal, seeds, dropout)
    return as_one_operation(formula, query, key, value, wide, *biases)


@dataclass(frozen=True)
class _Formula:
    """The attention in TensorFlow.

    Args:
        masks: one bool tensor of four dimensions, or none.
        is_causal: as in `dot_product_attention`.
        seeds: one of two int32 numbers, or none.
        dropout: float, as in `dot_product_attention`.
    """

    masks: tuple[tf.Tensor, ...]
    is_causal: bool
    seeds: tuple[tf.Tensor, ...]
    dropout: float

    def __call__(
        self,
        query: tf.Tensor,
        key: tf.Tensor,
        value: tf.Tensor,
        scale: tf.Tensor,
        *biases: tf.Tensor,
    ) -> tf.Tensor:
        group = tf.shape(query)[2] // tf.maximum(tf.shape(key)[2], 1)
        q, k, v = (
            tf.transpose(tf.cast(x, scale.dtype), [0, 2, 1, 3])
            for x in (query, key, value)
        )
        k, v = (tf.repeat(x, group, axis=1) for x in (k, v))
        scores = scale * tf.matmul(q, k, transpose_b=True)
        for bias in biases:
            scores += tf.cast(bias, scores.dtype)
        weights = softmax(self.hide(scores))
        for seed in self.seeds:
            weights = attention_dropout.drop(weights, self.dropout, seed)
        result = tf.matmul(weights, v)
        result = tf.cast(tf.transpose(result, [0, 2, 1, 3]), query.dtype)
        return tf.ensure_shape(result, [*query.shape[:3], value.shape[3]])

    def hide(self, scores: tf.Tensor) -> tf.Tensor:
        """Returns the scores, and a low number for each pair that is not seen."""
        for mask in self.masks:
            scores = tf.where(mask, scores, tf.cast(_HIDDEN, scores.dtype))
        if self.is_causal:
            queries, keys = tf.shape(scores)[2], tf.shape(scores)[3]
            sees = tf.range(keys) <= tf.range(queries)[:, tf.newaxis]
            scores = tf.where(sees, scores, tf.cast(_HIDDEN, scores.dtype))
        return scores


def _default_scale(query: tf.Tensor) -> Any:
    """Returns `size**-0.5`; 1 without elements: the scores are then 0."""
    size = query.shape[-1]
    if size is None:
        return tf.math.rsqrt(tf.cast(tf.maximum(tf.shape(query)[-1], 1), tf.float32))
    return float(max(size, 1)) ** -0.5


def _to_bool(mask: Any) -> tf.Tensor:
    mask = tf.convert_to_tensor(mask)
    if mask.dtype == tf.bool:
        return mask
    raise ValueError(
        "`mask` must be of dtype bool. Received: "
        f"mask.dtype={mask.dtype.name}, shape {mask.shape}. Cast it; numbers that are "
        "added to the scores are a `bias`."
    )


def _at_scores(x: tf.Tensor, name: str) -> tf.Tensor:
    """Returns a mask or bias with four dimensions, as the scores have."""
    rank = x.shape.rank
    if rank is None or rank > 4:
        raise ValueError(
            f"`{name}` must broadcast to [batch, heads, queries, keys]. Received: "
            f"{name}.shape={x.shape}."
        )
    for _ in range(4 - rank):
        x = tf.expand_dims(x, 0)
    return x


def _check(query: tf.Tensor, key: tf.Tensor, value: tf.Tensor) -> None:
    if any(x.dtype != query.dtype for x in (key, value)):
        raise ValueError(
            "`query`, `key` and `value` must have the same dtype. Received: "
            f"{query.dtype.name}, {key.dtype.name} and {value.dtype.name}. Cast two of "
            "them."
        )
    shapes = [x.shape for x in (query, key, value)]
    fits = all(shape.rank == 4 for shape in shapes)
    if fits:
        (batch, _, heads, size), of_key, of_value = shapes
        expected = [batch, of_value[1], of_value[2], size]
        fits = (
            of_key.is_compatible_with(expected)
            and of_value[:1].is_compatible_with([batch])
            and not (heads and of_key[2] and heads % of_key[2])
        )
    if not fits:
        raise ValueError(
            "`query` must be [batch, queries, heads, size], `key` [batch, keys, "
            "key_heads, size] and `value` [batch, keys, key_heads, any size], where "
            "heads is a multiple of key_heads. Received: "
            f"query.shape={query.shape}, key.shape={key.shape}, "
            f"value.shape={value.shape}."
        )


@tf.RegisterGradient("KerasMp>Attention")
def _attention_grad(op: Any, grad: tf.Tensor, _: Any) -> list[tf.Tensor | None]:
    """No gradient flows through the second output, which is not public."""
    query, key, value, *more = op.inputs
    result, log_sum_exp = op.outputs
    grads = native.library().keras_mp_attention_gradient(
        query=query,
        key=key,
        value=value,
        result=result,
        log_sum_exp=log_sum_exp,
        grad=grad,
        **_masks_and_seeds(more),
        scale=op.get_attr("scale"),
        is_causal=op.get_attr("is_causal"),
        dropout=op.get_attr("dropout"),
    )
    return [*grads, *(None for _ in more)]


# The result and its log_sum_exp are functions of the other inputs, through which their
# gradients flow here.
@tf.RegisterGradient("KerasMp>AttentionGradient")
def _attention_grad_grad(op: Any, *upstream: tf.Tensor) -> list[tf.Tensor | None]:
    query, key, value, _, _, grad, *more = op.inputs
    given = _masks_and_seeds(more)
    formula = _Formula(
        tuple(given["mask"]),
        op.get_attr("is_causal"),
        tuple(given["seed"]),
        op.get_attr("dropout"),
    )
    scale = tf.constant(op.get_attr("scale"))

    def slopes(*tensors: tf.Tensor) -> tuple[Any, ...]:
        *given, grad = tensors
        return tuple(vjp(lambda *x: formula(*x, scale), given, [grad]))

    *grads, grad_grad = vjp(slopes, [query, key, value, grad], upstream)
    return [*grads, None, None, grad_grad, *(None for _ in more)]


def _masks_and_seeds(inputs: list[tf.Tensor]) -> dict[str, list[tf.Tensor]]:
    """Returns the last inputs of the ops by their names."""
    return {
        name: [x for x in inputs if x.dtype == dtype]
        for name, dtype in (("mask", tf.bool), ("seed", tf.int32))
    }
