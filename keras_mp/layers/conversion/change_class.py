"""The class of a layer changes, and nothing else about it."""

import functools
from typing import Any

from keras_mp.layers.conversion.counterparts import COUNTERPARTS, PLAIN


def change_class(layer: Any, cls: Any) -> None:
    """Makes a layer one of a Keras class or its counterpart, and keeps `quantize`."""
    if not isinstance(layer.quantize, _Quantize):
        layer.quantize = _Quantize(layer)
    elif cls is layer.quantize.made_as:
        layer.quantize = layer.quantize.of_keras
    layer.__class__ = cls


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
