"""What the layers of a model add to its loss, in FP32.

On TensorFlow Keras adds them to a float32 loss by an op that takes one dtype only, and
asks nothing of the optimizer before it does.
"""

from collections.abc import Iterable, Iterator
from typing import Any

import keras

from keras_mp import keras_internals
from keras_mp.dtypes import is_half
from keras_mp.regularizers import FP32Regularizer


def regularize_in_fp32(model: keras.Model) -> keras.Model:
    """Puts `FP32Regularizer` around the regularizers of a model's 16-bit layers.

    Around those of weights stored in 16 bits and of activities computed in 16 bits,
    before the model is built or after. What a layer of yours gives to `add_loss` it
    must cast by itself: `self.add_loss(keras.ops.cast(loss, "float32"))`.

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
    for layer, name in _in_16_bits(model):
        setattr(layer, name, FP32Regularizer(getattr(layer, name)))
    regularize_weights(model.weights)
    return model


def regularize_weights(weights: Iterable[Any]) -> None:
    """Puts `FP32Regularizer` around the regularizers of weights stored in 16 bits.

    Args:
        weights: list of `keras.Variable` or `tf.Variable`.
    """
    for weight in weights:
        if _computes_in_16_bits(getattr(weight, "regularizer", None), weight.dtype):
            weight.regularizer = FP32Regularizer(weight.regularizer)


def check_penalties(model: keras.Model) -> None:
    """Puts `FP32Regularizer` around those of the weights, and finds the others.

    Args:
        model: `keras.Model` that is about to be trained.

    Raises:
        ValueError: there are others, and Keras cannot compute the loss.
    """
    if keras.backend.backend() != "tensorflow" or not _adds_to_its_loss(model):
        return
    regularize_weights(model.weights)
    for layer, name in _in_16_bits(model):
        if name != "activity_regularizer" and layer.built:
            continue
        raise ValueError(
            "Regularizers of 16-bit layers must be evaluated in FP32, or Keras cannot "
            f"add them to the loss. Received: {layer.name}.{name}="
            f"{type(getattr(layer, name)).__name__}. Call "
            "keras_mp.regularize_in_fp32(model) before `fit`."
        )


def _adds_to_its_loss(model: keras.Model) -> bool:
    """Tells whether Keras's own code adds penalties to the loss given to `compile`."""
    own, of_keras = type(model), keras.Model
    return (
        model.loss is not None
        and own.compute_loss is of_keras.compute_loss
        and own.train_step is of_keras.train_step
    )


def _in_16_bits(model: keras.Model) -> Iterator[tuple[keras.Layer, str]]:
    """Yields each layer with a regularizer that computes in 16 bits, and its name."""
    for layer in keras_internals.flatten_layers(model):
        for name, value in list(vars(layer).items()):
            is_activity = name == "activity_regularizer"
            dtype = layer.compute_dtype if is_activity else layer.variable_dtype
            if name.endswith("_regularizer") and _computes_in_16_bits(value, dtype):
                yield layer, name


def _computes_in_16_bits(regularizer: Any, dtype: Any) -> bool:
    if regularizer is None or isinstance(regularizer, FP32Regularizer):
        return False
    return is_half(keras.backend.standardize_dtype(dtype))
