"""The precision in which a model is run for one look at it."""

import contextlib
import threading
from collections.abc import Iterable, Iterator
from typing import Any

import keras

from keras_mp import keras_internals
from keras_mp.dtypes import is_half
from keras_mp.layers.float16_matmul_policy import Float16MatmulPolicy
from keras_mp.precision.model_index import ModelIndex
from keras_mp.precision.modes import ComputePolicy
from keras_mp.precision.scope import returning_float32

# TensorFlow has one setting for all threads: whether functions run eagerly.
_ONE_THREAD = threading.RLock()


@contextlib.contextmanager
def computing_in(model: keras.Model, dtype: str | None) -> Iterator[None]:
    """Has all layers of a model compute in another precision inside a `with` block.

    In FP32, layers of 16-bit policies and of `Float16MatmulPolicy` compute in FP32. In
    FP16, layers of bfloat16 policies compute in FP16, and if no layer has one of these
    policies all do, except quantized layers. Weights do not change. No other thread may
    run the model meanwhile.

    Args:
        model: `keras.Model`.
        dtype: `"float32"`, `"float16"`, or None, for the dtype of the model itself.
    """
    index = ModelIndex(model)
    layers = [entry.layer for entry in index.values() if entry.kind != "input"]
    policies = {None: _own, "float32": _in_float32, "float16": _in_float16}
    with having_policies(policies[dtype](layers)), _statistics_made_again(layers):
        if dtype == "float32":
            with returning_float32(index):
                yield
        else:
            yield


@contextlib.contextmanager
def having_policies(policies: Iterable[tuple[Any, Any]]) -> Iterator[None]:
    """Gives layers other dtype policies inside a `with` block.

    Args:
        policies: pairs of a layer and a policy, or its name.
    """
    new = list(policies)
    before = [(layer, layer.dtype_policy) for layer, _ in new]
    try:
        for layer, policy in new:
            keras_internals.set_policy(layer, keras.dtype_policies.get(policy))
        yield
    finally:
        for layer, policy in before:
            keras_internals.set_policy(layer, policy)


@contextlib.contextmanager
def functions_run_eagerly() -> Iterator[None]:
    """Has every `tf.function` run eagerly inside a `with` block.

    A trace of before would compute in the precision of before, and one of now would
    keep what the weights are now.
    """
    import tensorflow as tf

    with _ONE_THREAD:
        before = tf.config.functions_run_eagerly()
        tf.config.run_functions_eagerly(True)
        try:
            yield
        finally:
            tf.config.run_functions_eagerly(before)


@contextlib.contextmanager
def _statistics_made_again(layers: list[Any]) -> Iterator[None]:
    """Has Keras's Normalizations keep mean and variance in what they compute in now.

    They cast both when they are built.
    """
    before = [
        (layer, layer.mean, layer.variance)
        for layer in layers
        if isinstance(layer, keras.layers.Normalization) and layer.built
    ]
    try:
        for layer, _, _ in before:
            if layer.input_mean is None:
                layer.finalize_state()
            else:
                layer.build(**layer.get_build_config())
        yield
    finally:
        for layer, mean, variance in before:
            layer.mean, layer.variance = mean, variance


def notes_on_cached_tensors(model: keras.Model) -> list[str]:
    """Returns a note on each 16-bit tensor that a layer has made before it runs.

    A run in FP32 also rounds. A Normalization makes its statistics again.

    Args:
        model: `keras.Model`.
    """
    return [
        f"{path!r} keeps a {dtype} tensor, its attribute {name!r}: also in FP32 it "
        "is rounded so. Give the layer dtype='float32', or make the tensor in `call`"
        for path, entry in ModelIndex(model).items()
        if not isinstance(entry.layer, keras.layers.Normalization)
        for name, dtype in _cached_halves(entry.layer)
    ]


def _cached_halves(layer: keras.Layer) -> Iterator[tuple[str, str]]:
    for name, value in vars(layer).items():
        inside = value.values() if isinstance(value, dict) else value
        several = isinstance(value, dict | list | tuple)
        for each in inside if several else [value]:
            if keras.ops.is_tensor(each) and not isinstance(each, keras.Variable):
                dtype = keras.backend.standardize_dtype(each.dtype)
                if is_half(dtype):
                    yield name, dtype


def is_quantized(layer: keras.Layer) -> bool:
    """Tells whether a layer was quantized."""
    return layer.quantization_mode is not None


def _own(_: list[Any]) -> Iterator[tuple[Any, Any]]:
    return iter(())


def _in_float32(layers: list[Any]) -> Iterator[tuple[Any, Any]]:
    for layer in filter(is_below_fp32, layers):
        if is_quantized(layer):
            mode, _, _ = _policy_of(layer).name.rpartition("_from_")
            yield layer, f"{mode}_from_float32"
        else:
            yield layer, ComputePolicy("float32", layer.variable_dtype)


def _in_float16(layers: list[Any]) -> Iterator[tuple[Any, Any]]:
    is_fp32 = not any(is_below_fp32(layer) for layer in layers)
    changed = "float32" if is_fp32 else "bfloat16"
    for layer in layers:
        if layer.compute_dtype == changed and not is_quantized(layer):
            yield layer, ComputePolicy("float16", layer.variable_dtype)


def is_below_fp32(layer: keras.Layer) -> bool:
    """Tells whether FP32 would make a difference to what a layer computes."""
    is_of_products = isinstance(_policy_of(layer), Float16MatmulPolicy)
    return is_half(layer.compute_dtype) or is_of_products


def _policy_of(layer: keras.Layer) -> Any:
    """Returns the policy of a layer itself, where several share a map of policies."""
    policy = layer.dtype_policy
    is_map = isinstance(policy, keras.dtype_policies.DTypePolicyMap)
    return policy[layer.path] if is_map and layer.path else policy
