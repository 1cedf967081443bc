"""`convert` turns the layers of a model into `keras_mp.layers`, `to_keras` back."""

import functools
import warnings
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import keras
import numpy as np

from keras_mp import keras_internals
from keras_mp.arguments import check_tensorflow
from keras_mp.dtypes import is_half
from keras_mp.layers.float16_matmul_policy import Float16MatmulPolicy
from keras_mp.layers.precision import FP32Weights
from keras_mp.layers.rnn.orthogonal_weights import (
    BuildsCell,
    draw_as_keras,
    draw_in_fp32,
)
from keras_mp.precision.conversion_report import (
    conversion_report,
    layers_that_compute,
)
from keras_mp.precision.counterparts import (
    COUNTERPARTS,
    KERAS_CLASSES,
    converted_class,
    counterpart,
    is_converted,
    keras_class,
    replaced_methods,
)
from keras_mp.precision.model_index import ModelIndex
from keras_mp.precision.scope import precision_scope, remove_modes
from keras_mp.precision.weight_storage import (
    check_can_store,
    half_weights,
    store_in_fp32,
)
from keras_mp.regularizers import regularize_layers, restore_regularizers


def convert(model: keras.Layer, verbose: bool = False) -> keras.Layer:
    """Converts the layers inside a model to `keras_mp.layers`, in place.

    A layer of class `keras.layers.X` becomes a `keras_mp.layers.X`, if that exists, at
    any depth: in nested models, in Keras's wrappers, and in layers and models of your
    own and of other packages. Only its class changes. Its state stays: names, dtype
    policies, weights, seeds, adapted tables, quantization and LoRA. References to it
    stay valid: the functional graph, compiled losses and metrics, the optimizer and its
    state. A subclass of `keras.layers.X` gets `keras_mp.layers.X` as an additional base
    class, below its own methods. It is not converted if it overrides a method that
    `keras_mp.layers.X` replaces, such as `call`, or does not call, such as
    `convolution_op`; neither is a layer on which you have replaced one.

    Under the policies `float16` and `bfloat16`, the 16-bit weights of normalizations
    are replaced by FP32 weights with the same values, names and order, and on replicas
    with as many copies, inside the scope of a strategy and outside. Therefore
    convert the outermost model: another model that shares these layers and has been
    trained uses the old weights until it is compiled again. Around regularizers of
    weights and activities in 16 bits it puts `keras_mp.FP32Regularizer`. What a
    `Sequential` model without `keras.Input` gives an `Embedding` or a `Normalization`
    is no longer cast to 16 bits.

    A file saved from the model contains `keras_mp.layers.X` for each layer in the
    config of the model. A layer that creates sublayers in its constructor creates Keras
    layers when it is loaded: call `convert` after `load_model`. Functions traced with
    `tf.function` before the conversion do not change; the functions of `fit`,
    `evaluate` and `predict` are traced again.

    Args:
        model: `keras.Model`, or a layer.
        verbose: bool, default False: whether to print the `conversion_report`. If
            False, a warning lists the layers left that compute matrix products or sums
            in 16 bits.

    Returns:
        The same object.

    Raises:
        TypeError: `model` is not a layer.
        ValueError: the 16-bit weights of a normalization must be replaced, but an
            optimizer that is not wrapped, or one on several replicas, already has
            state for them.
        RuntimeError: Keras runs on another backend than TensorFlow.

    Example:

    >>> model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
    >>> type(keras_mp.convert(model).layers[0])
    <class 'keras_mp.layers.core.dense.Dense'>

    Reference: Mixed Precision Training, section 3.3.
    """
    convert_layers(model)
    report = conversion_report(model)
    if verbose:
        print(report)
    elif report.not_converted:
        warnings.warn(
            "What `convert` leaves computes matrix products and sums in 16 bits, as "
            "Keras does. "
            f"Received: {model.name!r}, with {report.reasons}. "
            "Give such a layer dtype='float32', or write it with `keras_mp.layers` and "
            "`keras_mp.ops`; `convert(model, verbose=True)` prints all, and does not "
            "warn.",
            stacklevel=2,
        )
    return model


def convert_layers(model: keras.Layer) -> None:
    """Does what `convert` does, and says nothing of what it leaves.

    Args:
        model: `keras.Model`, or a layer.

    Raises:
        TypeError, ValueError, RuntimeError: as `convert`.
    """
    _check(model, "convert")
    layers = layers_that_compute(model)
    changes = [
        (layer, cls)
        for layer in layers
        if (cls := counterpart(type(layer))) is not None and not replaced_methods(layer)
    ]
    replaced = [
        (layer, found)
        for layer, cls in changes
        if issubclass(cls, FP32Weights) and (found := half_weights(layer))
    ]
    halves = [half for _, each in replaced for half in each]
    check_can_store(layers, halves)
    for layer, cls in changes:
        _change_class(layer, cls)
    for layer, _ in replaced:
        if isinstance(layer, keras.layers.Normalization):
            _warn_of_rounded_statistics(layer)
    store_in_fp32(layers, halves)
    for layer, dtype in _wider_inputs(model):
        keras_internals.set_input_dtype(layer, dtype)
    regularize_layers(ModelIndex(model).layers)
    _forget_traces(layers)


@contextmanager
def converted_in_modes(
    model: keras.Model, modes: Mapping[str, str], fp32_weights: Collection[str] = ()
) -> Iterator[None]:
    """Converts a model and puts its layers into modes inside a `with` block.

    Args:
        model: `keras.Model`.
        modes: dict from the path of a layer to its mode.
        fp32_weights: paths of layers among them with weights that count as FP32.
    """
    index = ModelIndex(model)
    classes = [(layer, type(layer)) for layer in index.layers]
    wider = [(layer, layer.dtype, dtype) for layer, dtype in _wider_inputs(model)]
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


def to_keras(model: keras.Layer) -> keras.Layer:
    """Converts the layers of `keras_mp.layers` inside a model to Keras layers.

    The inverse of `convert` and of `PrecisionPlan.apply`, in place: weights, names and
    all other state stay. Layers with a `Float16MatmulPolicy` get `float32`, or
    `float16` if their weights are stored in that, also inside a `DTypePolicyMap`. A
    model saved or exported then loads without keras_mp: no regularizer is a
    `keras_mp.FP32Regularizer` any more. Normalizations keep their FP32 weights under
    the policy `float16` too.

    Args:
        model: `keras.Model`, or a layer.

    Returns:
        The same object.

    Raises:
        TypeError: `model` is not a layer.
        ValueError: the model contains a subclass of a layer of keras_mp, or an
            operation of `keras_mp.ops`, which have no equivalent in Keras.

    Example:

    >>> layer = keras_mp.layers.Dense(2)
    >>> model = keras.Sequential([keras.Input((3,)), layer])
    >>> type(keras_mp.to_keras(model).layers[0]) is keras.layers.Dense
    True

    Reference: Mixed Precision Training, section 3.3.
    """
    _check(model, "to_keras")
    index = ModelIndex(model)
    layers = index.layers
    ours = [layer for layer in layers if is_converted(type(layer))]
    foreign = [layer for layer in ours if keras_class(type(layer)) is None]
    foreign += [
        operation
        for operation in index.operations.values()
        if type(operation).__module__.startswith("keras_mp.ops")
    ]
    if foreign:
        names = [f"{x.name!r} ({type(x).__name__})" for x in foreign]
        raise ValueError(
            "`to_keras` takes what `convert` makes and the layers of keras_mp; Keras "
            "has no equal of a subclass of one, nor of what is in `keras_mp.ops`. "
            f"Received: {', '.join(names)}. Build the model without."
        )
    remove_modes(index)
    for layer in layers:
        keras_internals.set_policy(layer, _policy_of_keras(layer.dtype_policy))
    for layer in ours:
        _change_class(layer, keras_class(type(layer)))
    restore_regularizers(layers)
    _forget_traces(layers)
    return model


def _policy_of_keras(policy: Any) -> Any:
    """Returns a policy without any `Float16MatmulPolicy`."""
    if isinstance(policy, Float16MatmulPolicy):
        # A layer of Keras that computes in FP32 does not read FP16 weights.
        return keras.DTypePolicy(policy.variable_dtype)
    if isinstance(policy, keras.dtype_policies.DTypePolicyMap):
        default = _policy_of_keras(policy.default_policy)
        found = {path: _policy_of_keras(each) for path, each in policy.items()}
        if default is not policy.default_policy or found != dict(policy):
            return keras.dtype_policies.DTypePolicyMap(default, found)
    return policy


def _check(model: keras.Model, function: str) -> None:
    check_tensorflow(
        f"`{function}`",
        "On others the layers of keras_mp compute as Keras's do. Leave the call out",
    )
    if not isinstance(model, keras.Layer):
        raise TypeError(
            f"`{function}` takes a model or a layer. Received: {model!r}. Call it for "
            "each of several models."
        )


def _warn_of_rounded_statistics(layer: keras.layers.Normalization) -> None:
    found = [layer.adapt_mean.numpy(), layer.adapt_variance.numpy()]
    if np.any(found[0] != 0.0) or np.any(found[1] != 1.0):
        warnings.warn(
            "`adapt` has stored its statistics in 16 bits before `convert`, and what "
            f"was rounded off is lost. Received: {layer.name!r}, with statistics in "
            f"{layer.adapt_mean.dtype}. Call its `adapt` again after `convert`.",
            stacklevel=4,
        )


def _forget_traces(layers: list[Any]) -> None:
    for layer in layers:
        if isinstance(layer, keras.Model):
            for name in ("train_function", "test_function", "predict_function"):
                setattr(layer, name, None)


def _change_class(layer: keras.Layer, cls: Any) -> None:
    """Makes a layer of a Keras class one of its counterpart, or the other way round."""
    if not isinstance(layer.quantize, _Quantize):
        layer.quantize = _Quantize(layer)
    elif cls is layer.quantize.made_as:
        layer.quantize = layer.quantize.of_keras
    layer.__class__ = cls
    # `build` is bound to the layer as well, and goes on to be that of its old class.
    if issubclass(cls, BuildsCell):
        draw_in_fp32(layer)
    elif isinstance(layer, keras.layers.RNN):
        draw_as_keras(layer)


class _Quantize:
    """The method `quantize` of a layer of another class than it was made as.

    Keras binds it to the layer when it is made, with a check that refuses subclasses.

    Args:
        layer: `keras.Layer`, before its class changes.
    """

    def __init__(self, layer: keras.Layer) -> None:
        functools.update_wrapper(self, layer.quantize)
        self.layer, self.made_as, self.of_keras = layer, type(layer), layer.quantize

    def __call__(
        self, mode: Any = None, *args: Any, type_check: bool = True, **options: Any
    ) -> None:
        changed_to = type(self.layer)
        is_subclass = changed_to not in (*KERAS_CLASSES, *COUNTERPARTS)
        self.layer.__class__ = self.made_as
        try:
            checks = type_check and is_subclass
            self.of_keras(mode, *args, type_check=checks, **options)
        finally:
            self.layer.__class__ = changed_to


def _wider_inputs(model: keras.Model) -> list[tuple[Any, str]]:
    """Returns the InputLayers of 16 bits that need another dtype, each with that.

    A Sequential model that is built when it is called makes one in the dtype that its
    first layer computes in, and casts what it is given, integers too. Ids of embeddings
    need `"int32"`, and features that a Normalization is to make small `"float32"`.
    """
    found = []
    for entry in ModelIndex(model).values():
        if entry.kind == "input" and is_half(entry.layer.dtype):
            dtype = _needed(entry.layer)
            if dtype is not None:
                found.append((entry.layer, dtype))
    return found


def _needed(operation: Any) -> str | None:
    """Returns the dtype that what an operation is given needs, None for any other."""
    if isinstance(operation, keras.layers.Embedding):
        return "int32"
    if isinstance(operation, keras.layers.Normalization):
        return "float32"
    if isinstance(operation, keras.layers.InputLayer):
        receivers = filter(_computes, keras_internals.receivers(operation))
        needed = {_needed(receiver) for receiver in receivers}
        return needed.pop() if len(needed) == 1 else None
    if isinstance(operation, keras.Model):
        children = next(iter(ModelIndex(operation).values())).children
        inputs = [child.layer for child in children if child.kind == "input"]
        return _needed(inputs[0]) if len(inputs) == 1 else None
    return None


def _computes(operation: Any) -> bool:
    """Tells whether it is more than the comparison that makes a mask."""
    if isinstance(operation, keras.Layer):
        return True
    return any(x.dtype != "bool" for x in keras.tree.flatten(operation.output))
