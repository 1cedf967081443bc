"""The modes of the layers of a model: given, taken back, or given for a while.

A policy casts what a layer is given. What it returns is cast in one place only: where
the code of another layer receives it. TensorFlow adds no FP16 tensor to one in FP32.
"""

import functools
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import keras

from keras_mp import keras_internals
from keras_mp.dtypes import is_half
from keras_mp.precision.model_index import LayerEntry, ModelIndex
from keras_mp.precision.modes import FLOAT16, FLOAT32, MODES, PrecisionPolicy

_CALLS = ("call", "quantized_call")


class CastResults:
    """Stands in for a method of a layer, and casts what that returns.

    Args:
        layer: `keras.Layer`.
        name: str, of the method.
        dtype: str.

    Attributes:
        dtype: str, which may change.
    """

    def __init__(self, layer: keras.Layer, name: str, dtype: str) -> None:
        functools.update_wrapper(self, getattr(layer, name))
        self.own = vars(layer).get(name)
        self.dtype = dtype
        self._layer, self._name = layer, name

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        # The class is looked up when it is called: `convert` changes it.
        method = self.own or getattr(type(self._layer), self._name)
        first = () if self.own else (self._layer,)
        return keras.tree.map_structure(self._cast, method(*first, *args, **kwargs))

    def _cast(self, tensor: Any) -> Any:
        dtype = keras.backend.standardize_dtype(getattr(tensor, "dtype", "bool"))
        is_other = dtype in ("float16", "float32") and dtype != self.dtype
        return keras.ops.cast(tensor, self.dtype) if is_other else tensor


def result_dtype(layer: keras.Layer) -> str:
    """Returns the dtype of what the code around a layer receives from it."""
    hook = vars(layer).get("call")
    return hook.dtype if isinstance(hook, CastResults) else str(layer.compute_dtype)


def apply_modes(
    index: ModelIndex, modes: Mapping[str, str], fp32_weights: Collection[str] = ()
) -> None:
    """Puts layers into modes; the others keep their policies.

    If no layer of the model has a 16-bit policy, the others get `"float16"`.

    Args:
        index: of a model with layers that have no modes.
        modes: dict from the path of a layer to one of `MODES`. A recurrent layer or a
            wrapper has one mode with what it calls past the casts of a call.
        fp32_weights: paths of layers among them with weights that count as FP32.
    """
    computing = [e for e in index.values() if e.kind != "input"]
    modes = _agreed(index, modes)
    is_fp32 = not any(is_half(e.layer.compute_dtype) for e in computing)
    received = {
        e.path: FLOAT16 if is_fp32 else e.layer.compute_dtype for e in computing
    }
    inside_code = {each for e in computing if e.kind == "code" for each in _inside(e)}
    wide = {each.path for path in fp32_weights for each in members(index[path])}
    for entry in computing:
        layer, mode = entry.layer, modes.get(entry.path, FLOAT16)
        is_narrowed = is_fp32 and layer.compute_dtype == "float32"
        if layer.quantization_mode is None and (mode != FLOAT16 or is_narrowed):
            is_made = entry.path in inside_code or _is_foreign_code(entry)
            stored = "float32" if entry.path in wide else layer.variable_dtype
            policy = PrecisionPolicy(mode, layer.dtype_policy, stored, not is_made)
            keras_internals.set_policy(layer, policy)
    for entry in computing:
        if entry.kind == "graph" and _has_modes(entry, modes):
            _leave_casts_to_layers(entry)
        elif entry.kind == "code":
            for child in (c for c in entry.children if c.kind != "input"):
                _cast_results(child, entry, modes, received)


def remove_modes(index: ModelIndex) -> None:
    """Gives the layers of a model their original policies back."""
    for layer in index.layers:
        for name in _CALLS:
            hook = vars(layer).get(name)
            if isinstance(hook, CastResults):
                del vars(layer)[name]
                if hook.own is not None:
                    vars(layer)[name] = hook.own
        policy = layer.dtype_policy
        if isinstance(policy, PrecisionPolicy):
            if isinstance(layer, keras.layers.InputLayer):
                keras_internals.set_input_dtype(layer, policy.variable_dtype)
            # What was quantized since has weights that the original does not read.
            is_quantized = layer.quantization_mode is not None
            policy = policy[layer.path] if is_quantized else policy.base
            keras_internals.set_policy(layer, policy)


def modes_of(index: ModelIndex) -> dict[str, str]:
    """Returns the mode of each layer that has another one than `"float16"`, by path.

    A cell has the mode of its recurrent layer, and is not listed.
    """
    found = {
        path: entry.layer.dtype_policy.mode
        for path, entry in index.items()
        if entry.recurrent is None
        and entry.kind != "input"
        and isinstance(entry.layer.dtype_policy, PrecisionPolicy)
    }
    return {path: mode for path, mode in found.items() if mode != FLOAT16}


@contextmanager
def precision_scope(
    index: ModelIndex, modes: Mapping[str, str], fp32_weights: Collection[str] = ()
) -> Iterator[None]:
    """Puts layers into modes inside a `with` block, instead of the modes they have.

    Args: as in `apply_modes`.
    """
    before = [
        (
            layer,
            layer.dtype_policy,
            {k: vars(layer)[k] for k in _CALLS & vars(layer).keys()},
        )
        for layer in index.layers
    ]
    inputs = [(e.layer, e.layer.dtype) for e in index.values() if e.kind == "input"]
    try:
        remove_modes(index)
        apply_modes(index, modes, fp32_weights)
        yield
    finally:
        for layer, policy, calls in before:
            keras_internals.set_policy(layer, policy)
            for name in _CALLS:
                vars(layer).pop(name, None)
            vars(layer).update(calls)
        for layer, dtype in inputs:
            keras_internals.set_input_dtype(layer, dtype)


@contextmanager
def returning_float32(index: ModelIndex) -> Iterator[None]:
    """Has no InputLayer and no cast of results round to 16 bits in a `with` block."""
    hooks = [
        (hook, hook.dtype)
        for layer in index.layers
        for hook in (vars(layer).get(name) for name in _CALLS)
        if isinstance(hook, CastResults)
    ]
    inputs = [(e.layer, e.layer.dtype) for e in index.values() if e.kind == "input"]
    try:
        for hook, _ in hooks:
            hook.dtype = "float32"
        for layer, dtype in inputs:
            if is_half(dtype):
                keras_internals.set_input_dtype(layer, "float32")
        yield
    finally:
        for hook, dtype in hooks:
            hook.dtype = dtype
        for layer, dtype in inputs:
            keras_internals.set_input_dtype(layer, dtype)


def _agreed(index: ModelIndex, modes: Mapping[str, str]) -> dict[str, str]:
    """Returns the modes, with one for what calls each other past the casts of a call.

    And all code that calls a layer computes in FP32, or none does: the layer returns
    one dtype.
    """
    agreed = {path: mode for path, mode in modes.items() if mode != FLOAT16}
    for entry in index.values():
        paths = [member.path for member in members(entry)]
        widest = max((agreed.get(path, FLOAT16) for path in paths), key=MODES.index)
        if widest != FLOAT16:
            agreed |= dict.fromkeys(paths, widest)
    callers: dict[str, list[str]] = {}
    for path, entry in index.items():
        for child in entry.children if entry.kind == "code" else ():
            callers.setdefault(child.path, []).append(path)
    shared = [paths for paths in callers.values() if len(paths) > 1]
    before = -1
    while before != len(agreed):
        before = len(agreed)
        for paths in shared:
            if any(path in agreed for path in paths):
                agreed = dict.fromkeys(paths, FLOAT32) | agreed
    return agreed


def members(entry: LayerEntry) -> list[LayerEntry]:
    """Returns an entry, with those that have to have its mode."""
    if entry.kind != "unit":
        return [entry]
    if isinstance(entry.layer, keras.layers.RNN | keras.layers.Bidirectional):
        return [entry, *_below(entry)]
    wrapped = [child for child in entry.children if child.kind != "graph"]
    return [entry, *(member for child in wrapped for member in members(child))]


def _below(entry: LayerEntry) -> Iterator[LayerEntry]:
    for child in entry.children:
        yield child
        yield from _below(child)


def _inside(entry: LayerEntry) -> Iterator[str]:
    return (child.path for child in _below(entry))


def _is_foreign_code(entry: LayerEntry) -> bool:
    """Tells whether a layer creates sublayers by code that is not Keras's."""
    package = type(entry.layer).__module__.partition(".")[0]
    return entry.kind == "code" and package not in ("keras", "keras_mp")


def _has_modes(entry: LayerEntry, modes: Mapping[str, str]) -> bool:
    """Tells whether a layer may return another dtype than without modes."""
    if entry.path in modes:
        return True
    passes_on = entry.kind in ("graph", "unit")
    return passes_on and any(_has_modes(child, modes) for child in entry.children)


def _leave_casts_to_layers(graph: LayerEntry) -> None:
    """Has a functional or Sequential model give its layers unchanged inputs.

    A Sequential model that is built when it is called casts its inputs to what its
    first layer computes in then.
    """
    inputs = [child.layer for child in graph.children if child.kind == "input"]
    for layer in inputs:
        if is_half(layer.dtype):
            policy = PrecisionPolicy(FLOAT32, layer.dtype_policy, layer.dtype)
            keras_internals.set_policy(layer, policy)
            keras_internals.set_input_dtype(layer, "float32")
    layer = graph.layer
    if not inputs and not isinstance(layer.dtype_policy, PrecisionPolicy):
        policy, stored = layer.dtype_policy, layer.variable_dtype
        keras_internals.set_policy(
            layer, PrecisionPolicy(FLOAT16, policy, stored, False, casts=False)
        )


def _cast_results(
    child: LayerEntry,
    caller: LayerEntry,
    modes: Mapping[str, str],
    received: Mapping[str, str],
) -> None:
    """Has the code of a layer receive one dtype from another one.

    FP32, if it computes in that; else what it would receive without modes.
    """
    if caller.path in modes:
        dtype = "float32"
    elif _has_modes(child, modes) and is_half(_result(child, received)):
        dtype = _result(child, received)
    else:
        return
    for name in _CALLS:
        if not isinstance(vars(child.layer).get(name), CastResults):
            vars(child.layer)[name] = CastResults(child.layer, name, dtype)


def _result(entry: LayerEntry, received: Mapping[str, str]) -> str:
    """Returns the dtype that a layer returns without modes; a graph, its last layer."""
    last = [child for child in entry.children if child.kind != "input"]
    is_graph = entry.kind == "graph" and bool(last)
    return _result(last[-1], received) if is_graph else received[entry.path]
