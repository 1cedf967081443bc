"""A model that also returns the output of each of its layers."""

from collections import Counter
from collections.abc import Callable
from typing import Any

import keras


class Expansion:
    """A functional model rebuilt on layers of choice, with the outputs of all of them.

    Nested functional and Sequential models are expanded, too. The original model is
    not changed.

    Args:
        model: functional or Sequential `keras.Model`, built.
        layer_of: returns the layer that is to compute in the place of a layer.

    Attributes:
        model: `keras.Model`, from the same inputs to a list of three: the outputs of
            the original, the list of the outputs of the layers, and the list of what
            is to be shown of each of these: itself, or for a recurrent layer that
            returns the last output those of all time steps.
        paths: list of str, the layers that these come from, in the order of
            computation.
        layers: list of the pairs of a layer and of the one in its place.
        unseen: list of the names of recurrent layers of which only the last output is
            shown, since they cannot be made from their config.
        positions: dict from the `id` of a variable of the original to the index in
            `paths` of the layer that uses it, the first time.
    """

    def __init__(self, model: Any, layer_of: Callable[[Any], Any]) -> None:
        self.paths: list[str] = []
        self.layers: list[tuple[Any, Any]] = []
        self.positions: dict[int, int] = {}
        self.unseen: list[str] = []
        self._layer_of = layer_of
        self._made: dict[int, Any] = {}
        self._outputs: list[Any] = []
        self._shown: list[Any] = []
        rebuilt = keras.models.clone_model(
            as_functional(model),
            clone_function=lambda layer: layer,
            call_function=self._call,
        )
        self.model = keras.Model(
            rebuilt.input,
            [rebuilt.output, self._outputs, self._shown],
            name=model.name,
        )

    def _call(self, operation: Any, *args: Any, **kwargs: Any) -> Any:
        if is_graph(operation):
            inner = self._once(operation, lambda: Expansion(operation, self._layer_of))
            outputs, seen, shown = inner.model(*args, **kwargs)
            positions = inner.positions
            paths = [f"{operation.name}/{path}" for path in inner.paths]
            self.layers += [pair for pair in inner.layers if pair not in self.layers]
            self.unseen += [path for path in inner.unseen if path not in self.unseen]
        else:
            layer, over_time = self._once(operation, lambda: self._replace(operation))
            outputs = layer(*args, **kwargs)
            seen = [x for x in keras.tree.flatten(outputs) if is_floating(x)]
            shown = list(seen)
            if over_time is not None:
                shown[0] = keras.tree.flatten(over_time(*args, **kwargs))[0]
            paths = [operation.name] * len(seen)
            positions = {id(v): 0 for v in getattr(operation, "variables", ())}
        for variable, position in positions.items():
            self.positions.setdefault(variable, len(self.paths) + position)
        self.paths += paths
        self._outputs += seen
        self._shown += shown
        return outputs

    def _once(self, operation: Any, make: Callable[[], Any]) -> Any:
        """Returns what `make` does, the same for a layer that is called repeatedly."""
        if id(operation) not in self._made:
            self._made[id(operation)] = make()
        return self._made[id(operation)]

    def _replace(self, operation: Any) -> tuple[Any, Any]:
        """Returns what computes in the place of an operation, and its time steps."""
        if not isinstance(operation, keras.Layer):
            return made_again(operation), None
        layer = self._layer_of(operation)
        self.layers.append((operation, layer))
        called = Call(layer, operation.name)
        if not returns_last_output(layer):
            return called, None
        try:
            over_time = returning_sequences(layer)
        except (NotImplementedError, TypeError, ValueError):
            self.unseen.append(operation.name)
            return called, None
        self.layers.append((operation, over_time))
        return called, Call(over_time, over_time.name)


class Call(keras.layers.Layer):
    """Calls a layer, on which Keras then makes no note of the call.

    Such a note would keep the expansion alive for as long as the layer.

    Args:
        layer: `keras.Layer`.
        name: str.
    """

    def __init__(self, layer: Any, name: str) -> None:
        super().__init__(name=name, dtype="float32", autocast=False)
        self.layer = layer
        self.supports_masking = layer.supports_masking
        self.built = True

    def call(self, *args: Any, **kwargs: Any) -> Any:
        return self.layer(*args, **kwargs)

    def compute_mask(self, inputs: Any, previous_mask: Any) -> Any:
        # Keras takes the first argument of `call` for the inputs: here, all of them.
        if not inputs:
            return None
        return self.layer.compute_mask(inputs[0], previous_mask[0])


def made_again(operation: Any) -> Any:
    """Returns a copy of an operation that is no layer, for the reason of `Call`."""
    try:
        return type(operation).from_config(operation.get_config())
    except (NotImplementedError, TypeError, ValueError):
        return operation  # its notes stay, and nothing else is lost


def numbered(paths: list[str]) -> list[str]:
    """Returns the paths, with a number where one is listed again.

    A layer is listed again for its second output, and where it is called again.
    """
    seen: Counter[str] = Counter()
    result = []
    for path in paths:
        seen[path] += 1
        result.append(path if seen[path] == 1 else f"{path} ({seen[path]})")
    return result


def is_graph(layer: Any) -> bool:
    """Tells whether a model is functional or Sequential, and runs as such."""
    if isinstance(layer, keras.Sequential):
        is_built = bool(layer.built and layer.inputs)
        return is_built and type(layer).call is keras.Sequential.call
    has_graph = isinstance(layer, keras.Model) and hasattr(layer, "operations")
    return has_graph and type(layer).call is functional_call()


def functional_call() -> Any:
    """Returns the method that runs the graph of a functional model."""
    x = keras.Input((1,), name="x")
    return type(keras.Model(x, x, name="model")).call


def as_functional(model: Any) -> Any:
    """Returns a functional model on the same layers that is not compiled."""
    # `clone_model` takes a `call_function` for functional models alone, and would
    # make losses and metrics again from their configs.
    if isinstance(model, keras.Sequential):
        return keras.Model(model.inputs[0], model.outputs[0], name=model.name)
    return keras.Model(model.input, model.output, name=model.name)


def returns_last_output(layer: Any) -> bool:
    """Tells whether a layer is recurrent, and returns its last output alone."""
    is_recurrent = isinstance(layer, keras.layers.RNN | keras.layers.Bidirectional)
    return is_recurrent and not layer.return_sequences


def returning_sequences(layer: Any) -> Any:
    """Returns a copy of a recurrent layer that returns the outputs of all steps."""
    config = _with_sequences(layer.get_config())
    return type(layer).from_config({**config, "name": f"{layer.name}_over_time"})


def _with_sequences(config: Any) -> Any:
    if not isinstance(config, dict):
        return config
    result = {name: _with_sequences(value) for name, value in config.items()}
    return (
        {**result, "return_sequences": True} if "return_sequences" in result else result
    )


def is_floating(tensor: Any) -> bool:
    """Tells whether it is a tensor of floating-point numbers."""
    return "float" in keras.backend.standardize_dtype(tensor.dtype)
