"""The class of a layer changes, and what Keras has bound to the layer."""

import functools
from typing import Any

import keras

from keras_mp.layers.conversion.counterparts import COUNTERPARTS, PLAIN
from keras_mp.layers.rnn.orthogonal_weights import (
    BuildsCell,
    draw_as_keras,
    draw_in_fp32,
)


def change_class(layer: Any, cls: Any) -> None:
    """Makes a layer of a Keras class one of its counterpart, or the other way round."""
    if not isinstance(layer.quantize, _Quantize):
        layer.quantize = _Quantize(layer)
    elif cls is layer.quantize.made_as:
        layer.quantize = layer.quantize.of_keras
    layer.__class__ = cls
    # `build` is bound to the layer as well, and goes on to be that of its old class.
    if issubclass(cls, BuildsCell):
        draw_in_fp32(layer)
    elif isinstance(layer, keras.layers.RNN):
        draw_as_keras(layer)


class _Quantize:
    """The method `quantize` of a layer of another class than it was made as.

    Keras binds it to the layer when it is made, with a check that refuses subclasses.

    Args:
        layer: `keras.Layer`, before its class changes.
    """

    def __init__(self, layer: Any) -> None:
        functools.update_wrapper(self, layer.quantize)
        self.layer, self.made_as, self.of_keras = layer, type(layer), layer.quantize

    def __call__(
        self, mode: Any = None, *args: Any, type_check: bool = True, **options: Any
    ) -> None:
        changed_to = type(self.layer)
        is_subclass = changed_to not in (*PLAIN, *COUNTERPARTS)
        self.layer.__class__ = self.made_as
        try:
            checks = type_check and is_subclass
            self.of_keras(mode, *args, type_check=checks, **options)
        finally:
            self.layer.__class__ = changed_to
