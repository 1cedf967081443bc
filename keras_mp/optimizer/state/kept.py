"""What Keras's optimizers keep of each variable besides slots, always in FP32."""

from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from keras_mp import keras_internals
from keras_mp.optimizer.masters import reference_of


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


def create_kept(
    optimizer: Any, masters: Sequence[Any], in_eight_bits: Container[int]
) -> Kept:
    """Returns what an optimizer keeps of each master.

    It has made the variables for those that it was built on. For the others, with slots
    stored in 8 bits, they are made here.

    Args:
        optimizer: the inner `keras.optimizers.Optimizer`, built.
        masters: list of all masters.
        in_eight_bits: the `id`s of those that it was not built on.
    """

    def of_each(name: str, made: Iterable[Any]) -> list[Any]:
        others = iter(made)
        return [
            optimizer.add_variable_from_reference(reference_of(master), name)
            if id(master) in in_eight_bits
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
