"""`Observation`: what goes into and comes out of each layer of a model that runs."""

import contextlib
import types
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import keras
from keras import ops

from keras_mp.diagnostics.paths import layers_by_path
from keras_mp.layers.probe import Probe

# TensorFlow draws other masks for FP16 than for FP32, from the same seed.
_RANDOM = (
    keras.layers.AlphaDropout,
    keras.layers.Dropout,
    keras.layers.GaussianDropout,
    keras.layers.GaussianNoise,
)


@dataclass(eq=False)
class Call:
    """One call of a layer, or of an operation of a functional model.

    Attributes:
        path: str, of the layer.
        layer: `keras.Layer`, or an operation.
        inputs: list of the floating-point tensors that it was given.
        outer: the call of the layer around it, or None.
        calls_before: int, how many calls had ended when it began.
        outputs: list of the floating-point tensors that it returned.
        shown: `outputs`; of a recurrent layer that returns the last output, those of
            all time steps.
        gradients: list of the gradients of `outputs`, float32 tensors, None where there
            is none.
    """

    path: str
    layer: Any
    inputs: list[Any]
    outer: "Call | None"
    calls_before: int
    outputs: list[Any] = field(default_factory=list)
    shown: list[Any] = field(default_factory=list)
    gradients: list[Any] = field(default_factory=list)


class Observation:
    """Records the calls of all layers of a model inside a `with` block.

    Each layer has a subclass of its class meanwhile, whose `__call__` records, so that
    nothing is needed of a layer but that it is one: no config, and no functional model.
    Layers at any depth are seen, but for the cells of recurrent layers, which are
    called once in each time step; and not what runs inside of a `tf.function`.

    Dropout draws in FP32 meanwhile, and its output is rounded to its compute dtype, so
    that in every precision the same numbers are dropped.

    Args:
        model: `keras.Model`, built.

    Attributes:
        calls: list of `Call`, in the order in which they ended.
    """

    def __init__(self, model: Any) -> None:
        self.calls: list[Call] = []
        self._paths = {id(layer): path for path, layer in layers_by_path(model).items()}
        self._observed = list(_observable(model))
        for operation in self._observed:
            self._paths.setdefault(id(operation), operation.name)
        self._classes: dict[Any, Any] = {}
        self._open: list[Call] = []

    def __enter__(self) -> "Observation":
        for operation in self._observed:
            operation.__class__ = self._class_of(operation)
        return self

    def __exit__(self, *_: Any) -> None:
        plain = {observed: cls for cls, observed in self._classes.items()}
        for operation in self._observed:
            operation.__class__ = plain.get(type(operation), type(operation))

    def _class_of(self, operation: Any) -> Any:
        """Returns the class of an operation, with a `__call__` that records."""
        cls = type(operation)
        if cls not in self._classes:

            def observed_call(layer: Any, *args: Any, **kwargs: Any) -> Any:
                return self._record(cls, layer, args, kwargs)

            members = {name: getattr(cls, name) for name in ("__module__", "__doc__")}
            members |= {"__qualname__": cls.__qualname__, "__call__": observed_call}
            self._classes[cls] = types.new_class(
                cls.__name__, (cls,), exec_body=lambda body: body.update(members)
            )
        return self._classes[cls]

    def _record(self, cls: Any, layer: Any, args: Any, kwargs: Any) -> Any:
        call = Call(
            self._paths[id(layer)],
            layer,
            floating_tensors((args, kwargs)),
            self._open[-1] if self._open else None,
            len(self.calls),
        )
        self._open.append(call)
        try:
            outputs, over_time = _run(cls, layer, args, kwargs)
        finally:
            self._open.pop()
        call.outputs = floating_tensors(outputs)
        call.shown = [*floating_tensors(over_time), *call.outputs][: len(call.outputs)]
        self.calls.append(call)
        return outputs


def _run(cls: Any, layer: Any, args: Any, kwargs: Any) -> tuple[Any, Any]:
    """Calls a layer. Returns its outputs, and those of all time steps or None."""
    if isinstance(layer, _RANDOM):
        with _having(layer, "dtype_policy", "float32"):
            outputs = cls.__call__(layer, *args, **kwargs)
        return ops.cast(outputs, layer.compute_dtype), None
    if isinstance(layer, Probe) and layer.observe is not None:
        with _having(layer, "observe", None):
            return cls.__call__(layer, *args, **kwargs), None
    if not isinstance(layer, keras.layers.RNN) or layer.return_sequences:
        return cls.__call__(layer, *args, **kwargs), None
    with _having(layer, "return_sequences", True):
        outputs = cls.__call__(layer, *args, **kwargs)
    sequence, *states = outputs if layer.return_state else [outputs]
    last = sequence[:, -1]
    return ([last, *states] if layer.return_state else last), sequence


@contextlib.contextmanager
def _having(layer: Any, name: str, value: Any) -> Iterator[None]:
    """Gives a layer another value of an attribute inside a `with` block."""
    before = getattr(layer, name)
    setattr(layer, name, value)
    try:
        yield
    finally:
        setattr(layer, name, before)


def _observable(model: Any) -> Iterator[Any]:
    """Yields the layers of a model, and the operations of its functional models."""
    layers = layers_by_path(model).values()
    cells = {
        id(each)
        for layer in layers
        if isinstance(layer, keras.layers.RNN)
        for each in layers_by_path(layer.cell).values()
    }
    seen = set(cells)
    for layer in layers:
        for each in [layer, *getattr(layer, "operations", [])]:
            if id(each) not in seen and not isinstance(each, keras.layers.InputLayer):
                seen.add(id(each))
                yield each


def floating_tensors(structure: Any) -> list[Any]:
    """Returns the tensors with floating-point numbers of a structure.

    A symbolic tensor, of a `tf.function`, has none.
    """
    return [
        each
        for each in keras.tree.flatten(structure)
        if hasattr(each, "numpy") and hasattr(each, "dtype") and is_floating(each)
    ]


def is_floating(tensor: Any) -> bool:
    """Tells whether it is a tensor of floating-point numbers."""
    return "float" in keras.backend.standardize_dtype(tensor.dtype)
