"""Tensor contraction: a two-operand einsum as one product of matrices."""

import functools
import operator
import string
from collections.abc import Iterable
from typing import Any

from keras import ops

from keras_mp.layers.precision import multiply
from keras_mp.typing import Tensor


def parse(equation: str, rank: int) -> tuple[str, str, str]:
    """Splits an einsum equation into three terms, with letters for an ellipsis.

    Args:
        equation: such as `"...x,xy->...y"`: two operands, the second without an
            ellipsis, and an output.
        rank: the rank of the first operand.
    """
    inputs, _, output = equation.replace(" ", "").partition("->")
    a, _, b = inputs.partition(",")
    spare = [letter for letter in string.ascii_letters if letter not in equation]
    hidden = "".join(spare[: rank - len(a.replace("...", ""))])
    return a.replace("...", hidden), b, output.replace("...", hidden)


def is_matmul(a: str, b: str, output: str) -> bool:
    """Tells whether an einsum is a matrix product, up to transposes and reshapes.

    It is not if a label is repeated in a term (a diagonal) or appears in only one of
    the three terms (a sum over one operand, or a broadcast).
    """
    terms = (a, b, output)
    repeated = any(len(set(term)) < len(term) for term in terms)
    alone = any(
        sum(label in term for term in terms) < 2 for label in set(a + b + output)
    )
    return not (repeated or alone)


def contract(
    layer: Any,
    a_labels: str,
    b_labels: str,
    output: str,
    a: Any,
    b: Any,
    bias: Tensor | None = None,
    **options: Any,
) -> Any:
    """Returns `einsum("a_labels,b_labels->output", a, b)`, as `multiply` has it.

    Args:
        layer: for its dtype policy.
        a_labels: the term of `a`, a letter for each dimension.
        b_labels: the term of `b`.
        output: the term of the result.
        a: tensor of the compute dtype.
        b: tensor, or a weight in its stored dtype.
        bias: tensor with a value for each element along the dimensions that only `b`
            and the result have; default None.
        **options: the arguments `activation`, `output_dtype` and `alpha` of
            `multiply`.

    Raises:
        ValueError: a label has two sizes.
    """
    if (
        bias is None
        and a.dtype == b.dtype
        and _leads_with_b(b_labels, a_labels, output)
    ):
        # Swapping the operands saves a transpose of the result, as for the scores of
        # Keras's attention.
        a_labels, b_labels, a, b = b_labels, a_labels, b, a
    batch = [label for label in output if label in a_labels and label in b_labels]
    free_a = [label for label in output if label not in b_labels]
    free_b = [label for label in output if label not in a_labels]
    inner = [label for label in b_labels if label not in output]
    a_sizes = dict(zip(a_labels, ops.shape(a), strict=True))
    b_sizes = dict(zip(b_labels, ops.shape(b), strict=True))
    for label in inner:
        # Otherwise the reshape to matrices could mix up dimensions of 6 x 4 and 4 x 6.
        a = _ensure_size(a, a_labels.index(label), b_sizes[label], (a, b))

    a, transpose_a = _as_matrix(a, a_labels, batch, free_a, inner, a_sizes)
    b, not_transpose_b = _as_matrix(b, b_labels, batch, free_b, inner, b_sizes)
    result = multiply(
        layer,
        a,
        b,
        transpose_a=transpose_a,
        transpose_b=not not_transpose_b,
        bias=None if bias is None else ops.reshape(bias, (-1,)),
        **options,
    )
    found = [*batch, *free_a, *free_b]
    # A batch dimension of size 1 is broadcast, as in `fp16_gemm`.
    sizes = a_sizes | b_sizes | dict(zip(batch, ops.shape(result), strict=False))
    result = ops.reshape(result, [sizes[label] for label in found])
    return _transpose_to(result, found, output)


def _ensure_size(x: Tensor, axis: int, size: Any, operands: tuple[Any, Any]) -> Any:
    """Checks the size of an axis; at run time if it is dynamic. Returns `x`."""
    import tensorflow as tf

    if not isinstance(size, int) or x.shape[axis] == size:
        return x
    if x.shape[axis] is not None:
        raise ValueError(
            f"Dimensions that are summed over must have one size. Received: {size} and "
            f"{x.shape[axis]}, for operands of shapes {operands[0].shape} and "
            f"{operands[1].shape}. Transpose or reshape the inputs of the layer."
        )
    shape: list[int | None] = [None] * len(x.shape)
    shape[axis] = size
    return tf.ensure_shape(x, shape)


def _leads_with_b(b_labels: str, a_labels: str, output: str) -> bool:
    """Tells whether the first dimension of the result that one operand has is b's."""
    free = [label for label in output if (label in a_labels) != (label in b_labels)]
    return bool(free) and free[0] in b_labels


def _as_matrix(
    x: Tensor,
    labels: str,
    batch: list[str],
    free: list[str],
    inner: list[str],
    sizes: dict[str, Any],
) -> tuple[Any, bool]:
    """Returns `x` as `[*batch, free, inner]` or `[*batch, inner, free]`.

    The second layout is used if it needs no transpose. The second result tells whether
    it is.
    """
    others = [label for label in labels if label not in batch]
    inner_first = others == inner + free and bool(inner) and bool(free)
    rows, columns = (inner, free) if inner_first else (free, inner)
    x = _transpose_to(x, labels, [*batch, *rows, *columns])
    shape = [*(sizes[label] for label in batch), _flat_size(rows, sizes)]
    return ops.reshape(x, [*shape, _flat_size(columns, sizes)]), inner_first


def _flat_size(labels: list[str], sizes: dict[str, Any]) -> Any:
    return functools.reduce(operator.mul, [sizes[label] for label in labels], 1)


def _transpose_to(x: Tensor, labels: Iterable[str], wanted: Iterable[str]) -> Any:
    labels = list(labels)
    axes = [labels.index(label) for label in wanted]
    return x if axes == sorted(axes) else ops.transpose(x, axes)
