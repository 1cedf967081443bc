"""`linear_cross_entropy`: the loss of a linear layer without all of its logits."""

from numbers import Real
from typing import Any, NamedTuple

import tensorflow as tf

from keras_mp.ops.checks import to_float_tensor
from keras_mp.ops.logit_statistics import Head
from keras_mp.ops.reductions import accumulator_dtype
from keras_mp.ops.symbolic import symbolic


class LinearCrossEntropy(NamedTuple):
    """The results of `linear_cross_entropy`, each of the shape of a row.

    Args:
        loss: FP32, the cross entropy.
        argmax: int32, the word with the largest logit, and of equals the first.
        logsumexp: FP32, the logarithm of the sum of the exponentials of the logits.
    """

    loss: Any
    argmax: Any
    logsumexp: Any


@symbolic("inputs", "kernel", "labels", "bias")
def linear_cross_entropy(
    inputs: Any,
    kernel: Any,
    labels: Any,
    bias: Any = None,
    transpose: bool = False,
    soft_cap: float | None = None,
    label_smoothing: float = 0.0,
    ignore_class: int | None = None,
    return_statistics: bool = False,
) -> Any:
    """Computes the cross entropy of `inputs @ kernel + bias` without all the logits.

    With `z = inputs @ kernel + bias`, or `soft_cap * tanh(z / soft_cap)` of it, the
    loss of a row is `log(sum(exp(z))) - z[label]`. Logits, softmax and sums are FP32. A
    pass over the words finds the numbers of each row, a block of words at a time; the
    backward pass computes each block again. So memory besides arguments, results and
    gradients is one block and two FP32 arrays as large as `inputs`, while the logits
    would be `rows * words` numbers. On a CPU native kernels compute this, with XLA and
    without, and a block has 4 MiB of logits, or `rows * 256` FP32 numbers where that is
    more. Elsewhere TensorFlow does, and a block has 2,048 words.

    The gradient of the logits is rounded to the dtype of `inputs` for the products
    that make the gradients of inputs and kernel; in FP16 it is first multiplied by a
    power of two that fits the upstream gradient, so that probabilities do not round to
    0. These products accumulate in FP32, and so does the gradient of the kernel, which
    is rounded to the dtype of the kernel at the end. A second derivative has all the
    logits in memory.

    A row with an infinite or NaN logit has a loss that is not finite; a single -inf is
    a probability of 0. A label below 0 or beyond the last word makes the loss of its
    row NaN, and with it the gradients, on every device, with XLA and without.

    Args:
        inputs: float16, bfloat16 or float32, `[..., size]`. With float64, all is
            float64.
        kernel: `[size, words]`, the dtype of `inputs`; or float32, for a weight that
            is rounded to the dtype of `inputs` before the product. The number of words
            is known when a graph is traced.
        labels: integers `[...]`, a word for each row; or of a floating dtype, `[...,
            words]`, a probability for each word, which gets no gradient.
        bias: `[words]`, of a floating dtype; default None.
        transpose: bool, default False: whether the kernel is `[words, size]`, as an
            embedding's is.
        soft_cap: a number above 0, or None (default) for no cap.
        label_smoothing: a number from [0, 1), default 0: the share of each label that
            is spread evenly over all words.
        ignore_class: int or None (default): the loss of a row with this label is 0,
            and so is its gradient.
        return_statistics: bool, default False: whether to return also the argmax and
            the logsumexp of each row.

    Returns:
        FP32 tensor `[...]`; with `return_statistics` a named tuple of `loss`, `argmax`
        (int32) and `logsumexp` (FP32), each `[...]`. `argmax` has no gradient.

    Raises:
        ValueError: shapes or dtypes do not fit, or a number is outside of its range.

    Example:

    >>> inputs = np.float16([[200, 0], [0, 0]])
    >>> kernel = np.float16([[400, 0, 0], [0, 1, 2]])    # logits: [80000, 0, 0], 0
    >>> keras_mp.ops.linear_cross_entropy(inputs, kernel, [0, 2]).numpy().round(4)
    array([0.    , 1.0986], dtype=float32)

    Reference: Mixed Precision Training, section 3.3; Cut Your Losses in
    Large-Vocabulary Language Models (Wijmans et al., 2024).
    """
    inputs, kernel = (
        to_float_tensor(x, name) for x, name in ((inputs, "inputs"), (kernel, "kernel"))
    )
    labels = tf.convert_to_tensor(labels)
    _check_dtypes(inputs, kernel, labels)
    words = _check_shapes(inputs, kernel, labels, transpose)
    if bias is None:
        bias = tf.zeros([0], accumulator_dtype(inputs))
    else:
        bias = to_float_tensor(bias, "bias")
        if not bias.shape.is_compatible_with([words]):
            raise ValueError(
                f"`bias` must have the shape [words], here [{words}]. Received: "
                f"bias.shape={bias.shape}, kernel.shape={kernel.shape}."
            )
        bias = tf.ensure_shape(bias, [words])
    _check_numbers(soft_cap, label_smoothing, ignore_class, labels)

    sizes = tf.shape(inputs)[:-1]
    dtype = accumulator_dtype(inputs)
    rows = tf.reshape(inputs, [-1, inputs.shape[-1] or tf.shape(inputs)[-1]])
    if labels.dtype.is_floating:
        targets = tf.reshape(tf.cast(labels, dtype), [-1, words])
        weights, ignored = (
            tf.reduce_sum(targets, 1),
            tf.zeros_like(targets[:, 0], tf.bool),
        )
    else:
        labels = tf.cast(tf.reshape(labels, [-1]), tf.int64)
        known = (labels >= 0) & (labels < words)
        ignored = tf.zeros_like(known)
        if ignore_class is not None:
            ignored = tf.equal(labels, ignore_class)
        targets = tf.cast(tf.where(known, labels, 0), tf.int32)
        # Their product with the upstream gradient is NaN, too.
        weights = tf.where(known | ignored, tf.ones([], dtype), float("nan"))
    head = Head(bool(transpose), None if soft_cap is None else float(soft_cap))
    found = head.statistics(rows, kernel, bias, targets)
    target = (1.0 - label_smoothing) * found.target
    if label_smoothing:
        target += label_smoothing / words * found.total
    loss = weights * found.logsumexp - target
    loss = tf.where(ignored, tf.zeros_like(loss), loss)
    shape = inputs.shape[:-1]
    loss, argmax, logsumexp = (
        tf.ensure_shape(tf.reshape(x, sizes), shape)
        for x in (loss, found.argmax, found.logsumexp)
    )
    if not return_statistics:
        return loss
    return LinearCrossEntropy(loss, argmax, logsumexp)


def _check_dtypes(inputs: tf.Tensor, kernel: tf.Tensor, labels: tf.Tensor) -> None:
    if kernel.dtype not in (inputs.dtype, tf.float32):
        raise ValueError(
            "`kernel` must have the dtype of `inputs`, or float32. Received: "
            f"kernel.dtype={kernel.dtype.name}, inputs.dtype={inputs.dtype.name}. Cast "
            "one of them."
        )
    if not (labels.dtype.is_integer or labels.dtype.is_floating):
        raise ValueError(
            "`labels` must be integers, or of a floating dtype for a probability of "
            f"each word. Received: labels.dtype={labels.dtype.name}, shape "
            f"{labels.shape}. Cast them."
        )


def _check_shapes(
    inputs: tf.Tensor, kernel: tf.Tensor, labels: tf.Tensor, transpose: bool
) -> int:
    """Returns the number of words."""

    def received() -> str:
        return (
            f"inputs.shape={inputs.shape}, kernel.shape={kernel.shape}, "
            f"labels.shape={labels.shape}, transpose={transpose}"
        )

    if not inputs.shape.rank or kernel.shape.rank != 2:
        raise ValueError(
            "`inputs` must be [..., size], and `kernel` a matrix. Received: "
            f"{received()}. Reshape them."
        )
    words, size = kernel.shape if transpose else kernel.shape[::-1]
    if not words:
        raise ValueError(
            "The number of words must be known, and at least 1. Received: "
            f"{received()}. Give the kernel a shape with `tf.ensure_shape`."
        )
    if not inputs.shape[-1:].is_compatible_with([size]):
        raise ValueError(
            "`kernel` must be [size, words], or [words, size] with `transpose`, where "
            f"size is the last of `inputs`. Received: {received()}."
        )
    expected = inputs.shape[:-1]
    if labels.dtype.is_floating:
        expected = expected.concatenate([words])
    if not labels.shape.is_compatible_with(expected):
        raise ValueError(
            "`labels` must be integers of the shape of a row for each of `inputs`, or "
            "of a floating dtype with a probability for each word. Received: "
            f"labels.dtype={labels.dtype.name}, {received()}. The expected shape is "
            f"{expected}."
        )
    return int(words)


def _check_numbers(
    soft_cap: Any, label_smoothing: Any, ignore_class: Any, labels: tf.Tensor
) -> None:
    if soft_cap is not None and not (
        isinstance(soft_cap, Real) and 0 < float(soft_cap) < 1e38
    ):
        raise ValueError(
            "`soft_cap` must be a finite number above 0, or None. Received: "
            f"soft_cap={soft_cap!r}."
        )
    if not (isinstance(label_smoothing, Real) and 0 <= float(label_smoothing) < 1):
        raise ValueError(
            "`label_smoothing` must be a number from [0, 1). Received: "
            f"label_smoothing={label_smoothing!r}."
        )
    if ignore_class is None:
        return
    is_int = isinstance(ignore_class, int) and not isinstance(ignore_class, bool)
    if not is_int or not labels.dtype.is_integer:
        raise ValueError(
            "`ignore_class` must be an int, for integer labels, or None. Received: "
            f"ignore_class={ignore_class!r}, labels.dtype={labels.dtype.name}. Give "
            "rows of probabilities that do not count a sample weight of 0."
        )
