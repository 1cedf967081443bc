"""Penalties that regularizers add to the loss of a model, computed in FP32.

On TensorFlow, Keras adds them to a float32 loss by an op that needs arguments of the
same dtype, before it calls the optimizer.
"""

import keras

from keras_mp import keras_internals
from keras_mp.regularizers import (
    regularize_layers,
    regularize_weights,
    regularizers_in_16_bits,
)


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
