"""What a linear layer attaches to its logits, so that a loss can do without them.

In a graph TensorFlow, and XLA, remove the product behind logits that nothing reads. An
attribute of a tensor does not outlive another operation: what has it are the logits.
"""

from dataclasses import dataclass
from typing import Any

import keras
from keras import activations

from keras_mp.layers.float16_matmul_policy import Float16MatmulPolicy
from keras_mp.typing import Tensor


@dataclass(frozen=True)
class Pass:
    """What one pass over the words has found; each tensor has the shape of a row.

    Args:
        y_true: the object that the loss was given.
        ignore_class: as in the loss.
        graph: where the tensors live; of no use in another one.
        rows: the `LinearCrossEntropy` of the op.
    """

    y_true: Any
    ignore_class: int | None
    graph: Any
    rows: Any


@dataclass
class LinearLogits:
    """Logits as `inputs @ kernel + bias`, or `soft_cap * tanh(those / soft_cap)`.

    Args:
        inputs: tensor `[..., size]`.
        kernel: tensor `[size, words]`, in its stored dtype.
        bias: tensor `[words]`, or None.
        transpose: whether the kernel is `[words, size]`.
        soft_cap: float, or None.
        last_pass: what the loss has found, for the metrics; None before it.
    """

    inputs: Any
    kernel: Any
    bias: Any
    transpose: bool
    soft_cap: float | None
    last_pass: Pass | None = None


def attach(
    layer: keras.Layer,
    logits: Tensor,
    inputs: Tensor,
    kernel: Tensor,
    bias: Tensor | None = None,
    transpose: bool = False,
    soft_cap: float | None = None,
) -> Any:
    """Attaches to the output of a layer how it was computed; returns the output.

    Nothing is attached where the op would compute in another precision than the layer.

    Args:
        layer: for its policy, and its activation if it has one.
        logits: what the layer returns.
        inputs: tensor that was multiplied.
        kernel: tensor, or a variable.
        bias: tensor, a variable, or None.
        transpose: bool, default False.
        soft_cap: float, default None.
    """
    if keras.backend.backend() != "tensorflow":
        return logits
    import tensorflow as tf

    dtype = keras.backend.standardize_dtype(inputs.dtype)
    is_narrowed = isinstance(layer.dtype_policy, Float16MatmulPolicy)
    if isinstance(inputs, tf.SparseTensor) or is_narrowed:
        return logits
    kernel = tf.convert_to_tensor(kernel)
    if keras.backend.standardize_dtype(kernel.dtype) not in (dtype, "float32"):
        return logits
    activation = getattr(layer, "activation", None)
    if activation not in (None, activations.linear):
        name = getattr(activation, "__name__", repr(activation))
        logits.linear_logits = f"the layer {layer.name!r} has the activation {name!r}"
        return logits
    bias = None if bias is None else tf.convert_to_tensor(bias)
    logits.linear_logits = LinearLogits(inputs, kernel, bias, transpose, soft_cap)
    return logits


def behind(y_pred: Tensor) -> LinearLogits | str:
    """Returns what a layer attached to its output, or why there is nothing.

    Args:
        y_pred: what a model returned.
    """
    if keras.backend.backend() != "tensorflow":
        return "it needs Keras's TensorFlow backend"
    return getattr(
        y_pred,
        "linear_logits",
        "they are not the output of a Dense, EinsumDense or ReversibleEmbedding of "
        "keras_mp without a change: call keras_mp.convert(model), and leave out "
        "activations, reshapes and casts between this layer and the loss",
    )
