"""FP32 masters of 16-bit weights, and how the two are kept in agreement.

A master holds the true value, unless other code than the optimizer wrote to the weight:
there the weight is no rounding of its master any more, and the master takes its value.
"""

import warnings
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import keras
from keras import ops, random

from keras_mp import keras_internals
from keras_mp.optimizer.backend import backend
from keras_mp.optimizer.compression import (
    differs,
    draw_uniforms,
    round_nearest,
    round_stochastic,
)
from keras_mp.optimizer.inner_optimizer import leaves
from keras_mp.optimizer.masters import (
    CodedSlot,
    RemainderMaster,
    StoredMaster,
    WeightOnlyMaster,
    create_slot,
    needs_master,
    path_of,
    reference_of,
)
from keras_mp.optimizer.rules import slot_kinds
from keras_mp.random_bits import noise_of_step


@dataclass(frozen=True)
class Kept:
    """Averages of masters and sums of gradients, in the order of the masters.

    Attributes:
        averages: list of float32 variables; empty without `use_ema`.
        sums: list of float32 variables; empty without `gradient_accumulation_steps`.
    """

    averages: list[Any] = field(default_factory=list)
    sums: list[Any] = field(default_factory=list)

    @classmethod
    def of(cls, optimizer: Any) -> "Kept":
        """Returns what an optimizer that was built on all masters has made itself."""
        averages, sums = [], []
        if optimizer.use_ema:
            averages = list(keras_internals.moving_averages(optimizer))
        if optimizer.gradient_accumulation_steps:
            sums = list(keras_internals.accumulated_gradients(optimizer))
        return cls(averages, sums)

    @property
    def variables(self) -> list[Any]:
        """All of them."""
        return [*self.averages, *self.sums]


def create_kept(optimizer: Any, masters: Sequence[Any], coded: Container[int]) -> Kept:
    """Returns what an optimizer keeps of each master.

    It has made the variables for those that it was built on. For the others, with slots
    stored as codes, they are made here.

    Args:
        optimizer: the inner `keras.optimizers.Optimizer`, built.
        masters: list of all masters.
        coded: the `id`s of those that it was not built on.
    """

    def of_each(name: str, made: Iterable[Any]) -> list[Any]:
        others = iter(made)
        return [
            optimizer.add_variable_from_reference(reference_of(master), name)
            if id(master) in coded
            else next(others)
            for master in masters
        ]

    kept = Kept()
    if optimizer.use_ema:
        made = keras_internals.moving_averages(optimizer)
        kept.averages.extend(of_each("average", made))
    if optimizer.gradient_accumulation_steps:
        made = keras_internals.accumulated_gradients(optimizer)
        kept.sums.extend(of_each("gradient_accumulator", made))
    return kept


class MasterWeights:
    """The masters of an optimizer, and the weights that they are the masters of.

    Args:
        variables: list of all trainable variables.
        masters: list of the master of each: itself, unless it is stored in 16 bits.
        rounding: `"nearest"` or `"stochastic"`.
        seed: `keras.random.SeedGenerator` of stochastic rounding.
        strategy: what `backend.strategy_of` returned for the optimizer.
        slots: dict from the `id` of a master to the list of its slots, if they are
            stored as codes. Defaults to none.

    Attributes:
        all: list of the masters of all variables.
        pairs: list of (weight, master), of each weight that has a variable as master:
            stored in 16 bits, or in FP32 where replicas share the state out.
        stored: list of the other masters of weights stored in 16 bits.
        slots: as the argument.
        kept: `Kept`, where masters or slots are compressed.
    """

    def __init__(
        self,
        variables: list[Any],
        masters: list[Any],
        rounding: str,
        seed: random.SeedGenerator,
        strategy: Any,
        slots: Mapping[int, list[CodedSlot]] | None = None,
    ) -> None:
        self.all = masters
        self._positions = {id(m): i for i, m in reversed(list(enumerate(masters)))}
        both = zip(variables, masters, strict=True)
        others = {id(w): (w, m) for w, m in both if w is not m}.values()
        self.pairs = [(w, m) for w, m in others if not isinstance(m, StoredMaster)]
        self.stored = [m for _, m in others if isinstance(m, StoredMaster)]
        self._weight_of = {id(master): weight for weight, master in self.pairs}
        self.slots = slots or {}
        self.kept = Kept()
        self.rounding = rounding
        self.seed = seed
        self.strategy = strategy
        self._has_values = False

    @property
    def variables(self) -> list[Any]:
        """All variables that a change of weights and masters may change."""
        weights = [weight for weight, _ in self.pairs]
        weights += [master.weight for master in self.stored]
        fp32 = [m for m in self.all if not isinstance(m, StoredMaster)]
        themselves = [m for m in fp32 if id(m) not in self._weight_of]
        return [*themselves, *weights, *self.own_variables, self.seed.state]

    @property
    def references(self) -> list[tuple[Any, Any]]:
        """Weights stored in 16 bits, and what the inner optimizer knows each by."""
        return [*self.pairs, *((m.weight, m.reference) for m in self.stored)]

    @property
    def own_variables(self) -> list[Any]:
        """The variables made for masters, remainders and codes of slots: its state."""
        remainders = [
            m.remainder for m in self.stored if isinstance(m, RemainderMaster)
        ]
        # That of an FP32 weight equals it after each step, and is in no file.
        masters = [master for weight, master in self.pairs if needs_master(weight)]
        return [*masters, *remainders, *self.slot_variables]

    @property
    def slot_variables(self) -> list[Any]:
        """The variables of the slots that are stored as codes."""
        return [v for s in self.coded_slots for v in (s.codes, s.exponents)]

    @property
    def coded_slots(self) -> list[CodedSlot]:
        """The slots of all variables that are stored as codes."""
        return [slot for slots in self.slots.values() for slot in slots]

    @property
    def are_compressed(self) -> bool:
        """Whether a master or a slot is stored in another form than in FP32."""
        return bool(self.stored or self.slots)

    @property
    def draws_uniforms(self) -> bool:
        """Whether an update draws random numbers for the rounding of FP32 masters."""
        return self.rounding == "stochastic" and bool(self.pairs)

    def noise(self, step: Any) -> Any:
        """Returns the noise that a step rounds compressed state with.

        Args:
            step: scalar int tensor, the number of the step.
        """
        return noise_of_step(self.seed.get_config()["seed"], step)

    def kernel_arguments(self, master: Any) -> tuple[Any, Any]:
        """Returns the two variables of a master that the kernel takes.

        The FP32 master or the remainder, and the 16-bit weight; or the weight and None
        where it has neither.
        """
        if isinstance(master, RemainderMaster):
            return master.remainder, master.weight
        if isinstance(master, WeightOnlyMaster):
            return master.weight, None
        return master, self._weight_of.get(id(master))

    def index(self, master: Any) -> int:
        """Returns the index of a master in `all`."""
        return self._positions[id(master)]

    def subset(self, masters: Sequence[Any]) -> "MasterWeights":
        """Returns the part of these with masters among `masters`."""
        given = {id(master) for master in masters}
        pairs = [(w, m) for w, m in self.pairs if id(m) in given]
        weights, chosen = ([pair[i] for pair in pairs] for i in (0, 1))
        return MasterWeights(weights, chosen, self.rounding, self.seed, self.strategy)

    def exchanged(
        self, variables: list[Any], new: Mapping[int, Any]
    ) -> "MasterWeights":
        """Returns the same with FP32 variables instead of some masters.

        Args:
            variables: list of all trainable variables, these among them.
            new: dict from the `id` of a master to the variable.
        """
        masters = [new.get(id(master), master) for master in self.all]
        slots = {
            id(new[key]) if key in new else key: of_one
            for key, of_one in self.slots.items()
        }
        fixed = (self.rounding, self.seed, self.strategy)
        changed = MasterWeights(variables, masters, *fixed, slots)
        changed.kept, changed._has_values = self.kept, self._has_values
        return changed

    def initialize(self) -> None:
        """Copies the weights into the masters, once, when the weights have values."""
        weights = [weight for weight, _ in self.pairs]
        if not self._has_values and backend.have_values(weights):
            self._has_values = True
            backend.run_eagerly(self.sync_masters_from_weights)

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
            self._assign(master, self._follow_weight, weight, rows.get(id(master)))

    def values(self) -> dict[int, Any]:
        """Returns the float32 value of every weight, by the weight's `id`."""
        values = {id(w): self.read(m, w) for w, m in self.pairs}
        return values | {id(master.weight): master.value for master in self.stored}

    def read(self, master: Any, weight: Any) -> Any:
        """Returns the float32 value of a master, with what was written to its weight.

        Args:
            master: float32 variable.
            weight: its 16-bit weight.
        """
        read = ops.convert_to_tensor
        return self._follow_weight(read(master), read(weight))

    def _follow_weight(self, master: Any, weight: Any) -> Any:
        if not needs_master(weight):
            return weight
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

        for weight, master in self._one_by_one(whole):
            self._assign(weight, self.rounded, master, rows.get(id(master)))

    def rounded(self, weight: Any, master: Any) -> Any:
        """Returns a tensor rounded to the dtype of `weight`."""
        if not needs_master(weight):
            return master
        dtype = keras.backend.standardize_dtype(weight.dtype)
        if self.rounding == "stochastic":
            return round_stochastic(master, dtype, self.seed)
        return round_nearest(master, dtype)

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


def create_slots(
    optimizer: Any, masters: Iterable[Any], bits: int
) -> dict[int, list[CodedSlot]]:
    """Returns new slots stored as codes, by the `id` of their master.

    Args:
        optimizer: the inner `keras.optimizers.Optimizer`.
        masters: the masters that get them.
        bits: int, 8 or 4, of each code.
    """
    kinds = slot_kinds(optimizer) or ()
    return {
        id(master): [
            create_slot(optimizer, master, kind, bits, stream)
            for stream, kind in enumerate(kinds)
        ]
        for master in masters
    }


def keeps_average(optimizer: Any) -> bool:
    """Tells whether an optimizer, or one inside it, averages what it updates."""
    return any(leaf.use_ema for leaf in leaves(optimizer))


def overwrite_with_average(
    optimizer: Any, master_weights: MasterWeights, masters: Sequence[Any]
) -> None:
    """Overwrites masters with their moving averages.

    Args:
        optimizer: `keras.optimizers.Optimizer`, which keeps averages.
        master_weights: `MasterWeights`.
        masters: list of those to overwrite.
    """
    if master_weights.are_compressed:
        averages = master_weights.kept.averages
        for master in masters:
            average = averages[master_weights.index(master)]
            master.assign(ops.copy(average))
        return
    optimizer.finalize_variable_values(masters)
    if keras.backend.backend() == "jax":
        # Keras has made a master and its average one buffer, and the next `fit`
        # cannot donate a buffer twice.
        for master in masters:
            master.assign(ops.copy(master))


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

    def check(self, weights: Sequence[Any]) -> None:
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
