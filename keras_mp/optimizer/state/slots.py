"""Slots of an optimizer that are stored in 8 bits."""

import math
from dataclasses import dataclass
from typing import Any

import keras
from keras import ops

from keras_mp import keras_internals
from keras_mp.optimizer import compression
from keras_mp.optimizer.sharding import layout_of_vector
from keras_mp.optimizer.state.masters import reference_of
from keras_mp.random_bits import noise_of_step


@dataclass(frozen=True)
class SlotKind:
    """What a rule keeps in a slot.

    Attributes:
        name: str, as in Keras, such as `"momentum"`.
        is_signed: bool, False for what is never negative.
        initial_value: float.
    """

    name: str
    is_signed: bool
    initial_value: float = 0.0


@dataclass(frozen=True)
class EightBitSlot:
    """One slot of one variable: codes, and the exponents of groups of 32.

    Attributes:
        codes: uint8 `keras.Variable` of the shape of the variable.
        exponents: uint8 `keras.Variable` of shape `[groups_in(size)]`.
        is_signed: bool.
        stream: int, the number of the slot, of the noise that it is rounded with.
    """

    codes: Any
    exponents: Any
    is_signed: bool
    stream: int

    @property
    def value(self) -> Any:
        """What is stored: a float32 tensor."""
        read = ops.convert_to_tensor
        return compression.decode(
            read(self.codes), read(self.exponents), self.is_signed
        )

    def store(self, value: Any, noise: Any) -> None:
        """Rounds a new value.

        Args:
            value: float32 tensor.
            noise: what `noise_of_step` returned.
        """
        codes, exponents = compression.encode(value, self.is_signed, noise, self.stream)
        self.codes.assign(codes)
        self.exponents.assign(exponents)

    def assign(self, value: Any) -> None:
        """Rounds a value, by the same noise each time.

        What was read from such a slot is stored again unchanged.

        Args:
            value: float32 tensor or array.
        """
        self.store(ops.convert_to_tensor(value, "float32"), noise_of_step(0, 0))


def create_slot(
    optimizer: Any, master: Any, kind: SlotKind, stream: int
) -> EightBitSlot:
    """Returns a new slot with the initial value of its kind.

    Args:
        optimizer: the inner `keras.optimizers.Optimizer`. The slot bears its name.
        master: the variable or `StoredMaster` that it is a slot of.
        kind: `SlotKind`.
        stream: int, the number of the slot.
    """
    code, exponent = (
        int(ops.convert_to_numpy(each)[0])
        for each in compression.encode(
            ops.full((1,), kind.initial_value), kind.is_signed, noise_of_step(0, 0), 0
        )
    )
    shape = tuple(master.shape)
    layout = keras_internals.layout_argument(reference_of(master))

    def create(
        name: str, shape: tuple[int, ...], value: int, **layout: Any
    ) -> keras.Variable:
        with keras.name_scope(optimizer.name, caller=optimizer):
            return keras.Variable(
                keras.initializers.Constant(value),
                shape=shape,
                dtype="uint8",
                trainable=False,
                name=name,
                **layout,
            )

    name = f"{master.path.replace('/', '_')}_{kind.name}"
    groups = compression.groups_in(math.prod(shape))
    return EightBitSlot(
        create(name, shape, code, **layout),
        create(
            f"{name}_exponents", (groups,), exponent, **_of_groups(groups, **layout)
        ),
        kind.is_signed,
        stream,
    )


def _of_groups(groups: int, layout: Any = None) -> dict[str, Any]:
    """Returns the layout argument of the exponents of codes with a layout.

    Else a `LayoutMap` would split them as their weight, by a path that contains that.
    """
    if not isinstance(layout, keras.distribution.TensorLayout):
        return {}
    return {"layout": layout_of_vector(layout, groups)}
