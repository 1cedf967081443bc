"""What the layers share: when they use the ops, with which weight, what they hold."""

import functools
import warnings
from collections.abc import Callable
from typing import Any

import keras
from keras import activations, ops

from keras_mp import keras_internals
from keras_mp.dtypes import is_half

_FUSED = (
    (activations.relu, "relu"),
    (activations.tanh, "tanh"),
    (activations.sigmoid, "sigmoid"),
    (activations.gelu, "gelu"),
)


def uses_ops(layer: keras.Layer, *inputs: Any) -> bool:
    """Tells whether a layer computes with these inputs in `keras_mp.ops`.

    It does so where its compute dtype has 16 bits and the inputs have that dtype.
    Inputs of another dtype reach a layer that does not cast, or that is called inside
    one with another policy; Keras promotes them, and so its layer computes them.
    """
    if not is_half(layer.compute_dtype):
        return False
    if keras.backend.backend() != "tensorflow":
        _warn_of_backend(keras.backend.backend())
        return False
    return all(_is_dense(x) and _dtype(x) == layer.compute_dtype for x in inputs)


@functools.cache
def _warn_of_backend(backend: str) -> None:
    warnings.warn(
        "The layers of keras_mp accumulate 16-bit products and sums in FP32 on the "
        "TensorFlow backend only; here each computes as the Keras layer of its name. "
        "Received: "
        f"backend={backend!r}. Set the environment variable KERAS_BACKEND=tensorflow "
        "before Keras is imported.",
        stacklevel=2,
    )


def _dtype(x: Any) -> str:
    return keras.backend.standardize_dtype(x.dtype)


def _is_dense(x: Any) -> bool:
    import tensorflow as tf

    return not isinstance(x, tf.SparseTensor)


def gemm(a: Any, b: Any, **options: Any) -> Any:
    """Returns `fp16_gemm(a, b, **options)`.

    TensorFlow is imported with the op, here, so that the layers import without it.
    """
    from keras_mp.ops import fp16_gemm

    return fp16_gemm(a, b, **options)


class FP32Weights:
    """Mixed into a Keras layer: its weights have at least 32 bits, whatever the policy.

    A moving variance of 1.6e5 is inf in FP16, and an average with momentum 0.9999 moves
    by less than half of the distance to the next number.
    """

    def add_weight(self: Any, *args: Any, dtype: Any = None, **options: Any) -> Any:
        dtype = keras.backend.standardize_dtype(dtype or self.variable_dtype)
        return super().add_weight(  # type: ignore[misc]
            *args, dtype="float32" if is_half(dtype) else dtype, **options
        )


class _WithoutAutocast(keras.layers.Layer):
    """A layer in whose call a variable is read as it is stored."""

    def __init__(self) -> None:
        super().__init__(dtype="float32", autocast=False, name="stored")

    def call(self, read: Callable[[], Any]) -> Any:
        value = read()
        return value.value if isinstance(value, keras.Variable) else value


_without_autocast = _WithoutAutocast()


def stored(variable: Any) -> Any:
    """Reads a variable in the dtype it is stored in, inside of a layer's `call`.

    Under `mixed_float16`, Keras rounds an FP32 variable to FP16 where it is read, and
    hence its gradient too: what lies below 6e-8 is lost. A layer made with
    `autocast=False` does not; the variables themselves stay what Keras made, so that
    its own computations with them (LoRA, quantization, cuDNN) are not touched.

    Args:
        variable: `keras.Variable`, None, or a function that returns a variable or
            computes with some.

    Returns:
        Tensor, or None.
    """
    if variable is None:
        return None
    # A variable is callable too.
    is_variable = isinstance(variable, keras.Variable)
    return _without_autocast(read=(lambda: variable) if is_variable else variable)


def lying_along(axes: list[int], inputs: Any, weight: Any) -> Any:
    """Returns a weight that lies along axes of the inputs in FP32 and of their rank.

    Args:
        axes: as many as the weight has dimensions.
        inputs: tensor.
        weight: `keras.Variable`, or None.

    Returns:
        Tensor, or None.
    """
    if weight is None:
        return None
    shape = [1] * len(inputs.shape)
    for axis, size in zip(axes, weight.shape, strict=True):
        shape[axis] = size
    return ops.reshape(ops.cast(stored(weight), "float32"), shape)


def fused(activation: Any) -> str | None:
    """Returns the name under which `fp16_gemm` knows an activation, or None."""
    return next((name for known, name in _FUSED if known is activation), None)


def rounds_first(activation: Any) -> bool:
    """Tells whether an activation runs on the rounded result, in 16 bits.

    tanh, sigmoid and gelu run on the FP32 one, as in `fp16_gemm`. Another one runs on
    the rounded one, as in Keras: a loss finds the logits on the output of a softmax.
    So does relu, which is the same before and after, and holds its result.
    """
    return fused(activation) in (None, "relu")


def finish(x: Any, activation: Any, dtype: str) -> Any:
    """Applies an activation to an FP32 result and rounds, as `rounds_first` says."""
    if not rounds_first(activation):
        return ops.cast(activation(x), dtype)
    return activated(activation, ops.cast(x, dtype))


def activated(activation: Any, x: Any) -> Any:
    """Returns `activation(x)` in the dtype of `x`; a sum in it is FP32.

    Args:
        activation: function, or None.
        x: float16 or bfloat16 tensor.
    """
    if activation is None:
        return x
    if activation not in (activations.softmax, activations.log_softmax):
        return activation(x)
    from keras_mp.ops import log_softmax, softmax

    outputs = (softmax if activation is activations.softmax else log_softmax)(x)
    if activation is activations.softmax:
        # As Keras does: a loss that finds the logits starts from them.
        keras_internals.attach_logits(outputs, x)
    return outputs


def recomputed(compute: Callable[..., Any], *held: Any) -> Any:
    """Returns `compute(*held)`, and holds nothing else for the backward pass.

    There it is computed again: in a graph, as far as the gradient needs it.

    Args:
        compute: of tensors alone, none of which it takes from elsewhere.
        *held: tensors or `tf.Variable`.
    """
    import tensorflow as tf

    from keras_mp.ops.gradients import late

    @tf.custom_gradient
    def computed(*held: Any) -> tuple[Any, Any]:
        @late
        def gradient(upstream: Any) -> Any:
            # Copies, of which each has a gradient of its own where a tensor is held
            # twice: it may be query and key.
            again = [tf.identity(x) for x in held]
            with tf.GradientTape() as tape:
                tape.watch(again)
                outputs = compute(*again)
            return tape.gradient(outputs, again, upstream)

        return compute(*held), gradient

    return computed(*(tf.convert_to_tensor(x) for x in held))
