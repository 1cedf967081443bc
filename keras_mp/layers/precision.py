"""Shared by all layers: when to use `keras_mp.ops`, reading weights, activations."""

import functools
import warnings
from collections.abc import Callable
from typing import Any

import keras
from keras import activations, ops

from keras_mp import keras_internals
from keras_mp.dtypes import is_half
from keras_mp.layers.float16_matmul_policy import Float16MatmulPolicy
from keras_mp.typing import Tensor

_FUSED = (
    (activations.relu, "relu"),
    (activations.tanh, "tanh"),
    (activations.sigmoid, "sigmoid"),
    (activations.gelu, "gelu"),
)


def uses_ops(layer: keras.Layer, *inputs: Any) -> bool:
    """Tells whether a layer computes with `keras_mp.ops` on these inputs.

    It does if its compute dtype has 16 bits and the inputs have that dtype. Inputs of
    another dtype reach a layer that does not autocast, or one called inside a layer of
    another policy; Keras promotes them, so that Keras's own layer computes the result.
    """
    if not is_half(layer.compute_dtype):
        return False
    if keras.backend.backend() != "tensorflow":
        _warn_of_backend(keras.backend.backend())
        return False
    return all(_is_dense(x) and _dtype(x) == layer.compute_dtype for x in inputs)


def multiplies(layer: keras.Layer, *inputs: Any) -> bool:
    """Tells whether a layer multiplies these inputs with `keras_mp.ops`.

    As for `uses_ops`; or the dtype policy is `Float16MatmulPolicy`, and the inputs
    are FP32.
    """
    if _matmul_policy(layer) is None:
        return uses_ops(layer, *inputs)
    if keras.backend.backend() != "tensorflow":
        _warn_of_backend(keras.backend.backend())
        return False
    return all(_is_dense(x) and _dtype(x) == "float32" for x in inputs)


def multiply(
    layer: keras.Layer, a: Any, b: Any, output_dtype: Any = None, **options: Any
) -> Any:
    """Returns a product of matrices in the precision that a layer multiplies in.

    With `Float16MatmulPolicy` it is `float16_matmul`, with any other `fp16_gemm`.

    Args:
        layer: for its dtype policy.
        a: tensor of the compute dtype.
        b: tensor, or a weight in its stored dtype.
        output_dtype: None, for the compute dtype, or `"float32"`.
        **options: arguments that both functions have.
    """
    policy = _matmul_policy(layer)
    if policy is None:
        return gemm(a, b, output_dtype=output_dtype, **options)
    from keras_mp.ops.float16_matmul import float16_matmul

    return float16_matmul(a, b, scaled=policy.scaled, **options)


def _matmul_policy(layer: keras.Layer) -> Float16MatmulPolicy | None:
    policy = layer.dtype_policy
    if isinstance(policy, keras.dtype_policies.DTypePolicyMap):
        policy = policy[layer.path]
    return policy if isinstance(policy, Float16MatmulPolicy) else None


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


def _dtype(x: Tensor) -> str:
    return keras.backend.standardize_dtype(x.dtype)


def _is_dense(x: Tensor) -> bool:
    import tensorflow as tf

    return not isinstance(x, tf.SparseTensor)


def gemm(a: Any, b: Any, **options: Any) -> Any:
    """Returns `fp16_gemm(a, b, **options)`.

    The op is imported here, so that the layers can be imported without TensorFlow.
    """
    from keras_mp.ops import fp16_gemm

    return fp16_gemm(a, b, **options)


class FP32Weights:
    """Mixin for a Keras layer: weights have at least 32 bits under every policy.

    In FP16 a moving variance of 1.6e5 is inf, and a moving average with momentum 0.9999
    stops moving: the step is less than half the distance to the next number.
    """

    def add_weight(self: Any, *args: Any, dtype: Any = None, **options: Any) -> Any:
        dtype = keras.backend.standardize_dtype(dtype or self.variable_dtype)
        return super().add_weight(  # type: ignore[misc]
            *args, dtype="float32" if is_half(dtype) else dtype, **options
        )


class _WithoutAutocast(keras.layers.Layer):
    """A layer with a call that reads variables without autocast."""

    def __init__(self) -> None:
        super().__init__(dtype="float32", autocast=False, name="read_without_autocast")

    def call(self, read: Callable[[], Any]) -> Tensor:
        value = read()
        return value.value if isinstance(value, keras.Variable) else value


_without_autocast = _WithoutAutocast()


def read_without_autocast(variable: Any) -> Any:
    """Reads a variable in its storage dtype inside a layer's `call`.

    Under `mixed_float16`, Keras rounds an FP32 variable to FP16 when it is read, and
    hence its gradient too: values below 6e-8 are lost. A layer created with
    `autocast=False` does not round. The variables are left as Keras made them, so that
    Keras's own computations with them (LoRA, quantization, cuDNN) still work.

    Args:
        variable: `keras.Variable`, None, or a function that returns a variable or
            computes with variables.

    Returns:
        Tensor, or None.
    """
    if variable is None:
        return None
    # A variable is callable too.
    is_variable = isinstance(variable, keras.Variable)
    return _without_autocast(read=(lambda: variable) if is_variable else variable)


class _InFP32(keras.layers.Layer):
    """A layer with a call that reads variables in FP32."""

    def __init__(self) -> None:
        # Keras casts what is read where this differs from what is stored.
        policy = Float16MatmulPolicy(variable_dtype="float16")
        super().__init__(dtype=policy, name="read_in_fp32")

    def call(self, read: Callable[[], Any]) -> Tensor:
        return read()


_in_fp32 = _InFP32()


def read_kernel(layer: keras.Layer) -> Tensor:
    """Reads the kernel of a layer in its storage dtype; with LoRA, the adapted one.

    LoRA's weights are FP32. A kernel of 16 bits is then also read in FP32: without
    autocast, inside a layer with autocast, Keras adds the two as if both were FP32.

    Args:
        layer: of Keras, with the property `kernel`, inside its `call`.

    Returns:
        Tensor.
    """
    if layer.lora_enabled and is_half(layer.variable_dtype):
        return _in_fp32(read=lambda: layer.kernel)
    return read_without_autocast(lambda: layer.kernel)


def reshape_for_broadcast(axes: list[int], inputs: Tensor, weight: Any) -> Any:
    """Returns a weight in FP32, reshaped to broadcast against the inputs.

    The result has the rank of the inputs, the sizes of the weight along `axes`, and
    size 1 elsewhere.

    Args:
        axes: axes of the inputs, one for each dimension of the weight.
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
    return ops.reshape(ops.cast(read_without_autocast(weight), "float32"), shape)


def fused_activation(activation: Any) -> str | None:
    """Returns the name of an activation that `fp16_gemm` can fuse, or None."""
    return next((name for known, name in _FUSED if known is activation), None)


def activates_after_rounding(activation: Any) -> bool:
    """Tells whether an activation is applied to the rounded result, in 16 bits.

    tanh, sigmoid and gelu are applied to the FP32 result, as in `fp16_gemm`. Any other
    activation is applied to the rounded result, as in Keras: a loss reads the logits
    from the output of a softmax. relu commutes with rounding; after it, the rounded
    result is all that its gradient needs.
    """
    return fused_activation(activation) in (None, "relu")


def activate_and_round(x: Tensor, activation: Any, dtype: str) -> Any:
    """Applies an activation to an FP32 result and rounds to `dtype`.

    `activates_after_rounding` decides about the order.
    """
    if not activates_after_rounding(activation):
        return ops.cast(activation(x), dtype)
    return activate(activation, ops.cast(x, dtype))


def activate(activation: Any, x: Tensor) -> Any:
    """Returns `activation(x)` in the dtype of `x`; softmax and log-softmax sum in FP32.

    Args:
        activation: function, or None.
        x: tensor.
    """
    if activation is None:
        return x
    if activation not in (activations.softmax, activations.log_softmax):
        return activation(x)
    from keras_mp.ops import log_softmax, softmax

    outputs = (softmax if activation is activations.softmax else log_softmax)(x)
    if activation is activations.softmax:
        # As Keras's own softmax does.
        keras_internals.attach_logits(outputs, x)
    return outputs


def remat(compute: Callable[..., Any], *tensors: Any) -> Any:
    """Returns `compute(*tensors)` and keeps only the tensors for the backward pass.

    The backward pass computes the intermediate results again (rematerialization); in a
    graph, only those that the gradient needs.

    Args:
        compute: function of the tensors that uses no other tensor.
        *tensors: tensors or `tf.Variable`.
    """
    import tensorflow as tf

    from keras_mp.ops.gradients import defer_until_upstream

    @tf.custom_gradient
    def computed(*tensors: Any) -> tuple[Any, Any]:
        @defer_until_upstream
        def gradient(upstream: Tensor) -> Any:
            # A tensor may be passed twice, as query and key; each copy gets a gradient.
            copies = [tf.identity(x) for x in tensors]
            with tf.GradientTape() as tape:
                tape.watch(copies)
                outputs = compute(*copies)
            return tape.gradient(outputs, copies, upstream)

        return compute(*tensors), gradient

    return computed(*(tf.convert_to_tensor(x) for x in tensors))
