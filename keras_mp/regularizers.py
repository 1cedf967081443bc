"""Regularizers of 16-bit weights, evaluated in FP32."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import keras
from keras import ops

from keras_mp.arguments import short_repr
from keras_mp.dtypes import is_half
from keras_mp.serialization import deserialize


@keras.saving.register_keras_serializable(package="keras_mp")
class FP32Regularizer(keras.regularizers.Regularizer):
    """Evaluates another regularizer on the weight cast to float32.

    In float16 the square of any weight below 2**-12.5 is 0, and a loss scale above
    65,504 is inf before it reaches the weight. `FP32MasterOptimizer.build` puts one
    around the regularizer of every weight stored in 16 bits.

    Args:
        regularizer: callable from a tensor to a scalar, such as a
            `keras.regularizers.Regularizer`, its name or its config.

    Raises:
        TypeError: `regularizer` is something else.
        ValueError: `regularizer` is a name that Keras does not know, or a malformed
            config.

    Example:

    >>> l2 = keras_mp.FP32Regularizer(keras.regularizers.L2(1e-5))
    >>> weight = keras.ops.full((1,), 1e-4, dtype="float16")
    >>> print(f"{float(l2(weight)):.1e}")
    1.0e-13

    Reference: Mixed Precision Training, section 3.2.
    """

    def __init__(
        self, regularizer: Callable[[Any], Any] | str | dict[str, Any]
    ) -> None:
        if isinstance(regularizer, dict):
            regularizer = _deserialize(regularizer)
        if not callable(regularizer) and not isinstance(regularizer, str):
            raise TypeError(
                "`regularizer` must be a callable, or the name or config of one. "
                f"Received: regularizer={short_repr(regularizer)}. A "
                "weight without a regularizer needs none."
            )
        self.regularizer = keras.regularizers.get(regularizer)

    def __call__(self, x: Any) -> Any:
        return self.regularizer(ops.cast(x, "float32"))

    def get_config(self) -> dict[str, Any]:
        """Returns the constructor's arguments."""
        serialized = keras.saving.serialize_keras_object(self.regularizer)
        return {"regularizer": serialized}


def _deserialize(config: dict[str, Any]) -> Any:
    """Returns a regularizer, or a function that its author has registered."""
    name = config.get("config")
    if config.get("class_name") == "function" and isinstance(name, str):
        return keras.saving.get_registered_object(name)
    kind = keras.regularizers.Regularizer
    return deserialize("regularizer", config, kind, "regularizers")


def regularizers_in_16_bits(
    layers: Iterable[keras.Layer],
) -> Iterator[tuple[keras.Layer, str]]:
    """Yields layers and the names of their regularizers that compute in 16 bits."""
    for layer in layers:
        for name, value in list(vars(layer).items()):
            is_activity = name == "activity_regularizer"
            dtype = layer.compute_dtype if is_activity else layer.variable_dtype
            if name.endswith("_regularizer") and _computes_in_16_bits(value, dtype):
                yield layer, name


def regularize_layers(layers: Iterable[keras.Layer]) -> None:
    """Puts `FP32Regularizer` around the regularizers of 16-bit layers and weights.

    Args:
        layers: of a model, at any depth.
    """
    layers = list(layers)
    for layer, name in regularizers_in_16_bits(layers):
        setattr(layer, name, FP32Regularizer(getattr(layer, name)))
    for layer in layers:
        regularize_weights(layer.weights)


def regularize_weights(weights: Iterable[Any]) -> None:
    """Puts `FP32Regularizer` around the regularizers of weights stored in 16 bits.

    Args:
        weights: list of `keras.Variable` or `tf.Variable`.
    """
    for weight in weights:
        if _computes_in_16_bits(getattr(weight, "regularizer", None), weight.dtype):
            weight.regularizer = FP32Regularizer(weight.regularizer)


def restore_regularizers(layers: Iterable[keras.Layer]) -> None:
    """Takes `FP32Regularizer` out of layers; on their weights no file has it."""
    for layer in layers:
        for name, value in list(vars(layer).items()):
            if name.endswith("_regularizer") and isinstance(value, FP32Regularizer):
                setattr(layer, name, value.regularizer)


def _computes_in_16_bits(regularizer: Any, dtype: Any) -> bool:
    if regularizer is None or isinstance(regularizer, FP32Regularizer):
        return False
    return is_half(keras.backend.standardize_dtype(dtype))
