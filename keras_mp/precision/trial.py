"""A model as `convert` and modes would make it, inside a `with` block."""

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from keras_mp import keras_internals
from keras_mp.precision.counterparts import converted_class
from keras_mp.precision.model_index import ModelIndex
from keras_mp.precision.scope import precision_scope
from keras_mp.precision.wider_inputs import wider_inputs


@contextmanager
def converted_in_modes(
    model: Any, modes: Mapping[str, str], fp32_weights: Collection[str] = ()
) -> Iterator[None]:
    """Converts a model and puts its layers into modes inside a `with` block.

    Args:
        model: `keras.Model`.
        modes: dict from the path of a layer to its mode.
        fp32_weights: paths of layers among them whose weights count as FP32.
    """
    index = ModelIndex(model)
    classes = [(layer, type(layer)) for layer in index.layers]
    wider = [(layer, layer.dtype, dtype) for layer, dtype in wider_inputs(model)]
    try:
        for layer, _ in classes:
            layer.__class__ = converted_class(layer)
        for layer, _, dtype in wider:
            keras_internals.set_input_dtype(layer, dtype)
        with precision_scope(index, modes, fp32_weights):
            yield
    finally:
        for layer, cls in classes:
            layer.__class__ = cls
        for layer, dtype, _ in wider:
            keras_internals.set_input_dtype(layer, dtype)
