"""`convert`: the layers of a model replaced by those of `keras_mp.layers`."""

from typing import Any

import keras

from keras_mp.layers.additive_attention import AdditiveAttention
from keras_mp.layers.attention import Attention
from keras_mp.layers.average_pooling1d import AveragePooling1D
from keras_mp.layers.average_pooling2d import AveragePooling2D
from keras_mp.layers.average_pooling3d import AveragePooling3D
from keras_mp.layers.batch_normalization import BatchNormalization
from keras_mp.layers.conv1d import Conv1D
from keras_mp.layers.conv2d import Conv2D
from keras_mp.layers.conv2d_transpose import Conv2DTranspose
from keras_mp.layers.conv3d import Conv3D
from keras_mp.layers.dense import Dense
from keras_mp.layers.depthwise_conv2d import DepthwiseConv2D
from keras_mp.layers.einsum_dense import EinsumDense
from keras_mp.layers.global_average_pooling1d import GlobalAveragePooling1D
from keras_mp.layers.global_average_pooling2d import GlobalAveragePooling2D
from keras_mp.layers.global_average_pooling3d import GlobalAveragePooling3D
from keras_mp.layers.group_normalization import GroupNormalization
from keras_mp.layers.gru import GRU
from keras_mp.layers.gru_cell import GRUCell
from keras_mp.layers.layer_normalization import LayerNormalization
from keras_mp.layers.lstm import LSTM
from keras_mp.layers.lstm_cell import LSTMCell
from keras_mp.layers.multi_head_attention import MultiHeadAttention
from keras_mp.layers.rms_normalization import RMSNormalization
from keras_mp.layers.separable_conv2d import SeparableConv2D
from keras_mp.layers.softmax import Softmax
from keras_mp.layers.spectral_normalization import SpectralNormalization
from keras_mp.layers.unit_normalization import UnitNormalization

# A new layer is one line here.
COUNTERPARTS: dict[Any, Any] = {
    keras.layers.AdditiveAttention: AdditiveAttention,
    keras.layers.Attention: Attention,
    keras.layers.AveragePooling1D: AveragePooling1D,
    keras.layers.AveragePooling2D: AveragePooling2D,
    keras.layers.AveragePooling3D: AveragePooling3D,
    keras.layers.BatchNormalization: BatchNormalization,
    keras.layers.Conv1D: Conv1D,
    keras.layers.Conv2D: Conv2D,
    keras.layers.Conv2DTranspose: Conv2DTranspose,
    keras.layers.Conv3D: Conv3D,
    keras.layers.Dense: Dense,
    keras.layers.DepthwiseConv2D: DepthwiseConv2D,
    keras.layers.EinsumDense: EinsumDense,
    keras.layers.GRU: GRU,
    keras.layers.GRUCell: GRUCell,
    keras.layers.GlobalAveragePooling1D: GlobalAveragePooling1D,
    keras.layers.GlobalAveragePooling2D: GlobalAveragePooling2D,
    keras.layers.GlobalAveragePooling3D: GlobalAveragePooling3D,
    keras.layers.GroupNormalization: GroupNormalization,
    keras.layers.LSTM: LSTM,
    keras.layers.LSTMCell: LSTMCell,
    keras.layers.LayerNormalization: LayerNormalization,
    keras.layers.MultiHeadAttention: MultiHeadAttention,
    keras.layers.RMSNormalization: RMSNormalization,
    keras.layers.SeparableConv2D: SeparableConv2D,
    keras.layers.Softmax: Softmax,
    keras.layers.SpectralNormalization: SpectralNormalization,
    keras.layers.UnitNormalization: UnitNormalization,
}

# What follows from arguments that Keras does not save.
_NOT_IN_CONFIG = (
    "use_cudnn",
    "implementation",
    "dropout_mask_count",
    "supports_jit",
    "_flash_attention",
)


def convert(model: keras.Model) -> keras.Model:
    """Returns the model with each layer replaced by that of `keras_mp.layers`.

    A layer of exactly the class `keras.layers.X` becomes `keras_mp.layers.X`, if there
    is one; so does what is inside of nested models and of Keras's wrappers, such as
    `Bidirectional`, `TimeDistributed` and `RNN`. A subclass of yours stays what it is.
    Names, dtype policies, weights and seeds are kept. The new model shares none with
    the old one, and is compiled as that was, with an optimizer that starts anew; so do
    the states of a stateful RNN. The model is rebuilt from its config: functions and
    classes of yours must be registered (`keras.saving.register_keras_serializable`),
    or in a `keras.saving.custom_object_scope`.

    Args:
        model: `keras.Sequential`, or a functional `keras.Model`.

    Returns:
        A model of the same kind.

    Raises:
        ValueError: the model, or one nested in it, is of a class of its own, or has
            other variables than its config says.
        RuntimeError: Keras is on another backend than TensorFlow.

    Example:

    >>> model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
    >>> type(keras_mp.convert(model).layers[0])
    <class 'keras_mp.layers.dense.Dense'>

    Reference: Mixed Precision Training, section 3.3.
    """
    _check_backend()
    _check(model)
    if not isinstance(model, keras.Model):
        raise ValueError(
            "`convert` takes a model. "
            f"Received: {model!r}. Make a single layer with `keras_mp.layers`, under "
            "the same name and with the same arguments."
        )
    converted = keras.models.clone_model(
        model, clone_function=_converted_layer, recursive=True
    )
    if model.built and not converted.built:
        converted.build(model.input_shape)
    _copy_state(model, converted)
    if model.compiled:
        # Again: an optimizer may copy the weights when it is built.
        converted.compile_from_config(model.get_compile_config())
    return converted


def _copy_state(model: keras.Model, converted: keras.Model) -> None:
    old_variables, new_variables = model.variables, converted.variables
    found, expected = (
        [(variable.name, tuple(variable.shape)) for variable in variables]
        for variables in (new_variables, old_variables)
    )
    if found != expected:
        raise ValueError(
            "A model to convert must have the variables that Keras gives to one of its "
            f"config; quantized and LoRA models may not. Received: {model.name!r} with "
            f"{expected}, which was rebuilt with {found}. Convert first, then quantize "
            "or call `enable_lora`."
        )
    for old, new in zip(_all_layers(model), _all_layers(converted), strict=True):
        new.trainable = old.trainable
        for name in _NOT_IN_CONFIG:
            if name in vars(old):
                setattr(new, name, getattr(old, name))
    for old, new in zip(old_variables, new_variables, strict=True):
        new.assign(old)
        if new.trainable != old.trainable:
            new.trainable = old.trainable


def _check_backend() -> None:
    if keras.backend.backend() != "tensorflow":
        raise RuntimeError(
            "`convert` needs Keras on the TensorFlow backend: on others the layers of "
            "keras_mp compute as those of Keras. "
            f"Received: backend={keras.backend.backend()!r}. Leave the model as it is, "
            "or set KERAS_BACKEND=tensorflow before Keras is imported."
        )


def _all_layers(layer: keras.Layer) -> list[keras.Layer]:
    return layer._flatten_layers()


def _check(model: Any) -> None:
    if isinstance(model, keras.Model) and not _is_of_keras(type(model)):
        raise ValueError(
            "`convert` rebuilds Sequential and functional models; one of another class "
            "is known to its author alone. "
            f"Received: {model.name!r}, of class {type(model).__name__}. Make its "
            "layers with `keras_mp.layers`, which has them under the same names, and "
            "load the old weights: they fit."
        )


def _is_of_keras(cls: type) -> bool:
    return cls.__module__.partition(".")[0] == "keras"


def _converted_layer(layer: Any) -> Any:
    """Returns a new layer: the counterpart, or one with its inside converted."""
    _check(layer)
    if isinstance(layer, keras.layers.Lambda):
        return layer  # has no weights, and Keras does not rebuild one from its config
    config = layer.get_config()
    if isinstance(layer, keras.layers.Layer) and _is_of_keras(type(layer)):
        config = _converted_config(config)
    return COUNTERPARTS.get(type(layer), type(layer)).from_config(config)


def _converted_config(config: Any) -> Any:
    """Replaces the class of each layer that a config holds, at any depth."""
    if isinstance(config, list | tuple):
        return type(config)(_converted_config(item) for item in config)
    if not isinstance(config, dict):
        return config
    # What was built is built again by the wrapper, which gives the weights their paths.
    dropped = "build_config" if "class_name" in config else None
    config = {
        key: _converted_config(value) for key, value in config.items() if key != dropped
    }
    for old, new in COUNTERPARTS.items():
        if config.get("module") == "keras.layers" and (
            config.get("class_name") == old.__name__
        ):
            name = keras.saving.get_registered_name(new)
            return config | {"module": new.__module__, "registered_name": name}
    return config
