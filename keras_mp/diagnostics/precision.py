"""The precision in which a model is run for one look at it."""

import contextlib
from collections.abc import Iterator
from typing import Any

import keras

from keras_mp.diagnostics.paths import layers_by_path
from keras_mp.dtypes import is_half


@contextlib.contextmanager
def computing_in(model: Any, dtype: str | None) -> Iterator[None]:
    """Has all layers of a model compute in another precision inside a `with` block.

    In FP32, layers of 16-bit policies compute in FP32. In FP16, layers of bfloat16
    policies compute in FP16, and where no layer has a 16-bit policy all do. Their
    weights stay as they are. No other thread may run the model meanwhile.

    Args:
        model: `keras.Model`.
        dtype: `"float32"`, `"float16"`, or None, for that of the model itself.
    """
    layers = [
        layer
        for layer in layers_by_path(model).values()
        if not isinstance(layer, keras.layers.InputLayer)
        and layer.quantization_mode is None
    ]
    policies = _policies(layers, dtype)
    before = [(layer, _policy_of(layer)) for layer in layers if id(layer) in policies]
    try:
        for layer, _ in before:
            layer.dtype_policy = policies[id(layer)]
        yield
    finally:
        for layer, policy in before:
            layer.dtype_policy = policy


def _policies(layers: list[Any], dtype: str | None) -> dict[int, str]:
    """Returns the policies of the layers that are to have another one, by `id`."""
    halves = [layer for layer in layers if is_half(layer.compute_dtype)]
    if dtype is None:
        return {}
    if dtype == "float32":
        return {id(layer): "float32" for layer in halves}
    changed = [layer for layer in halves if layer.compute_dtype == "bfloat16"]
    if not halves:
        changed = [layer for layer in layers if layer.compute_dtype == "float32"]
    return {
        id(layer): "float16" if is_half(layer.variable_dtype) else "mixed_float16"
        for layer in changed
    }


def _policy_of(layer: Any) -> Any:
    """Returns the policy of a layer itself, where several share a map of policies."""
    policy = layer.dtype_policy
    if isinstance(policy, keras.dtype_policies.DTypePolicyMap) and layer.path:
        return policy[layer.path]
    return policy


class Values(keras.StatelessScope):
    """A scope in which variables have other values, of any floating-point dtype.

    That of Keras rounds them to the dtype of the variable: FP32 masters to FP16.

    Args:
        values: list of pairs of a variable and a tensor of its shape.
    """

    def __init__(self, values: list[tuple[Any, Any]]) -> None:
        super().__init__(collect_losses=True)
        self.state_mapping = {id(variable): value for variable, value in values}
