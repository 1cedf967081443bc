"""A model, or its twin under another dtype policy, run forward and backward once."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import keras
from keras import ops

from keras_mp.diagnostics.expansion import Expansion, is_floating, is_graph, numbered
from keras_mp.diagnostics.twin import (
    copy_state,
    paired_variables,
    same_random_state,
)
from keras_mp.layers.probe import recording


@dataclass
class Backpropagation:
    """What one forward and backward pass computed.

    Attributes:
        activations: list of (path, tensor), in the order of computation.
        activation_gradients: list of (path, float32 tensor), in that order: computed
            from the loss times the scale, and divided by the scale.
        weight_gradients: as `activation_gradients`, in the order of the weights.
        loss: scalar float32 tensor, not scaled.
    """

    activations: list[tuple[str, Any]]
    activation_gradients: list[tuple[str, Any]]
    weight_gradients: list[tuple[str, Any]]
    loss: Any


class Subject:
    """A model, or its twin under another policy, that is run without a trace.

    Whatever the layers assign to their variables, statistics and seeds among them, is
    forgotten after a run.

    Args:
        model: `keras.Model`, built and compiled.
        layer_of: returns the layer that computes in the place of a layer: itself, or
            its twin.
        values: dict from the `id` of a variable to the value it is to have instead of
            its own.

    Attributes:
        sees_layers: bool, whether the outputs of its layers are seen, and not only what
            passes through a `keras_mp.layers.Probe`.
        unseen: list of the names of recurrent layers of which only the last output is
            seen.
    """

    def __init__(
        self, model: Any, layer_of: Callable[[Any], Any], values: dict[int, Any]
    ) -> None:
        self._original = model
        self._values = values
        self.unseen: list[str] = []
        self.sees_layers = is_graph(model)
        with same_random_state():
            if self.sees_layers:
                expansion = Expansion(model, layer_of)
                self._model, self._paths = expansion.model, expansion.paths
                layers, self._positions = expansion.layers, expansion.positions
                self.unseen = expansion.unseen
            else:
                self._model, self._paths = layer_of(model), []
                self._positions = {}
                layers = [(model, self._model)]
        self._pairs = [pair for pair in layers if pair[0] is not pair[1]]

    def run(self, x: Any, y: Any, sample_weight: Any, scale: float) -> Backpropagation:
        """Runs one batch forward and backward, as a step of training would.

        Args:
            x: tensor, or a structure of several.
            y: as `x`.
            sample_weight: as `x`, or None.
            scale: float, the loss is multiplied by it before it is differentiated.
        """
        import tensorflow as tf

        self._build()
        mapping = self._mapping()
        values = {id(old): value for old, _, value in mapping}
        weights = [(v, values[id(v)]) for v in self._original.trainable_variables]
        with tf.GradientTape() as tape:
            tape.watch([value for _, value in weights])
            # So that layers before the first weight have gradients, too.
            tape.watch([each for each in keras.tree.flatten(x) if is_floating(each)])
            with (
                keras.StatelessScope(
                    [(new, value) for _, new, value in mapping], collect_losses=True
                ),
                recording() as probes,
            ):
                y_pred, outputs, shown = self._forward(x)
                loss = self._loss(x, y, y_pred, sample_weight)
                scaled = ops.cast(loss, "float32") * scale
        # Inside a tf.function there are no numbers to be seen.
        probes = [(path, x) for path, x in probes if hasattr(x, "numpy")]
        paths = numbered([*self._paths, *(path for path, _ in probes)])
        outputs += [x for _, x in probes]
        shown += [x for _, x in probes]
        gradients = tape.gradient(scaled, [[x for _, x in weights], outputs])
        return Backpropagation(
            list(zip(paths, shown, strict=True)),
            _unscaled(paths, gradients[1], scale),
            _unscaled(weight_paths(self._original), gradients[0], scale),
            ops.cast(loss, "float32"),
        )

    def position_of(self, variable: Any) -> int | None:
        """Returns the index of the layer of a variable among the activations."""
        return self._positions.get(id(variable))

    def _build(self) -> None:
        """Creates the weights of twins that no symbolic call has created."""
        for layer, twin in self._pairs:
            if not twin.built or len(twin.variables) != len(layer.variables):
                with same_random_state():
                    twin.build_from_config(layer.get_build_config())
            copy_state(layer, twin)

    def _mapping(self) -> list[tuple[Any, Any, Any]]:
        """Returns each variable, the one in its place, and the value it is to have.

        Those of twins come last: the loss of the original still reads its own.
        """
        pairs = {id(new): (old, new) for old, new in self._variables()}
        # One tensor for all that stand for a variable: its gradient is from all uses.
        values: dict[tuple[int, str], Any] = {}
        mapping = []
        for old, new in pairs.values():
            key = id(old), new.dtype
            if key not in values:
                values[key] = self._value(old, new)
            mapping.append((old, new, values[key]))
        return mapping

    def _variables(self) -> list[tuple[Any, Any]]:
        own = [(v, v) for v in self._original.variables]
        own += [(v, v) for v in self._model.variables]
        twins = [p for pair in self._pairs for p in paired_variables(*pair)]
        replaced = {id(new) for _, new in twins}
        return [pair for pair in own if id(pair[1]) not in replaced] + twins

    def _value(self, old: Any, new: Any) -> Any:
        value = self._values.get(id(old), old)
        # A copy: of the trainable ones the tape is to see one tensor.
        return ops.copy(ops.cast(ops.convert_to_tensor(value), new.dtype))

    def _forward(self, x: Any) -> tuple[Any, list[Any], list[Any]]:
        outputs = self._model(x, training=True)
        if not self.sees_layers:
            return outputs, [], []
        y_pred, seen, shown = outputs
        return y_pred, list(seen), list(shown)

    def _loss(self, x: Any, y: Any, y_pred: Any, sample_weight: Any) -> Any:
        original = self._original
        if original.loss is None and not overrides(original, "compute_loss"):
            return _sum(self._model.losses)
        loss = original.compute_loss(
            x=x, y=y, y_pred=y_pred, sample_weight=sample_weight, training=True
        )
        # Penalties are those of the weights that compute, not of the original ones.
        return loss - _sum(original.losses) + _sum(self._model.losses)


def overrides(model: Any, method: str) -> bool:
    """Tells whether the class of a model has a method of its own."""
    return getattr(type(model), method) is not getattr(keras.Model, method)


def weight_paths(model: Any) -> list[str]:
    """Returns the paths of the trainable weights, each another one, in their order."""
    return numbered([variable.path for variable in model.trainable_variables])


def _sum(losses: Any) -> Any:
    return sum(ops.sum(ops.cast(loss, "float32")) for loss in losses)


def _unscaled(
    paths: list[str], gradients: list[Any], scale: float
) -> list[tuple[str, Any]]:
    """Returns the gradients that there are, each with its path, dense and divided."""
    import tensorflow as tf

    return [
        (path, ops.cast(tf.convert_to_tensor(gradient), "float32") / scale)
        for path, gradient in zip(paths, gradients, strict=True)
        if gradient is not None
    ]
