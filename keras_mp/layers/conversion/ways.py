"""Ways to compute a layer: in FP16, in FP16 products with FP32 results, or in FP32."""

import types
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import keras

from keras_mp import keras_internals
from keras_mp.dtypes import is_half
from keras_mp.layers.attention.additive_attention import AdditiveAttention
from keras_mp.layers.attention.attention import Attention
from keras_mp.layers.attention.grouped_query_attention import GroupedQueryAttention
from keras_mp.layers.attention.multi_head_attention import MultiHeadAttention
from keras_mp.layers.conversion.counterparts import counterpart, replaced_methods
from keras_mp.layers.conversion.wider_inputs import wider_inputs
from keras_mp.layers.core.dense import Dense
from keras_mp.layers.core.einsum_dense import EinsumDense
from keras_mp.layers.float16_products_policy import Float16ProductsPolicy
from keras_mp.layers.merging.dot import Dot
from keras_mp.precision.model_index import ModelIndex

FLOAT16 = "float16"
PRODUCTS = "float16_products"
SCALED_PRODUCTS = "scaled_float16_products"
FLOAT32 = "float32"
# From the cheapest to the one that allows the widest range of numbers.
WAYS = (FLOAT16, PRODUCTS, SCALED_PRODUCTS, FLOAT32)
# The layers that do as `Float16ProductsPolicy` says.
WITH_PRODUCTS: tuple[type, ...] = (
    AdditiveAttention,
    Attention,
    Dense,
    Dot,
    EinsumDense,
    GroupedQueryAttention,
    MultiHeadAttention,
)
if keras_internals.has("ReversibleEmbedding"):
    from keras_mp.layers.core.reversible_embedding import ReversibleEmbedding

    WITH_PRODUCTS += (ReversibleEmbedding,)


class ReturnsDtype:
    """Mixin for a layer: it returns numbers in the precision of the layer around it."""

    returned_dtype: str

    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        outputs = super().call(*args, **kwargs)  # type: ignore[misc]
        return keras.tree.map_structure(self._returned, outputs)

    def _returned(self, tensor: Any) -> Any:
        dtype = keras.backend.standardize_dtype(getattr(tensor, "dtype", "bool"))
        is_other = "float" in dtype and dtype != self.returned_dtype
        return keras.ops.cast(tensor, self.returned_dtype) if is_other else tensor


def set_policies(model: Any, ways: Mapping[str, str]) -> None:
    """Gives the layers of a model the dtype policies of their ways.

    Layers without a way keep theirs; where no layer of the model has a 16-bit policy,
    they get `mixed_float16`.

    Args:
        model: `keras.Model`, without ways.
        ways: dict from the path of a layer to one of `WAYS`.
    """
    layers = {
        path: entry.layer
        for path, entry in ModelIndex(model).items()
        if entry.kind != "input" and entry.layer.quantization_mode is None
    }
    has_halves = any(is_half(layer.compute_dtype) for layer in layers.values())
    for path, layer in layers.items():
        way = ways.get(path, FLOAT16)
        if way != FLOAT16:
            for each in _computed_with(layer):
                _set_policy(each, _policy(each, way))
        elif hasattr(layer, "policy_before_ways"):  # a cell, with its recurrent layer
            continue
        elif not has_halves and layer.compute_dtype == "float32":
            _set_policy(layer, "mixed_float16")
    if ways:
        _leave_casts_to_layers(model)


def return_dtypes(model: Any) -> None:
    """Has each layer return what the layer around it computes in, where they differ.

    The sum of an FP32 and an FP16 tensor is an error in TensorFlow, and Keras casts
    what a layer is given, not what it returns.
    """
    for entry in ModelIndex(model).values():
        layer = entry.layer
        if entry.kind == "graph" or isinstance(layer, keras.layers.RNN):
            continue
        for sublayer in (child.layer for child in entry.children):
            if _differ(layer, sublayer):
                sublayer.__class__ = _returning(type(sublayer))
                sublayer.returned_dtype = layer.compute_dtype


def forget_ways(model: Any) -> None:
    """Undoes `set_policies` and `return_dtypes`."""
    for layer in _computing(model):
        if isinstance(layer, ReturnsDtype):
            layer.__class__ = class_without_ways(layer)
            del layer.returned_dtype
        if hasattr(layer, "policy_before_ways"):
            keras_internals.set_policy(layer, layer.policy_before_ways)
            del layer.policy_before_ways
    _cast_as_before(ModelIndex(model).layers)


def ways_of(model: Any) -> dict[str, str]:
    """Returns the way of each layer that a plan has taken from FP16, by its path.

    A cell has that of its recurrent layer, and is not listed.
    """
    return {
        path: _way(entry.layer)
        for path, entry in ModelIndex(model).items()
        if entry.recurrent is None
        and hasattr(entry.layer, "policy_before_ways")
        and not is_half(entry.layer.compute_dtype)
    }


@contextmanager
def casts_left_to_layers(model: Any) -> Iterator[None]:
    """Has the models inside a model cast no input inside a `with` block."""
    changed = _leave_casts_to_layers(model)
    try:
        yield
    finally:
        _cast_as_before(changed)


def _leave_casts_to_layers(model: Any) -> list[Any]:
    """Has functional and Sequential models give their layers inputs as they are.

    A Sequential model that is built when it is called casts its inputs to what its
    first layer computes in then, and with weights stored in FP16 any one does.

    Returns:
        The layers that were changed, for `_cast_as_before`.
    """
    changed = []
    for layer in ModelIndex(model).layers:
        if isinstance(layer, keras.layers.InputLayer) and is_half(layer.dtype):
            layer.dtype_before_ways = layer.dtype
            keras_internals.set_input_dtype(layer, "float32")
            changed.append(layer)
        elif isinstance(layer, keras.Sequential) and layer.autocast:
            layer.autocast_before_ways = True
            layer.autocast = False
            changed.append(layer)
    return changed


def _cast_as_before(layers: list[Any]) -> None:
    for layer in layers:
        if hasattr(layer, "autocast_before_ways"):
            layer.autocast = layer.autocast_before_ways
            del layer.autocast_before_ways
        if hasattr(layer, "dtype_before_ways"):
            keras_internals.set_input_dtype(layer, layer.dtype_before_ways)
            del layer.dtype_before_ways


def class_without_ways(layer: Any) -> Any:
    """Returns the class of a layer as it was before `return_dtypes`."""
    cls = type(layer)
    return cls.__bases__[1] if isinstance(layer, ReturnsDtype) else cls


@contextmanager
def computed_in_ways(model: Any, ways: Mapping[str, str]) -> Iterator[None]:
    """Converts a model and has its layers compute in ways inside a `with` block."""
    layers = _computing(model)
    names = ("policy_before_ways", "autocast_before_ways", "autocast", "returned_dtype")
    before = [
        (layer, type(layer), layer.dtype_policy, _attributes(layer, names))
        for layer in layers
    ]
    inputs = [x for x in ModelIndex(model).layers if hasattr(x, "dtype_before_ways")]
    wider = [(layer, layer.dtype, dtype) for layer, dtype in wider_inputs(model)]
    try:
        forget_ways(model)
        for layer in layers:
            layer.__class__ = _converted(layer)
        for layer, _, dtype in wider:
            keras_internals.set_input_dtype(layer, dtype)
        set_policies(model, ways)
        return_dtypes(model)
        yield
    finally:
        forget_ways(model)
        for layer, cls, policy, attributes in before:
            layer.__class__ = cls
            keras_internals.set_policy(layer, policy)
            for name, value in attributes.items():
                setattr(layer, name, value)
        for layer, dtype, _ in wider:
            keras_internals.set_input_dtype(layer, dtype)
        for layer in inputs:
            layer.dtype_before_ways = layer.dtype
            keras_internals.set_input_dtype(layer, "float32")


def _computing(model: Any) -> list[Any]:
    """Returns a model and all layers inside it but its InputLayers."""
    return [e.layer for e in ModelIndex(model).values() if e.kind != "input"]


def _computed_with(layer: Any) -> list[Any]:
    """Returns a layer, with its cells if it is recurrent."""
    if isinstance(layer, keras.layers.RNN):
        return keras_internals.flatten_layers(layer)
    return [layer]


def _set_policy(layer: Any, policy: Any) -> None:
    layer.policy_before_ways = layer.dtype_policy
    keras_internals.set_policy(layer, keras.dtype_policies.get(policy))
    # Keras's normalizations round their outputs to the dtype of their inputs.
    layer.autocast_before_ways = layer.autocast
    layer.autocast = True


def computes_products(layer: Any) -> bool:
    """Tells whether a layer, once converted, multiplies in FP16 with FP32 results."""
    return issubclass(_converted(layer), WITH_PRODUCTS)


def _converted(layer: Any) -> Any:
    """Returns the class that a layer has after `convert`."""
    cls = counterpart(type(layer))
    return type(layer) if cls is None or replaced_methods(layer) else cls


def _policy(layer: Any, way: str) -> Any:
    stored = layer.variable_dtype if is_half(layer.variable_dtype) else "float32"
    if way == FLOAT32 and stored == "float32":
        return "float32"
    # Without products, this is FP32, and reads weights that are stored in FP16.
    return Float16ProductsPolicy(scaled=way == SCALED_PRODUCTS, variable_dtype=stored)


def _way(layer: Any) -> str:
    """Returns the way whose policy a layer has."""
    policy = layer.dtype_policy
    if isinstance(policy, Float16ProductsPolicy) and computes_products(layer):
        return SCALED_PRODUCTS if policy.scaled else PRODUCTS
    return FLOAT32


def _differ(layer: Any, sublayer: Any) -> bool:
    """Tells whether one of two layers computes in FP16 and the other in FP32."""
    dtypes = {layer.compute_dtype, sublayer.compute_dtype}
    changed = hasattr(layer, "policy_before_ways") or hasattr(
        sublayer, "policy_before_ways"
    )
    return changed and dtypes == {"float16", "float32"}


def _returning(cls: Any) -> Any:
    """Returns a class with the name of `cls` that is a `ReturnsDtype`, too."""
    names = ("__module__", "__qualname__", "__doc__")
    members = {name: getattr(cls, name) for name in names}
    return types.new_class(
        cls.__name__, (ReturnsDtype, cls), exec_body=lambda body: body.update(members)
    )


def _attributes(layer: Any, names: tuple[str, ...]) -> dict[str, Any]:
    return {name: getattr(layer, name) for name in names if name in vars(layer)}
