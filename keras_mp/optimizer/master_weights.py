"""FP32 masters of 16-bit weights, and how the two are kept in agreement.

A master is the FP32 value of a weight, a variable with the weight's name and path. It
holds the true value, except where other code than the optimizer wrote to the weight:
there the weight is no rounding of its master any more, and the master takes its value.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import keras
from keras import ops, random

from keras_mp import keras_internals
from keras_mp.dtypes import is_half
from keras_mp.optimizer.backend import backend
from keras_mp.optimizer.rounding import (
    differs,
    draw_uniforms,
    round_nearest,
    round_stochastic,
)


def needs_master(variable: Any) -> bool:
    """Tells whether `variable` is stored in less than FP32."""
    return is_half(keras.backend.standardize_dtype(variable.dtype))


def are_distinct(variables: Sequence[Any]) -> bool:
    """Tells whether no variable is listed twice."""
    return len({id(variable) for variable in variables}) == len(variables)


def path_of(variable: Any) -> str:
    """Returns the path of a `keras.Variable`, or the name of a `tf.Variable`."""
    return getattr(variable, "path", variable.name)


def create_masters(variables: Sequence[Any]) -> list[Any]:
    """Returns the master of each variable: itself, unless it is stored in 16 bits."""
    masters = {id(v): create_master(v) if needs_master(v) else v for v in variables}
    return [masters[id(variable)] for variable in variables]


def create_master(weight: Any) -> keras.Variable:
    """Returns a float32 variable of zeros with the name, path and hooks of `weight`.

    `MasterWeights.initialize` gives it its value: a weight that a traced function
    creates has none before the trace ends.

    Args:
        weight: float16 or bfloat16 `keras.Variable` or `tf.Variable`.

    Returns:
        `keras.Variable`, float32, not trainable.
    """
    path = getattr(weight, "path", weight.name.split(":")[0])
    parent, _, name = path.rpartition("/")
    grandparent, _, scope = parent.rpartition("/")
    with keras.name_scope(scope, override_parent=grandparent):
        master = keras.Variable(
            "zeros",
            shape=weight.shape,
            dtype="float32",
            trainable=False,
            aggregation=_aggregation(weight),
            name=name,
            **keras_internals.layout_argument(weight),
        )
    master.constraint = getattr(weight, "constraint", None)
    master.overwrite_with_gradient = getattr(weight, "overwrite_with_gradient", False)
    return master


def _aggregation(variable: Any) -> str:
    """Returns how the copies of several replicas are combined, by Keras's name."""
    if isinstance(variable, keras.Variable):
        return variable.aggregation
    return variable.aggregation.name.lower()


class MasterWeights:
    """The masters of an optimizer, and the weights that they are the masters of.

    Args:
        variables: list of all trainable variables.
        masters: list of the master of each: itself, unless it is stored in 16 bits.
        rounding: `"nearest"` or `"stochastic"`.
        seed: `keras.random.SeedGenerator` of stochastic rounding.
        strategy: what `backend.strategy_of` returned for the optimizer.

    Attributes:
        all: list of the masters of all variables.
        pairs: list of (weight, master), of each weight stored in 16 bits.
    """

    def __init__(
        self,
        variables: list[Any],
        masters: list[Any],
        rounding: str,
        seed: random.SeedGenerator,
        strategy: Any,
    ) -> None:
        self.all = masters
        both = zip(variables, masters, strict=True)
        pairs = {id(w): (w, m) for w, m in both if w is not m}
        self.pairs = list(pairs.values())
        self.rounding = rounding
        self.seed = seed
        self.strategy = strategy
        self._has_values = False

    @property
    def variables(self) -> list[Any]:
        """All variables that a change of weights and masters may change."""
        weights = [weight for weight, _ in self.pairs]
        return [*self.all, *weights, self.seed.state]

    def of(self, masters: Sequence[Any]) -> "MasterWeights":
        """Returns the part of these whose masters are among `masters`."""
        wanted = {id(master) for master in masters}
        pairs = [(w, m) for w, m in self.pairs if id(m) in wanted]
        weights, chosen = ([pair[i] for pair in pairs] for i in (0, 1))
        return MasterWeights(weights, chosen, self.rounding, self.seed, self.strategy)

    def initialize(self) -> None:
        """Copies the weights into the masters, once, when the weights have values."""
        weights = [weight for weight, _ in self.pairs]
        if not self._has_values and backend.have_values(weights):
            self._has_values = True
            backend.outside_functions(self.sync_masters_from_weights)

    def sync_masters_from_weights(self, rows: Mapping[int, Any] | None = None) -> None:
        """Overwrites masters where other code has written to their weights.

        Args:
            rows: int tensors, by the `id` of a master: its only rows that can differ.
                Defaults to None: all rows of all masters.
        """
        rows = rows or {}
        whole = self._update_whole(rows)
        if whole:
            from keras_mp.ops.kernels import update

            weights, masters = zip(*whole, strict=True)
            update.sync_masters_from_weights(masters, weights, self.rounding)
        for weight, master in self._one_by_one(whole):
            self._assign(master, self._synced, weight, rows.get(id(master)))

    def values(self) -> dict[int, Any]:
        """Returns the float32 value of every weight, by the weight's `id`."""
        read = ops.convert_to_tensor
        return {id(w): self._synced(read(m), read(w)) for w, m in self.pairs}

    def _synced(self, master: Any, weight: Any) -> Any:
        changed = differs(weight, master, self.rounding)
        return ops.where(changed, ops.cast(weight, "float32"), master)

    def sync_weights_from_masters(self, rows: Mapping[int, Any] | None = None) -> None:
        """Rounds masters into their weights.

        Args:
            rows: as for `sync_masters_from_weights`.
        """
        rows = rows or {}
        whole = self._update_whole(rows)
        if whole:
            from keras_mp.ops.kernels import update

            weights, masters = zip(*whole, strict=True)
            update.cast_masters(masters, weights, self.uniforms(weights))

        def rounded(weight: Any, master: Any) -> Any:
            dtype = keras.backend.standardize_dtype(weight.dtype)
            if self.rounding == "stochastic":
                return round_stochastic(master, dtype, self.seed)
            return round_nearest(master, dtype)

        for weight, master in self._one_by_one(whole):
            self._assign(weight, rounded, master, rows.get(id(master)))

    def uniforms(self, weights: Sequence[Any]) -> list[Any]:
        """Returns random numbers for stochastic rounding, a tensor for each weight.

        An empty list where the rounding is to nearest.
        """
        if self.rounding == "nearest":
            return []
        return [draw_uniforms(weight, self.seed) for weight in weights]

    def _update_whole(self, rows: Mapping[int, Any]) -> list[tuple[Any, Any]]:
        """Returns the pairs that one call of a native op can update: of all rows."""
        whole = [(w, m) for w, m in self.pairs if id(m) not in rows]
        fits = whole and backend.can_update(
            [variable for pair in whole for variable in pair]
        )
        return whole if fits else []

    def _one_by_one(self, whole: list[tuple[Any, Any]]) -> list[tuple[Any, Any]]:
        done = {id(master) for _, master in whole}
        return [(w, m) for w, m in self.pairs if id(m) not in done]

    def _assign(self, variable: Any, value: Any, source: Any, rows: Any) -> None:
        """Assigns `value(variable, source)` to all rows or to some."""
        backend.assign_on_all_replicas(self.strategy, variable, value, source, rows)
