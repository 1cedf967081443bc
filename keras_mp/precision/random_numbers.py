"""Random numbers that are the same in every precision.

From the same seed TensorFlow draws others in FP16 than in FP32, so that two runs of a
model would differ by their dropout, and not by their rounding.
"""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_mp.precision.compute_dtype import having_policies
from keras_mp.precision.model_index import ModelIndex
from keras_mp.precision.scope import result_dtype

_RANDOM_LAYERS = (
    keras.layers.AlphaDropout,
    keras.layers.Dropout,
    keras.layers.GaussianDropout,
    keras.layers.GaussianNoise,
)
_METHODS_OF_CELLS = ("get_dropout_mask", "get_recurrent_dropout_mask")


def is_random(layer: keras.Layer) -> bool:
    """Tells whether a layer returns its inputs with noise, and does nothing else."""
    return isinstance(layer, _RANDOM_LAYERS)


def run_in_fp32(cls: Any, layer: keras.Layer, args: Any, kwargs: Any) -> Any:
    """Calls such a layer in FP32, and rounds its outputs to its compute dtype."""
    with having_policies([(layer, "float32")]):
        outputs = cls.__call__(layer, *args, **kwargs)
    return ops.cast(ops.cast(outputs, layer.compute_dtype), result_dtype(layer))


@contextlib.contextmanager
def cells_drawing_in_fp32(model: keras.Model) -> Iterator[None]:
    """Has recurrent cells draw their dropout in FP32 inside a `with` block."""
    cells = [layer for layer in ModelIndex(model).layers if _is_cell(layer)]
    before = [
        (cell, name, vars(cell).get(name))
        for cell in cells
        for name in _METHODS_OF_CELLS
    ]
    try:
        for cell, name, _ in before:
            vars(cell)[name] = _in_fp32(getattr(cell, name))
        yield
    finally:
        for cell, name, own in before:
            vars(cell).pop(name, None)
            if own is not None:
                vars(cell)[name] = own
        for cell in cells:
            # A layer that fails has not forgotten the masks of its time steps.
            cell.reset_dropout_mask()
            cell.reset_recurrent_dropout_mask()


def layers_that_drew(model: keras.Model, scope: keras.StatelessScope) -> list[str]:
    """Returns the paths of layers that drew in a run, in a precision of their own.

    Args:
        model: `keras.Model`.
        scope: the scope of the run.
    """
    return [
        path
        for path, entry in ModelIndex(model).items()
        if not is_random(entry.layer) and not _is_cell(entry.layer)
        if any(_has_moved(value, scope) for value in vars(entry.layer).values())
    ]


def _has_moved(value: Any, scope: keras.StatelessScope) -> bool:
    """Tells whether it is a generator with another state in a scope."""
    if not isinstance(value, keras.random.SeedGenerator):
        return False
    state = scope.get_current_value(value.state)
    return state is not None and not np.array_equal(state, value.state)


def _is_cell(layer: keras.Layer) -> bool:
    """Tells whether a layer is a recurrent cell with dropout."""
    return all(hasattr(layer, name) for name in _METHODS_OF_CELLS)


def _in_fp32(draw: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def draw_in_fp32(step_input: Any) -> Any:
        masks = draw(ops.cast(step_input, "float32"))
        return keras.tree.map_structure(
            lambda mask: mask if mask is None else ops.cast(mask, step_input.dtype),
            masks,
        )

    return draw_in_fp32
