"""The masters of an optimizer, and how they and their weights are kept in agreement.

An FP32 master holds the true value, unless other code than the optimizer wrote to the
weight: there the weight is no rounding of its master any more, and the master takes its
value. Masters in other forms are computed from their weights.
"""

import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import keras
from keras import ops

from keras_mp import keras_internals
from keras_mp.optimizer.backend import backend
from keras_mp.optimizer.compression import Rounding
from keras_mp.optimizer.inner_optimizer import leaves
from keras_mp.optimizer.masters import FP32Master, Master, needs_master, path_of
from keras_mp.typing import Strategy, Tensor, Variable

# Which masters have only some rows that can differ from their weights: int tensors, by
# the `id` of a master. All rows of the others can.
Rows = Mapping[int, Any]


class MasterWeights:
    """The masters of an optimizer.

    Args:
        masters: list of the `Master` of each trainable variable.
        rounding: `Rounding`.
        strategy: what `backend.strategy_of` returned for the optimizer.

    Attributes:
        all: list of the masters of all variables.
        distinct: list of the same, each once.
        are_compressed: bool, whether a master or a slot is stored in another form than
            in FP32.
        averages: list of the moving average of each master, or None for one that its
            gradient replaces; empty without `use_ema`, and for an optimizer without a
            rule.
        accumulators: the same of sums of gradients, with `gradient_accumulation_steps`.
    """

    def __init__(
        self, masters: Sequence[Master], rounding: Rounding, strategy: Strategy
    ) -> None:
        self.all = list(masters)
        self.distinct = _distinct(masters)
        self.are_compressed = any(m.is_compressed or m.slots for m in self.distinct)
        self.averages: list[Any] = []
        self.accumulators: list[Any] = []
        self.rounding = rounding
        self.strategy = strategy
        self._positions = {id(m): i for i, m in reversed(list(enumerate(masters)))}
        self._has_values = False

    @property
    def separate(self) -> list[Master]:
        """The masters that are something else than their weights."""
        return [master for master in self.distinct if master.is_separate]

    @property
    def own_variables(self) -> list[keras.Variable]:
        """The variables made for masters and for slots stored as codes: its state."""
        of_masters = [v for master in self.distinct for v in master.own_variables]
        return [*of_masters, *self.slot_variables]

    @property
    def slot_variables(self) -> list[keras.Variable]:
        """The variables of the slots that are stored as codes."""
        slots = [slot for master in self.distinct for slot in master.slots]
        return [v for slot in slots for v in (slot.codes, slot.exponents)]

    @property
    def variables(self) -> list[Any]:
        """All variables that an update of masters may change."""
        variables = [v for m in self.distinct for v in (m.weight, *m.variables)]
        variables += [*self.slot_variables, self.rounding.seed.state]
        return _distinct(variables)

    @property
    def draws_uniforms(self) -> bool:
        """Whether an update draws random numbers for the rounding of FP32 masters."""
        has_fp32 = any(not master.is_compressed for master in self.separate)
        return self.rounding.mode == "stochastic" and has_fp32

    def index(self, master: Master) -> int:
        """Returns the index of a master in `all`."""
        return self._positions[id(master)]

    def create_averages_and_accumulators(self, optimizer: keras.Optimizer) -> None:
        """Lists the averages and sums of gradients that an optimizer needs.

        It has made them for the masters that it was built on. For the others, which
        have slots stored as codes, they are made here.

        Args:
            optimizer: the inner `keras.optimizers.Optimizer`, built.
        """

        def of_each(name: str, made: Iterable[Any]) -> list[Any]:
            others = iter(made)
            return [
                optimizer.add_variable_from_reference(master.reference, name)
                if master.slots
                else next(others)
                for master in self.all
            ]

        averages, accumulators = averages_and_accumulators(optimizer)
        if optimizer.use_ema:
            self.averages = of_each("average", averages)
        if optimizer.gradient_accumulation_steps:
            self.accumulators = of_each("gradient_accumulator", accumulators)

    def exchanged(self, new: Mapping[int, keras.Variable]) -> "MasterWeights":
        """Returns the same with FP32 variables, which are their own masters.

        Args:
            new: dict from the `id` of a master to the variable that takes its place.
        """
        masters: dict[int, Master] = {id(master): master for master in self.distinct}
        for key, variable in new.items():
            exchanged = FP32Master(variable, variable, self.rounding)
            exchanged.slots = masters[key].slots
            masters[key] = exchanged
        changed = MasterWeights(
            [masters[id(master)] for master in self.all], self.rounding, self.strategy
        )
        changed.averages, changed.accumulators = self.averages, self.accumulators
        changed._has_values = self._has_values
        return changed

    def initialize(self) -> None:
        """Copies the weights into the masters, once, when the weights have values."""
        if self._has_values:
            return
        if backend.have_values(
            [m.weight for m in self.separate if not m.is_compressed]
        ):
            self._has_values = True
            backend.run_eagerly(self.sync_masters_from_weights)

    def values(self) -> dict[int, Any]:
        """Returns the float32 value of every weight with a separate master, by `id`."""
        return {id(master.weight): master.value for master in self.separate}

    def sync_masters_from_weights(
        self, masters: Sequence[Master] | None = None, rows: Rows | None = None
    ) -> None:
        """Overwrites masters where other code has written to their weights.

        Args:
            masters: list of `Master`. Defaults to all.
            rows: `Rows`. Defaults to None: all rows of all masters.
        """
        rows = rows or {}
        whole, others = self._in_one_call(masters, rows)
        if whole:
            from keras_mp.ops.kernels import update

            update.sync_masters_from_weights(
                [m.variable for m in whole],
                [m.weight for m in whole],
                self.rounding.mode,
            )
        for m in others:
            self._assign(m.variable, m.follow, m.weight, rows.get(id(m)))

    def sync_weights_from_masters(
        self, masters: Sequence[Master] | None = None, rows: Rows | None = None
    ) -> None:
        """Rounds masters into their weights.

        Args:
            masters: as for `sync_masters_from_weights`.
            rows: as for `sync_masters_from_weights`.
        """
        rows = rows or {}
        whole, others = self._in_one_call(masters, rows)
        if whole:
            from keras_mp.ops.kernels import update

            weights = [m.weight for m in whole]
            update.cast_masters(
                [m.variable for m in whole], weights, self.rounding.uniforms(weights)
            )
        for m in others:
            self._assign(m.weight, m.rounded, m.variable, rows.get(id(m)))

    def _in_one_call(
        self, masters: Sequence[Master] | None, rows: Rows
    ) -> tuple[list[FP32Master], list[FP32Master]]:
        """Divides separate FP32 masters: one call of an op takes the first list."""
        chosen = self.distinct if masters is None else _distinct(masters)
        fp32 = [m for m in chosen if isinstance(m, FP32Master) and m.is_separate]
        whole = [m for m in fp32 if id(m) not in rows]
        variables = [v for m in whole for v in (m.weight, m.variable)]
        if not whole or not backend.can_update(variables):
            return [], fp32
        return whole, [m for m in fp32 if id(m) in rows]

    def _assign(
        self,
        variable: Variable,
        value: Callable[[Tensor, Tensor], Tensor],
        source: Variable,
        rows: Tensor | None,
    ) -> None:
        """Assigns `value(variable, source)` to all rows or to some."""
        backend.assign_on_all_replicas(self.strategy, variable, value, source, rows)


def averages_and_accumulators(
    optimizer: keras.Optimizer,
) -> tuple[list[Any], list[Any]]:
    """Returns the averages and sums of gradients that an optimizer has made itself."""
    averages, accumulators = [], []
    if optimizer.use_ema:
        averages = list(keras_internals.moving_averages(optimizer))
    if optimizer.gradient_accumulation_steps:
        accumulators = list(keras_internals.accumulated_gradients(optimizer))
    return averages, accumulators


def _distinct(objects: Iterable[Any]) -> list[Any]:
    return list({id(each): each for each in objects}.values())


def keeps_average(optimizer: keras.Optimizer) -> bool:
    """Tells whether an optimizer, or one inside it, averages what it updates."""
    return any(leaf.use_ema for leaf in leaves(optimizer))


def overwrite_with_average(
    optimizer: keras.Optimizer, master_weights: MasterWeights, masters: Sequence[Master]
) -> None:
    """Overwrites masters with their moving averages.

    Args:
        optimizer: `keras.optimizers.Optimizer`, which keeps averages.
        master_weights: `MasterWeights`.
        masters: list of those to overwrite.
    """
    variables = [master.variable for master in masters]
    if master_weights.are_compressed:
        for master, variable in zip(masters, variables, strict=True):
            average = master_weights.averages[master_weights.index(master)]
            variable.assign(ops.copy(average))
        return
    optimizer.finalize_variable_values(variables)
    if keras.backend.backend() == "jax":
        # Keras has made a master and its average one buffer, and the next `fit`
        # cannot donate a buffer twice.
        for variable in variables:
            variable.assign(ops.copy(variable))


class OutsideWrites:
    """Warns of a step that assigns to a 16-bit weight more than once before `apply`.

    Sharpness-aware minimization does so: it adds to a weight, takes a gradient, and
    subtracts the same. In 16 bits the weight does not come back to the bit, and its
    master, which takes what was written, loses what lies below.

    It looks at the step while that is traced, which costs nothing when it runs. It does
    not see a loop that runs eagerly, assignments in branches, or several replicas.
    """

    def __init__(self) -> None:
        self._seen: tuple[Any, int] = (None, 0)
        self._has_warned = False

    def take_note(self) -> None:
        """Leaves out, from now on, what the current function has assigned so far."""
        self._seen = (backend.current_function(), backend.traced_operations())

    def check(self, weights: Sequence[Variable]) -> None:
        """Warns once, if the current function has assigned to one of these repeatedly.

        Args:
            weights: list of the variables of a step.
        """
        function, seen = self._seen
        start = seen if function is backend.current_function() else 0
        if self._has_warned or backend.traced_operations() <= start:
            return
        halves = [weight for weight in weights if needs_master(weight)]
        counts = backend.traced_assignments(halves, start)
        for weight, count in zip(halves, counts, strict=True):
            if count > 1:
                self._has_warned = True
                warnings.warn(
                    f"A training step assigns {count} times to {path_of(weight)!r} "
                    f"before `apply`. In {weight.dtype} each assignment is rounded. "
                    "Unless the weight comes back bit for bit, what its master had "
                    "below the last bit is lost. Add and subtract in `with "
                    "optimizer.fp32_weights(model):`, which yields the FP32 values.",
                    stacklevel=3,
                )
                return
