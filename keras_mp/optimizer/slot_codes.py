"""Slots stored in 8 bits an element, and in 4.

Beside its codes each group of 32 elements has the exponent of its largest. It has eight
bits as in FP32, so it cannot underflow where FP32 does not. An element is a
floating-point number relative to it, with three fraction bits of 8, or one of 4. Signed
slots, such as a momentum, have a sign bit, and four exponent bits of 8 or two of 4;
slots that are never negative, such as a second moment, have five, or three.

They are rounded stochastically, hence without bias. To nearest, a second moment would
never follow its gradients: a step changes it by 0.1%, and neighbours are 6 to 12%
apart, or 33 to 50%. No element is above the group's largest code, 1.875 times its power
of two in 8 bits: cut off there, a second moment that grows by 0.1% a step would never
get beyond.

A positive second moment is never stored as 0, since its root is a divisor. In 8 bits at
least 2**-33 of the group's power of two remains. The unsigned code of 4 bits has no 0:
its smallest number is 2**-8 of its largest, and what lies below becomes that, which
makes the updates of such elements smaller. A group of zeros stays 0 in all codes.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import keras
from keras import ops

from keras_mp import keras_internals
from keras_mp.optimizer.backend import backend
from keras_mp.optimizer.compression import bits_of
from keras_mp.optimizer.sharding import layout_of_vector
from keras_mp.random_bits import int32, noise_of_step, random_bits, shift_right
from keras_mp.typing import Tensor, Variable

GROUP = 32
# 254 would need a subnormal inverse, which processors flush to zero.
_LARGEST_EXPONENT = 253
# By bits and sign: the smallest normal number, and the largest, of a group whose power
# of two is 1.
_RANGES = {
    (8, True): (2.0**-14, 1.875),
    (8, False): (2.0**-30, 1.875),
    (4, True): (2.0**-2, 1.5),
    (4, False): (2.0**-7, 1.0),
}
# Random bits by which a number is rounded to nearest.
TO_NEAREST = int32(2**31)


@dataclass(frozen=True)
class SlotCode:
    """What the codes of a slot mean.

    Attributes:
        bits: int, 8 or 4.
        is_signed: bool, False for what is never negative.
    """

    bits: int
    is_signed: bool

    @property
    def fraction_bits(self) -> int:
        return 3 if self.bits == 8 else 1

    @property
    def smallest_normal(self) -> float:
        return _RANGES[self.bits, self.is_signed][0]

    @property
    def largest(self) -> float:
        return _RANGES[self.bits, self.is_signed][1]

    @property
    def has_zero(self) -> bool:
        return self.bits == 8 or self.is_signed

    @property
    def sign(self) -> int:
        """The sign bit, or 2**bits without one: no code reaches that."""
        return int(2 ** (self.bits - self.is_signed))

    def shape(self, shape: Sequence[int]) -> tuple[int, ...]:
        """Returns the shape of the codes: of 4 bits, a vector of 16 bytes a group.

        Args:
            shape: tuple of ints, of the numbers.
        """
        if self.bits == 8:
            return tuple(shape)
        return (groups_in(math.prod(shape)) * GROUP // 2,)


def groups_in(size: int) -> int:
    """Returns the number of groups of a variable with `size` elements."""
    return math.ceil(size / GROUP)


def encode(x: Tensor, code: SlotCode, noise: Tensor, stream: int) -> tuple[Any, Any]:
    """Rounds FP32 numbers to codes, stochastically.

    Args:
        x: float32 tensor of static shape; not negative unless the code is signed. NaN
            and inf become the largest number of their group.
        code: `SlotCode`.
        noise: what `noise_of_step` returned.
        stream: int, the number of the slot.

    Returns:
        Codes, uint8 of shape `code.shape(x.shape)`; exponents, uint8 of shape
        `[groups_in(size)]`.
    """
    return encode_by(x, code, random_bits((math.prod(x.shape),), noise, stream))


def encode_by(x: Tensor, code: SlotCode, bits: Tensor) -> tuple[Any, Any]:
    """Rounds as `encode`, by given random bits.

    Args:
        x: as for `encode`.
        code: as for `encode`.
        bits: int32 tensor, 32 random bits for each element, or for all of them.
    """
    size = math.prod(x.shape)
    flat = ops.reshape(x, (size,))
    dropped_bits = 23 - code.fraction_bits
    dither = shift_right(bits, 32 - dropped_bits)
    magnitude = ops.abs(flat)
    exponents = _exponents_of(magnitude, code.largest)
    exponent = _of_elements(exponents, size)
    t = magnitude * _power_of_two(254 - exponent)
    t = ops.where(exponent > 0, t, 0.0)
    t = ops.where(t < code.largest, t, code.largest)
    smallest = code.smallest_normal
    is_small = t < smallest
    above = bits_of(ops.where(is_small, t + smallest, t), "int32") - _bits(smallest)
    codes = shift_right(above + dither, dropped_bits)
    codes = codes + ops.where(is_small, 0, 2**code.fraction_bits)
    if code.is_signed:
        has_sign = ops.logical_and(flat < 0, codes > 0)
        codes = codes + ops.where(has_sign, code.sign, 0)
    else:
        is_positive = ops.logical_and(flat > 0, exponent > 0)
        codes = ops.where(is_positive, ops.maximum(codes, 1), codes)
    if not code.has_zero:
        codes = ops.maximum(codes, 1) - 1
    codes = ops.reshape(codes, x.shape) if code.bits == 8 else _in_pairs(codes)
    return ops.cast(codes, "uint8"), ops.cast(exponents, "uint8")


def decode(
    codes: Tensor, exponents: Tensor, code: SlotCode, shape: Sequence[int]
) -> Tensor:
    """Returns the numbers that codes mean.

    Args:
        codes: uint8 tensor of shape `code.shape(shape)`.
        exponents: uint8 tensor of shape `[groups_in(size)]`.
        code: `SlotCode`.
        shape: tuple of ints, of the numbers.

    Returns:
        float32 tensor of `shape`.
    """
    size = math.prod(shape)
    codes = ops.cast(codes, "int32")
    codes = ops.reshape(codes, (size,)) if code.bits == 8 else _of_pairs(codes, size)
    exponent = _of_elements(ops.cast(exponents, "int32"), size)
    magnitude = ops.bitwise_and(codes, code.sign - 1)
    if not code.has_zero:
        magnitude = magnitude + 1
    smallest, first_normal = code.smallest_normal, 2**code.fraction_bits
    is_small = magnitude < first_normal
    steps = ops.where(is_small, magnitude, magnitude - first_normal)
    step = 2 ** (23 - code.fraction_bits)
    t = bits_of(steps * step + _bits(smallest), "float32")
    t = ops.where(is_small, t - smallest, t)
    x = t * _power_of_two(exponent)
    x = ops.where(codes >= code.sign, -x, x)
    return ops.reshape(x, shape)


def _in_pairs(codes: Tensor) -> Any:
    """Returns codes of 4 bits as bytes: in each group the first 16 and the last 16.

    A group that is not full has codes of 0 at its end.
    """
    (size,) = codes.shape
    first, last = ops.split(_grouped(codes), 2, axis=1)
    return ops.reshape(first + 16 * last, (groups_in(size) * GROUP // 2,))


def _of_pairs(pairs: Tensor, size: int) -> Any:
    pairs = ops.reshape(pairs, (groups_in(size), GROUP // 2))
    both = [ops.bitwise_and(pairs, 15), shift_right(pairs, 4)]
    groups = ops.concatenate(both, axis=1)
    return ops.reshape(groups, (groups_in(size) * GROUP,))[:size]


def _grouped(x: Tensor) -> Any:
    """Returns a vector as groups, the last one filled with 0."""
    (size,) = x.shape
    groups = groups_in(size)
    return ops.reshape(ops.pad(x, [(0, groups * GROUP - size)]), (groups, GROUP))


def _exponents_of(magnitude: Tensor, largest_number: float) -> Any:
    """Returns the biased exponent of each group: int32.

    The least for which all elements are at most `largest_number` times its power of
    two.
    """
    largest = ops.max(bits_of(_grouped(magnitude), "int32"), axis=1)
    # What is above that fraction has a carry.
    fraction = int((largest_number - 1) * 2**23)
    exponents = shift_right(largest + (2**23 - 1 - fraction), 23)
    exponents = ops.where(largest < _bits(2.0**-126), 0, exponents)
    return ops.minimum(exponents, _LARGEST_EXPONENT)


def _of_elements(exponents: Tensor, size: int) -> Any:
    return ops.repeat(exponents, GROUP)[:size]


def _power_of_two(exponent: Any) -> Any:
    """Returns 2**(exponent - 127), and 0 for 0."""
    return bits_of(exponent * 2**23, "float32")


def _bits(power_of_two: float) -> int:
    """Returns the bits of a power of two as FP32."""
    return (int(math.log2(power_of_two)) + 127) * 2**23


@dataclass(frozen=True)
class Slot:
    """What a rule keeps of each element of a variable.

    Attributes:
        attribute: str, of Keras's optimizer: `"velocities"` for `Adam._velocities`.
        name: str, of one of these variables, such as `"velocity"`; empty where
            `is_signed` is None.
        is_signed: bool, False for what is never negative; None for a slot that codes
            cannot store.
        initial_value: str, the optimizer's option for it. Defaults to None: 0.
    """

    attribute: str
    name: str = ""
    is_signed: bool | None = None
    initial_value: str | None = None


@dataclass(frozen=True)
class CodedSlot:
    """One slot of one variable: codes, and the exponents of groups of 32.

    Attributes:
        codes: uint8 `keras.Variable` of shape `code.shape(shape)`.
        exponents: uint8 `keras.Variable` of shape `[groups_in(size)]`.
        code: `SlotCode`.
        shape: tuple of ints, of the variable.
        stream: int, the number of the slot, of the noise that it is rounded with.
    """

    codes: keras.Variable
    exponents: keras.Variable
    code: SlotCode
    shape: tuple[int, ...]
    stream: int

    @property
    def bits(self) -> int:
        """The bits of a code."""
        return self.code.bits

    @property
    def value(self) -> Tensor:
        """What is stored: a float32 tensor."""
        read = ops.convert_to_tensor
        return decode(read(self.codes), read(self.exponents), self.code, self.shape)

    def store(self, value: Tensor, noise: Tensor) -> None:
        """Rounds a new value.

        Args:
            value: float32 tensor.
            noise: what `noise_of_step` returned.
        """
        codes, exponents = encode(value, self.code, noise, self.stream)
        self.codes.assign(codes)
        self.exponents.assign(exponents)

    def assign(self, value: Tensor) -> None:
        """Rounds a value, by the same noise each time.

        What was read from such a slot is stored again unchanged.

        Args:
            value: float32 tensor or array.
        """
        self.store(ops.convert_to_tensor(value, "float32"), noise_of_step(0, 0))


def create_coded_slots(
    optimizer: keras.Optimizer,
    reference: Variable,
    path: str,
    slots: Sequence[Slot],
    bits: int,
) -> list[CodedSlot]:
    """Returns the slots of a variable, each with the code of its initial value.

    Args:
        optimizer: the inner `keras.optimizers.Optimizer`. The slots bear its name.
        reference: variable with the shape and layout of the slots.
        path: str, of that variable.
        slots: list of `Slot` with a code.
        bits: int, 8 or 4, of each element.
    """
    return [
        _create(optimizer, reference, path, slot, bits, stream)
        for stream, slot in enumerate(slots)
    ]


def _create(
    optimizer: keras.Optimizer,
    reference: Variable,
    path: str,
    slot: Slot,
    bits: int,
    stream: int,
) -> CodedSlot:
    code = SlotCode(bits, bool(slot.is_signed))
    option = slot.initial_value
    initial = ops.full((GROUP,), getattr(optimizer, option) if option else 0.0)
    nearest = ops.full((GROUP,), TO_NEAREST, "int32")
    first_code, first_exponent = (
        int(ops.convert_to_numpy(each)[0]) for each in encode_by(initial, code, nearest)
    )
    shape = tuple(reference.shape)
    layout = keras_internals.layout_argument(reference)

    def create(
        name: str, shape: tuple[int, ...], value: int, **layout: Any
    ) -> keras.Variable:
        with (
            keras.name_scope(optimizer.name, caller=optimizer),
            backend.colocated_with(reference),
        ):
            return keras.Variable(
                keras.initializers.Constant(value),
                shape=shape,
                dtype="uint8",
                trainable=False,
                name=name,
                **layout,
            )

    name = f"{path.replace('/', '_')}_{slot.name}"
    groups = groups_in(math.prod(shape))
    of_codes = code.shape(shape)
    in_pairs = {} if bits == 8 else _of_vector(math.prod(of_codes), **layout)
    return CodedSlot(
        create(name, of_codes, first_code, **{**layout, **in_pairs}),
        create(
            f"{name}_exponents",
            (groups,),
            first_exponent,
            **_of_vector(groups, **layout),
        ),
        code,
        shape,
        stream,
    )


def _of_vector(size: int, layout: Any = None) -> dict[str, Any]:
    """Returns the layout argument of a vector that belongs to a weight with a layout.

    Else a `LayoutMap` would split it as the weight, by a path that contains that.
    """
    if not isinstance(layout, keras.distribution.TensorLayout):
        return {}
    return {"layout": layout_of_vector(layout, size)}
