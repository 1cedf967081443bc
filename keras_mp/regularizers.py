"""Regularizers of 16-bit weights, evaluated in FP32.

On TensorFlow, Keras adds penalties to a float32 loss by an op that needs arguments of
the same dtype, before it calls the optimizer.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import keras
from keras import ops

from keras_mp import keras_internals
from keras_mp.arguments import short_repr
from keras_mp.dtypes import is_half
from keras_mp.serialization import deserialize
from keras_mp.typing import Tensor, Variable


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

    def __call__(self, x: Tensor) -> Any:
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


def regularize_weights(weights: Iterable[Variable]) -> None:
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


def regularize_in_fp32(model: keras.Model) -> keras.Model:
    """Puts `FP32Regularizer` around the regularizers of a model's 16-bit layers.

    That is, of weights stored in 16 bits and of activities computed in 16 bits, before
    or after the model is built. A layer of your own that calls `add_loss` must cast the
    loss itself: `self.add_loss(keras.ops.cast(loss, "float32"))`.

    Args:
        model: `keras.Model`, changed in place.

    Returns:
        `model`.

    Example:

    >>> layer = keras.layers.Dense(1, kernel_regularizer="l2", dtype="float16")
    >>> model = keras_mp.regularize_in_fp32(keras.Sequential([layer]))
    >>> model.compile(keras_mp.wrap("sgd"), loss="mse")
    >>> x = np.zeros((4, 2), "float32")
    >>> history = model.fit(x, x[:, :1], verbose=0)
    >>> type(layer.kernel_regularizer).__name__
    'FP32Regularizer'

    Reference: Mixed Precision Training, section 3.3.
    """
    regularize_layers(keras_internals.flatten_layers(model))
    return model


def check_penalties(model: keras.Model) -> None:
    """Puts `FP32Regularizer` around regularizers of weights, and refuses others.

    Args:
        model: `keras.Model` that is about to be trained.

    Raises:
        ValueError: other regularizers compute in 16 bits, so that `fit` would fail.
    """
    if keras.backend.backend() != "tensorflow" or not _adds_to_its_loss(model):
        return
    regularize_weights(model.weights)
    layers = keras_internals.flatten_layers(model)
    for layer, name in regularizers_in_16_bits(layers):
        if name != "activity_regularizer" and layer.built:
            continue
        raise ValueError(
            "Regularizers of 16-bit layers must be evaluated in FP32, or Keras cannot "
            f"add them to the loss. Received: {layer.name}.{name}="
            f"{type(getattr(layer, name)).__name__}. Call "
            "keras_mp.regularize_in_fp32(model) before `fit`."
        )


def _adds_to_its_loss(model: keras.Model) -> bool:
    """Tells whether Keras adds the penalties: not in a `train_step` of the user."""
    own, of_keras = type(model), keras.Model
    return (
        model.loss is not None
        and own.compute_loss is of_keras.compute_loss
        and own.train_step is of_keras.train_step
    )
