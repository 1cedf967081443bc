"""Orthogonal initial weights of 16 bits, computed in FP32.

TensorFlow has no QR decomposition in bfloat16. That in FP16 leaves products of 0.1
between rows of 1024 that are to be orthogonal.
"""

import functools
from typing import Any

import keras
from keras import ops

from keras_mp.dtypes import is_half


class OrthogonalInFP32:
    """Mixin for a Keras cell: an orthogonal weight is drawn in FP32 and rounded."""

    def add_weight(
        self: Any,
        shape: Any = None,
        initializer: Any = None,
        dtype: Any = None,
        **options: Any,
    ) -> Any:
        dtype = keras.backend.standardize_dtype(dtype or self.variable_dtype)
        if is_half(dtype) and isinstance(initializer, keras.initializers.Orthogonal):
            initializer = functools.partial(_draw, initializer)
        return super().add_weight(  # type: ignore[misc]
            shape=shape, initializer=initializer, dtype=dtype, **options
        )


def _draw(initializer: Any, shape: Any, dtype: Any = None) -> Any:
    return ops.cast(initializer(shape, dtype="float32"), dtype)


class BuildsCell:
    """Mixin for a Keras recurrent layer: its cell draws orthogonal weights in FP32."""

    def build(self: Any, sequences_shape: Any, initial_state_shape: Any = None) -> None:
        draw_in_fp32(self)
        super().build(sequences_shape, initial_state_shape)  # type: ignore[misc]


def draw_in_fp32(layer: keras.Layer) -> None:
    """Has the cell of a recurrent layer, if it is Keras's, draw its weights in FP32."""
    cls: Any = type(layer.cell)
    if cls.__module__.partition(".")[0] == "keras" and _PLAIN not in vars(cls):
        layer.cell.__class__ = _drawing_in_fp32(cls)


def draw_as_keras(layer: keras.Layer) -> None:
    """Undoes `draw_in_fp32`."""
    layer.cell.__class__ = class_of_cell(layer)


def class_of_cell(layer: keras.Layer) -> Any:
    """Returns the class of the cell of a layer, that before `draw_in_fp32`."""
    return vars(type(layer.cell)).get(_PLAIN, type(layer.cell))


_PLAIN = "_keras_mp_drawing_in_fp32_of"


@functools.cache
def _drawing_in_fp32(cls: Any) -> Any:
    names = ("__module__", "__qualname__", "__doc__")
    members = {name: getattr(cls, name) for name in names} | {_PLAIN: cls}
    return type(cls.__name__, (OrthogonalInFP32, cls), members)
