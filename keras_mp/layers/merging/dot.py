"""Dot: a 16-bit product with FP32 accumulation."""

from string import ascii_letters
from typing import Any

import keras
from keras import ops

from keras_mp.layers.core.contraction import contract
from keras_mp.layers.float16_matmul_policy import KeepsPolicy
from keras_mp.layers.precision import multiplies
from keras_mp.typing import Tensor


@keras.saving.register_keras_serializable(package="keras_mp")
class Dot(KeepsPolicy, keras.layers.Dot):
    """`keras.layers.Dot` with a 16-bit product that accumulates in FP32.

    With `normalize=True`, the inputs are L2-normalized in FP32 and rounded before the
    product.

    Args: as in `keras.layers.Dot`.

    Example:

    >>> x, y = np.full((1, 5000), 0.1, "float16"), np.ones((1, 5000), "float16")
    >>> keras_mp.layers.Dot(axes=1, dtype="float16")([x, y]).numpy()  # float64: 499.88
    array([[500.]], dtype=float16)

    Reference: Mixed Precision Training, section 3.3.
    """

    def _merge_function(self, inputs: Tensor) -> Any:
        if len(inputs) != 2 or not multiplies(self, *inputs):
            return super()._merge_function(inputs)
        axes = self.axes if isinstance(self.axes, list | tuple) else [self.axes] * 2
        axes = [axis % len(x.shape) for axis, x in zip(axes, inputs, strict=True)]
        if self.normalize:
            inputs = [
                _l2_normalize(x, axis) for x, axis in zip(inputs, axes, strict=True)
            ]
        a, b, output = _labels(*(len(x.shape) for x in inputs), *axes)
        result = contract(self, a, b, output, *inputs)
        return ops.expand_dims(result, -1) if len(output) == 1 else result


def _labels(a_rank: int, b_rank: int, a_axis: int, b_axis: int) -> tuple[str, str, str]:
    """Returns the einsum terms of a, b and result, summed over one axis of each."""
    batch, inner, *others = list(ascii_letters)
    a = [batch, *others[: a_rank - 1]]
    b = [batch, *others[a_rank - 1 : a_rank + b_rank - 2]]
    a[a_axis] = b[b_axis] = inner
    free = [label for label in a[1:] + b[1:] if label != inner]
    return "".join(a), "".join(b), "".join([batch, *free])


def _l2_normalize(x: Tensor, axis: int) -> Any:
    from keras_mp.ops import row_normalization

    return row_normalization.normalize_rows(
        x, axis, row_normalization.UNIT_LENGTH, epsilon=1e-12
    )
