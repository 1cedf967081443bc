"""ZeRO stage 1 on JAX: state sharded over the devices that share a batch.

In data parallelism each device holds all weights, and would hold all masters and slots
too. On JAX a layout is all it takes to shard them: the program of a step then updates a
part on each device, and gathers the rounded weights.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_mp import keras_internals
from keras_mp.typing import Tensor, Variable


@contextmanager
def sharded_state(weights: Sequence[Variable]) -> Iterator[None]:
    """Has all that is made for weights sharded along the batch, in a `with` block.

    Keras gives a slot, an average or an accumulator the layout of the variable that it
    belongs to. In the block that is `sharded_layout` of the weight's own. Without a
    `keras.distribution`, and on other backends, nothing changes.

    Args:
        weights: list of the trainable variables.

    Raises:
        ValueError: a weight is on several devices, and no distribution is in force; or
            its layout is no `keras.distribution.TensorLayout`.
    """
    if keras.backend.backend() != "jax":
        yield
        return
    layouts = [_layout_of_state(weight) for weight in weights]
    with keras_internals.other_layouts(weights, layouts):
        yield


def _layout_of_state(weight: Variable) -> Any:
    distribution = keras.distribution.distribution()
    layout = keras_internals.layout_argument(weight)["layout"]
    if distribution is None:
        if layout is None:
            return None
        raise ValueError(
            "`shard_state=True` shards state over the devices of a keras.distribution, "
            "which must be in force when the optimizer is built. Received: no "
            f"distribution, and {weight.path!r} with the layout {layout}. Call "
            "keras.distribution.set_distribution(...), or build the optimizer in "
            "`with distribution.scope():`."
        )
    layout = layout or distribution.get_variable_layout(weight)
    if not isinstance(layout, keras.distribution.TensorLayout):
        raise ValueError(
            "`shard_state=True` needs weights with a keras.distribution.TensorLayout. "
            f"Received: {weight.path!r} with the layout {layout}. Leave the layout to "
            "the distribution, with Keras 3.15 or later."
        )
    return sharded_layout(layout, weight.shape, distribution.batch_dim_name)


def layout_of_vector(layout: Any, size: int) -> Any:
    """Returns the layout of a vector that belongs to a variable with another shape.

    It is sharded along the batch if the variable is, and along nothing else.

    Args:
        layout: `keras.distribution.TensorLayout` of the variable.
        size: int, how many elements the vector has.
    """
    vector = keras.distribution.TensorLayout([None], layout.device_mesh)
    distribution = keras.distribution.distribution()
    if distribution is None or distribution.batch_dim_name not in layout.axes:
        return vector
    return sharded_layout(vector, (size,), distribution.batch_dim_name)


def sharded_layout(layout: Any, shape: Sequence[int], axis: str) -> Any:
    """Returns a layout that is also sharded along the batch, where a dimension allows.

    That is the first one which is not sharded yet, and which the size of the axis
    divides. Without one, or if the layout has the axis already, it is unchanged.

    Args:
        layout: `keras.distribution.TensorLayout`.
        shape: tuple of ints, of the variable.
        axis: str, the name of the batch axis of the mesh.

    Example:

    >>> mesh = keras.distribution.DeviceMesh(
    ...     (2, 4), ["batch", "model"], [f"cpu:{i}" for i in range(8)])
    >>> layout = keras.distribution.TensorLayout([None, "model"], mesh)
    >>> sharded_layout(layout, (6, 8), "batch").axes
    ('batch', 'model')
    >>> sharded_layout(layout, (5, 8), "batch").axes
    (None, 'model')
    """
    mesh = layout.device_mesh
    devices = mesh.shape[mesh.axis_names.index(axis)]
    axes = [*layout.axes, *[None] * (len(shape) - len(layout.axes))]
    free = [size if axes[i] is None else 0 for i, size in enumerate(shape)]
    dimension = sharded_dimension(free, devices)
    if dimension is not None and axis not in axes:
        axes[dimension] = axis
    return keras.distribution.TensorLayout(axes, mesh)


def sharded_dimension(shape: Sequence[int], devices: int) -> int | None:
    """Returns the first dimension that `devices` divides, or None.

    Args:
        shape: tuple of ints, of a variable; 0 where a dimension is sharded already.
        devices: int.
    """
    divided = (i for i, size in enumerate(shape) if size > 0 and size % devices == 0)
    return next(divided, None)


def to_numpy(x: Tensor) -> np.ndarray:
    """Returns a variable or tensor as an array, gathered from all processes.

    If several processes hold shares of it, all of them must call this.

    Args:
        x: variable or tensor.
    """
    distribution = keras.distribution.distribution()
    if keras.backend.backend() == "jax" and distribution is not None:
        x = ops.convert_to_tensor(x)
        if not x.is_fully_addressable and not x.is_fully_replicated:
            axes = [None] * len(x.shape)
            whole = keras.distribution.TensorLayout(axes, distribution.device_mesh)
            x = keras.distribution.distribute_tensor(x, whole)
    return np.asarray(ops.convert_to_numpy(x))
