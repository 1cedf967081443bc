"""Convolutions of tensors without elements.

TensorFlow's kernels for CPUs return an empty convolution in the shape of their input.
"""

from collections.abc import Callable, Sequence
from typing import Any

from keras_mp.typing import Tensor


def convolve_filled(
    convolve: Callable[[Any], Any],
    inputs: Tensor,
    data_format: str,
    least: Sequence[int],
    strides: Sequence[int],
    growth: Sequence[int],
) -> Any:
    """Returns `convolve(inputs)`, in its own shape also if it is empty.

    What an empty convolution lacks is filled up with zeros, and cut off its result: a
    replica may get no example of a batch. Nothing is copied where nothing is lacking,
    and sizes that are known before the call cost nothing.

    Args:
        convolve: function of the inputs.
        inputs: `[batch, ..., channels]`, or `[batch, channels, ...]`.
        data_format: `"channels_last"` or `"channels_first"`.
        least: for each spatial dimension the size from which on there is a result.
        strides: of each spatial dimension. TensorFlow refuses a size that is two
            strides or more below `least`.
        growth: by how much a spatial dimension of the result grows from an empty one
            of the inputs to one of the size `least`.

    Raises:
        ValueError: a size is known, not 0, and below `least`.
    """
    import tensorflow as tf

    rank = len(inputs.shape)
    first = 1 if data_format == "channels_last" else 2
    spatial = range(first, first + rank - 2)
    _check_sizes([inputs.shape[axis] for axis in spatial], least)
    lacking = [0] * rank
    excess = [0] * rank
    for axis, enough, stride, more in zip(
        (0, *spatial), (1, *least), (1, *strides), (1, *growth), strict=True
    ):
        lacking[axis] = _lacking(_size(inputs, axis), enough, stride)
        excess[axis] = more * _at_most_one(lacking[axis])
    if all(isinstance(count, int) and count == 0 for count in lacking):
        return convolve(inputs)
    # The zero is a tensor: oneDNN takes the op `Pad`, which has none, into the
    # convolution, without the padding of the batch.
    zero = tf.zeros([], inputs.dtype)
    filled = tf.pad(inputs, [[0, count] for count in lacking], constant_values=zero)
    outputs = convolve(filled)
    sizes = [_size(outputs, axis) - excess[axis] for axis in range(rank)]
    return tf.slice(outputs, [0] * rank, sizes)


def least_sizes(
    kernel_size: Sequence[int], dilation_rate: Sequence[int], padding: str
) -> list[int]:
    """Returns the sizes from which on a convolution has a result."""
    if padding != "valid":
        return [1] * len(kernel_size)
    pairs = zip(kernel_size, dilation_rate, strict=True)
    return [(size - 1) * dilation + 1 for size, dilation in pairs]


def _check_sizes(sizes: Sequence[int | None], least: Sequence[int]) -> None:
    if any(size and size < enough for size, enough in zip(sizes, least, strict=True)):
        raise ValueError(
            "With padding='valid' a kernel must fit into the inputs of a convolution. "
            f"Received: spatial sizes {list(sizes)}, which must be {list(least)} or "
            "more. Use padding='same', or larger inputs."
        )


def _size(x: Tensor, axis: int) -> Tensor:
    """Returns an int, or a tensor if the size is dynamic."""
    import tensorflow as tf

    return tf.shape(x)[axis] if x.shape[axis] is None else x.shape[axis]


def _lacking(size: Any, enough: int, stride: int) -> Any:
    """Returns how many elements to add, which are none where TensorFlow refuses."""
    import tensorflow as tf

    count = enough - size
    if isinstance(size, int):
        return count if 0 < count < 2 * stride else 0
    # XLA, which may find a size at run time, has to see the largest count in this.
    lacking = tf.maximum(count, 0)
    if enough == 1:
        return lacking
    return lacking * tf.cast(count < 2 * stride, count.dtype)


def _at_most_one(count: Any) -> Any:
    import tensorflow as tf

    return min(count, 1) if isinstance(count, int) else tf.minimum(count, 1)
