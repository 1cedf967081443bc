"""The counterparts of Keras layers in keras_mp, and why other layers have none."""

import functools
import inspect
from collections.abc import Iterable
from typing import Any

import keras

from keras_mp import keras_internals
from keras_mp.layers.activations.activation import Activation
from keras_mp.layers.activations.softmax import Softmax
from keras_mp.layers.attention.additive_attention import AdditiveAttention
from keras_mp.layers.attention.attention import Attention
from keras_mp.layers.attention.grouped_query_attention import GroupedQueryAttention
from keras_mp.layers.attention.multi_head_attention import MultiHeadAttention
from keras_mp.layers.convolutional.conv import Conv1D, Conv2D, Conv3D
from keras_mp.layers.convolutional.conv_transpose import (
    Conv1DTranspose,
    Conv2DTranspose,
    Conv3DTranspose,
)
from keras_mp.layers.convolutional.depthwise_conv import (
    DepthwiseConv1D,
    DepthwiseConv2D,
)
from keras_mp.layers.convolutional.separable_conv import (
    SeparableConv1D,
    SeparableConv2D,
)
from keras_mp.layers.core.dense import Dense
from keras_mp.layers.core.einsum_dense import EinsumDense
from keras_mp.layers.core.embedding import Embedding
from keras_mp.layers.merging.add_and_average import Add, Average
from keras_mp.layers.merging.dot import Dot
from keras_mp.layers.normalization.batch_normalization import BatchNormalization
from keras_mp.layers.normalization.group_normalization import GroupNormalization
from keras_mp.layers.normalization.layer_normalization import LayerNormalization
from keras_mp.layers.normalization.normalization import Normalization
from keras_mp.layers.normalization.spectral_normalization import SpectralNormalization
from keras_mp.layers.normalization.unit_normalization import UnitNormalization
from keras_mp.layers.pooling.average_pooling import (
    AveragePooling1D,
    AveragePooling2D,
    AveragePooling3D,
)
from keras_mp.layers.pooling.global_average_pooling import (
    GlobalAveragePooling1D,
    GlobalAveragePooling2D,
    GlobalAveragePooling3D,
)
from keras_mp.layers.rnn.conv_lstm import ConvLSTM1D, ConvLSTM2D, ConvLSTM3D
from keras_mp.layers.rnn.gru import GRU
from keras_mp.layers.rnn.gru_cell import GRUCell
from keras_mp.layers.rnn.lstm import LSTM
from keras_mp.layers.rnn.lstm_cell import LSTMCell
from keras_mp.layers.rnn.simple_rnn import SimpleRNN
from keras_mp.layers.rnn.simple_rnn_cell import SimpleRNNCell
from keras_mp.precision.own_code import nested
from keras_mp.precision.scope import CastResults

# A new layer is one line here.
COUNTERPARTS: dict[Any, Any] = {
    keras.layers.Activation: Activation,
    keras.layers.Add: Add,
    keras.layers.AdditiveAttention: AdditiveAttention,
    keras.layers.Attention: Attention,
    keras.layers.Average: Average,
    keras.layers.AveragePooling1D: AveragePooling1D,
    keras.layers.AveragePooling2D: AveragePooling2D,
    keras.layers.AveragePooling3D: AveragePooling3D,
    keras.layers.BatchNormalization: BatchNormalization,
    keras.layers.Conv1D: Conv1D,
    keras.layers.Conv1DTranspose: Conv1DTranspose,
    keras.layers.Conv2D: Conv2D,
    keras.layers.Conv2DTranspose: Conv2DTranspose,
    keras.layers.Conv3D: Conv3D,
    keras.layers.Conv3DTranspose: Conv3DTranspose,
    keras.layers.ConvLSTM1D: ConvLSTM1D,
    keras.layers.ConvLSTM2D: ConvLSTM2D,
    keras.layers.ConvLSTM3D: ConvLSTM3D,
    keras.layers.Dense: Dense,
    keras.layers.DepthwiseConv1D: DepthwiseConv1D,
    keras.layers.DepthwiseConv2D: DepthwiseConv2D,
    keras.layers.Dot: Dot,
    keras.layers.EinsumDense: EinsumDense,
    keras.layers.Embedding: Embedding,
    keras.layers.GRU: GRU,
    keras.layers.GRUCell: GRUCell,
    keras.layers.GlobalAveragePooling1D: GlobalAveragePooling1D,
    keras.layers.GlobalAveragePooling2D: GlobalAveragePooling2D,
    keras.layers.GlobalAveragePooling3D: GlobalAveragePooling3D,
    keras.layers.GroupNormalization: GroupNormalization,
    keras.layers.GroupQueryAttention: GroupedQueryAttention,
    keras.layers.LSTM: LSTM,
    keras.layers.LSTMCell: LSTMCell,
    keras.layers.LayerNormalization: LayerNormalization,
    keras.layers.MultiHeadAttention: MultiHeadAttention,
    keras.layers.Normalization: Normalization,
    keras.layers.SeparableConv1D: SeparableConv1D,
    keras.layers.SeparableConv2D: SeparableConv2D,
    keras.layers.SimpleRNN: SimpleRNN,
    keras.layers.SimpleRNNCell: SimpleRNNCell,
    keras.layers.Softmax: Softmax,
    keras.layers.SpectralNormalization: SpectralNormalization,
    keras.layers.UnitNormalization: UnitNormalization,
}
if keras_internals.has("RMSNormalization"):
    from keras_mp.layers.normalization.rms_normalization import RMSNormalization

    COUNTERPARTS |= {keras.layers.RMSNormalization: RMSNormalization}
if keras_internals.has("ReversibleEmbedding"):
    from keras_mp.layers.core.reversible_embedding import ReversibleEmbedding

    COUNTERPARTS |= {keras.layers.ReversibleEmbedding: ReversibleEmbedding}
if keras_internals.has("AdaptiveAveragePooling1D"):
    from keras_mp.layers.pooling.adaptive_average_pooling import (
        AdaptiveAveragePooling1D,
        AdaptiveAveragePooling2D,
        AdaptiveAveragePooling3D,
    )

    COUNTERPARTS |= {
        keras.layers.AdaptiveAveragePooling1D: AdaptiveAveragePooling1D,
        keras.layers.AdaptiveAveragePooling2D: AdaptiveAveragePooling2D,
        keras.layers.AdaptiveAveragePooling3D: AdaptiveAveragePooling3D,
    }
# Layers that compute 16-bit products or sums and have no counterpart, with the reason.
# By name, since not every release of Keras has all of them.
_OTHER_CODE = "it runs code that is not Keras's"
_AUGMENTATION = "it sums pixels in its dtype: give an augmentation dtype='float32'"
_PREPROCESSING = "it sums in its dtype: give preprocessing dtype='float32'"
NOT_CONVERTED = {
    "AugMix": _AUGMENTATION,
    "ContrastLimitedAdaptiveHistogramEqualization": _AUGMENTATION,
    "Equalization": _AUGMENTATION,
    "FlaxLayer": _OTHER_CODE,
    "JaxLayer": _OTHER_CODE,
    "MelSpectrogram": _PREPROCESSING,
    "RandAugment": _AUGMENTATION,
    "RandomColorJitter": _AUGMENTATION,
    "RandomContrast": _AUGMENTATION,
    "RandomElasticTransform": _AUGMENTATION,
    "RandomGaussianBlur": _AUGMENTATION,
    "RandomPerspective": _AUGMENTATION,
    "RandomSharpness": _AUGMENTATION,
    "STFTSpectrogram": _PREPROCESSING,
    "TFSMLayer": _OTHER_CODE,
    "TorchModuleWrapper": _OTHER_CODE,
}
KERAS_CLASSES = {mp_class: of_keras for of_keras, mp_class in COUNTERPARTS.items()}
# The layers that do as `Float16MatmulPolicy` says.
WITH_MATMUL: tuple[type, ...] = (
    AdditiveAttention,
    Attention,
    Dense,
    Dot,
    EinsumDense,
    GroupedQueryAttention,
    MultiHeadAttention,
)
if keras_internals.has("ReversibleEmbedding"):
    WITH_MATMUL += (ReversibleEmbedding,)


def counterpart(cls: Any) -> Any:
    """Returns the class to convert a layer of class `cls` to, or None.

    For a subclass of a Keras layer it is a new class with the bases `cls` and the
    counterpart of the Keras layer, so that methods of the subclass still take
    precedence. There is none if the subclass overrides a method that the counterpart
    replaces or does not call.

    Args:
        cls: class of a layer.
    """
    base = keras_base(cls)
    if base is None or overridden(cls):
        return None
    mp_class = COUNTERPARTS[base]
    if cls is base:
        return mp_class
    try:
        return _insert_base(cls, mp_class)
    except TypeError:
        return None  # `__init_subclass__` of the class needs arguments


def converted_class(layer: keras.Layer) -> Any:
    """Returns the class that a layer has after `convert`."""
    cls = counterpart(type(layer))
    return type(layer) if cls is None or replaced_methods(layer) else cls


def has_matmul(layer: keras.Layer) -> bool:
    """Tells whether a layer, once converted, multiplies in FP16 with FP32 results."""
    return issubclass(converted_class(layer), WITH_MATMUL)


def keras_base(cls: Any) -> Any:
    """Returns the first base of `cls`, or `cls`, that has a counterpart, or None."""
    if is_converted(cls):
        return None
    return next((base for base in cls.__mro__ if base in COUNTERPARTS), None)


def overridden(cls: Any) -> list[str]:
    """Returns the methods of a subclass that a conversion would disable or replace."""
    base = keras_base(cls)
    own = _methods(set(cls.__mro__) - set(base.__mro__))
    return sorted(own.keys() & _disabled(base))


def replaced_methods(layer: keras.Layer) -> list[str]:
    """Returns such methods that were replaced on a layer itself, not by its class."""
    own = {
        name
        for name, value in vars(layer).items()
        if callable(value)
        and callable(getattr(type(layer), name, None))
        and not (isinstance(value, CastResults) and value.own is None)
    }
    return sorted((own - _SET_BY_KERAS) & _disabled(keras_base(type(layer))))


# The methods that Keras replaces on each layer when it is made.
_SET_BY_KERAS = {"build", "quantize"}


@functools.cache
def _disabled(base: Any) -> set[str]:
    """Returns the methods of a Keras layer that its conversion disables or replaces.

    They are the methods that the counterpart overrides, such as `call`, and those that
    only the overridden methods of the Keras layer call, such as `convolution_op`; but
    not the methods in its `delegated_methods`, which call the Keras layer's method.
    """
    counterpart = COUNTERPARTS[base]
    of_base = _methods(set(base.__mro__) - set(keras.Layer.__mro__))
    ours = _methods(set(counterpart.__mro__) - set(base.__mro__))
    for name in getattr(counterpart, "delegated_methods", ()):
        del ours[name]
    called = _called([of_base[name] for name in ours.keys() & of_base.keys()], of_base)
    # The counterparts call private methods of Keras through this module.
    internals = dict(inspect.getmembers(keras_internals, inspect.isfunction))
    # Whoever overrides `build` calls that of the base class.
    return (ours.keys() | (called - _called(ours.values(), internals))) - {"build"}


def _methods(classes: set[Any]) -> dict[str, Any]:
    return {
        name: value
        for cls in classes
        for name, value in vars(cls).items()
        if callable(value)
    }


def _called(functions: Iterable[Any], methods: dict[str, Any]) -> set[str]:
    """Returns the names in the code of functions and of the methods that they name.

    Args:
        functions: the functions to start with.
        methods: further functions by name; one is searched too if its name is found.
    """
    waiting, found = list(functions), set[str]()
    while waiting:
        code = getattr(inspect.unwrap(waiting.pop()), "__code__", None)
        names = {name for part in nested(code) for name in part.co_names}
        waiting += [methods[name] for name in (names - found) & methods.keys()]
        found |= names
    return found


def is_converted(cls: Any) -> bool:
    """Tells whether a class is a counterpart or a subclass of one."""
    return any(base in KERAS_CLASSES for base in cls.__mro__)


def keras_class(cls: Any) -> Any:
    """Returns the class that has `cls` as its counterpart, or None."""
    return KERAS_CLASSES.get(cls) or vars(cls).get(_EXTENDED)


_EXTENDED = "_keras_mp_counterpart_of"


@functools.cache
def _insert_base(cls: Any, mp_class: Any) -> Any:
    """Returns a class with the bases `cls` and `mp_class`, in this order.

    It has the name of `cls` and is registered under it, so that saved files are the
    same as for `cls`.
    """
    names = ("__module__", "__qualname__", "__doc__")
    members = {name: getattr(cls, name) for name in names} | {_EXTENDED: cls}
    made = type(cls.__name__, (cls, mp_class), members)
    package, separator, name = keras.saving.get_registered_name(cls).partition(">")
    if separator:
        for each in (made, cls):  # a name loads as the last class registered
            keras.saving.register_keras_serializable(package, name)(each)
    return made
