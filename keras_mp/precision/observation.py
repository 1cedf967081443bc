"""`Observation`: what goes into and comes out of each layer of a model that runs."""

import weakref
from dataclasses import dataclass, field
from typing import Any

import keras
from keras import ops

from keras_mp import keras_internals
from keras_mp.layers.core.embedding import refuse_rounded_ids
from keras_mp.layers.probe import Probe
from keras_mp.precision.model_index import ModelIndex
from keras_mp.precision.random_numbers import is_random, run_in_fp32

_IS_OBSERVED = "_keras_mp_is_observed"


@dataclass(eq=False)
class CallRecord:
    """One call of a layer, or of an operation of a functional model.

    Attributes:
        path: str, of the layer.
        layer: `keras.Layer`, or an operation.
        inputs: list of the floating-point tensors that it was given.
        outer: the call of the layer around it, or None.
        calls_before: int, how many calls had ended when it began.
        outputs: list of the floating-point tensors that it returned.
        shown: `outputs`; of a recurrent layer that returns the last output, the outputs
            of all time steps.
        gradients: list of the gradients of `outputs`, float32 tensors, None for an
            output without one.
    """

    path: str
    layer: Any
    inputs: list[Any]
    outer: "CallRecord | None"
    calls_before: int
    outputs: list[Any] = field(default_factory=list)
    shown: list[Any] = field(default_factory=list)
    gradients: list[Any] = field(default_factory=list)


class Observation:
    """Records the calls of all layers of a model inside a `with` block.

    Each layer has a subclass of its class meanwhile. Its `__call__` records, so nothing
    is needed of a layer but that it is one: no config, and no functional model. Layers
    at any depth are seen, but for the cells of recurrent layers, which are called once
    in each time step.

    Args:
        model: `keras.Model`, built.

    Attributes:
        calls: list of `CallRecord`, in the order in which they ended.
        unseen: list of the paths of layers with a class that cannot have such a
            subclass.

    Raises:
        RuntimeError: a layer of the model is observed already.
    """

    def __init__(self, model: keras.Model) -> None:
        self.calls: list[CallRecord] = []
        self.unseen: list[str] = []
        self._observed = _observable(model)
        self._paths = {id(each): path for path, each in self._observed.items()}
        self._classes: dict[Any, Any] = {}
        self._open: list[CallRecord] = []
        self._records = True

    def __enter__(self) -> "Observation":
        try:
            for path, operation in self._observed.items():
                self._observe(path, operation)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *exception: Any) -> None:
        plain = {observed: cls for cls, observed in self._classes.items()}
        for operation in self._observed.values():
            cls = type(operation)
            operation.__class__ = plain.get(cls, cls)
            if isinstance(operation, keras.Layer):
                keras_internals.forget_losses(operation)

    def stop(self) -> None:
        """Ends the recording, while the layers still have these classes.

        What is computed again for the backward pass is not a call of its own.
        """
        self._records = False

    def _observe(self, path: str, operation: Any) -> None:
        cls = type(operation)
        if _IS_OBSERVED in vars(cls):
            raise RuntimeError(
                "A model can be looked at once at a time. Received: a model with the "
                f"layer {path!r}, at which another thread looks. Wait for it."
            )
        try:
            if cls not in self._classes:
                self._classes[cls] = _subclass(cls, _members(cls, weakref.proxy(self)))
            operation.__class__ = self._classes[cls]
        except TypeError:  # of a class with `__slots__`: its objects are laid out apart
            self.unseen.append(path)

    def record(self, cls: Any, layer: keras.Layer, args: Any, kwargs: Any) -> Any:
        """Calls a layer as its class does, and records it. Returns its outputs."""
        call = CallRecord(
            self._paths[id(layer)],
            layer,
            floating_tensors((args, kwargs)),
            self._open[-1] if self._open else None,
            len(self.calls),
        )
        self._open.append(call)
        try:
            outputs = _run(cls, layer, args, kwargs)
        finally:
            self._open.pop()
        call.outputs = floating_tensors(outputs)
        call.shown = [*call.shown, *call.outputs][: len(call.outputs)]
        if self._records:
            self.calls.append(call)
        return outputs

    def show(self, layer: keras.Layer, outputs: Any) -> None:
        """Has the call of a recurrent layer show its outputs of all time steps."""
        if self._open and self._open[-1].layer is layer:
            outputs = ops.cast(outputs, layer.compute_dtype)
            self._open[-1].shown = floating_tensors(outputs)


def _subclass(cls: Any, members: dict[str, Any]) -> Any:
    """Returns a subclass of a class that does not learn of it.

    What a class has in `__init_subclass__` or in its metaclass may ask for arguments,
    or keep a list of the subclasses.
    """
    subclass: Any = type.__new__(type(cls), cls.__name__, (keras.Operation,), members)
    subclass.__bases__ = (cls,)
    return subclass


def _members(cls: Any, observation: Observation) -> dict[str, Any]:
    """Returns what a class has in its subclass that is observed."""

    def call(layer: keras.Layer, *args: Any, **kwargs: Any) -> Any:
        return observation.record(cls, layer, args, kwargs)

    def add_loss(layer: keras.Layer, loss: Any) -> None:
        # Keras cannot add losses of several dtypes.
        cls.add_loss(layer, keras.tree.map_structure(_in_float32, loss))

    def inner_loop(layer: keras.Layer, *args: Any, **kwargs: Any) -> Any:
        """Keeps the outputs of all time steps, as the class does here."""
        if layer.return_sequences:
            return cls.inner_loop(layer, *args, **kwargs)
        layer.return_sequences = True
        try:
            last_output, outputs, states = cls.inner_loop(layer, *args, **kwargs)
        finally:
            layer.return_sequences = False
        observation.show(layer, outputs)
        return last_output, outputs, states

    names = ("__module__", "__qualname__", "__doc__")
    members = {name: getattr(cls, name) for name in names}
    members |= {"__call__": call, _IS_OBSERVED: True}
    if issubclass(cls, keras.Layer):
        members["add_loss"] = add_loss
    if issubclass(cls, keras.layers.RNN):
        members["inner_loop"] = inner_loop
    return members


def _run(cls: Any, layer: keras.Layer, args: Any, kwargs: Any) -> Any:
    if getattr(cls, "call", None) is keras.layers.Embedding.call:
        # As after `convert`: another word would be looked up, and nothing overflows.
        refuse_rounded_ids(layer, args[0] if args else kwargs["inputs"])
    if is_random(layer):
        return run_in_fp32(cls, layer, args, kwargs)
    if isinstance(layer, Probe) and layer.observe is not None:
        return _run_unwatched(cls, layer, args, kwargs)
    return cls.__call__(layer, *args, **kwargs)


def _run_unwatched(cls: Any, probe: Any, args: Any, kwargs: Any) -> Any:
    """Calls a Probe, without what `NumericsCallback` does with its input."""
    observe, probe.observe = probe.observe, None
    try:
        return cls.__call__(probe, *args, **kwargs)
    finally:
        probe.observe = observe


def _observable(model: keras.Model) -> dict[str, Any]:
    """Returns what is observed by its path."""
    index = ModelIndex(model)
    layers = {
        path: entry.layer
        for path, entry in index.items()
        if entry.recurrent is None and entry.kind != "input"
    }
    return layers | index.operations


def _in_float32(loss: Any) -> Any:
    return ops.cast(loss, "float32") if keras.ops.is_tensor(loss) else loss


def floating_tensors(structure: Any) -> list[Any]:
    """Returns the tensors with floating-point numbers of a structure.

    A symbolic tensor, of a graph, has none.
    """
    return [
        each
        for each in keras.tree.flatten(structure)
        if hasattr(each, "numpy") and hasattr(each, "dtype") and is_floating(each)
    ]


def is_floating(tensor: Any) -> bool:
    """Tells whether it is a tensor of floating-point numbers."""
    return "float" in keras.backend.standardize_dtype(tensor.dtype)
