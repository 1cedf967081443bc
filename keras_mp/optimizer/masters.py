"""Masters and slots, in every form in which an optimizer stores them.

A master is the FP32 value of a weight: an FP32 variable with the name and path of the
weight, or what a `StoredMaster` computes from fewer bits. A weight stored in FP32 is
its own master. Slots are the FP32 variables that Keras makes, or `CodedSlot`s.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_mp import keras_internals
from keras_mp.dtypes import is_half
from keras_mp.optimizer import slot_codes
from keras_mp.optimizer.backend import backend
from keras_mp.optimizer.compression import (
    join,
    round_by,
    round_nearest,
    round_to_24_bits,
    split,
)
from keras_mp.optimizer.sharding import layout_of_vector
from keras_mp.optimizer.slot_codes import SlotCode
from keras_mp.random_bits import (
    STREAM_OF_WEIGHTS,
    noise_of_step,
    random_bits,
    uniforms,
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


class SlotTemplate(keras.Variable):
    """What an optimizer makes its FP32 slots for, without an FP32 variable.

    Keras reads the shape, dtype, path and layout of a new slot from a variable, and
    finds the slot again by `value`: by the weight here.

    Args:
        weight: float16 or bfloat16 `keras.Variable` or `tf.Variable`.
    """

    def __init__(self, weight: Any) -> None:
        # Not that of the base class, which would create a variable.
        self._weight = weight

    @property
    def value(self) -> Any:
        is_keras = isinstance(self._weight, keras.Variable)
        return self._weight.value if is_keras else self._weight

    @property
    def shape(self) -> Any:
        return self._weight.shape

    @property
    def dtype(self) -> str:
        return "float32"

    @property
    def _layout(self) -> Any:
        return keras_internals.layout_argument(self._weight).get("layout")

    @property
    def path(self) -> str:
        return getattr(self._weight, "path", self._weight.name.split(":")[0])

    @property
    def name(self) -> str:
        return self._weight.name

    def assign(self, value: Any) -> None:
        """Sets the weight: `tf.train.Checkpoint` restores what it tracks by this.

        Args:
            value: float16 or bfloat16 tensor.
        """
        self._weight.assign(value)


class StoredMaster(keras.Variable):
    """The master of a weight, computed from what is stored: an FP32 variable to users.

    Args:
        weight: float16 or bfloat16 `keras.Variable` or `tf.Variable`.
    """

    def __init__(self, weight: Any) -> None:
        # Not that of the base class, which would create a variable.
        self.weight = weight
        self.reference = SlotTemplate(weight)
        self.constraint = getattr(weight, "constraint", None)

    @property
    def variables(self) -> list[Any]:
        """The variables that it is stored in, the weight first."""
        return [self.weight]

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.weight.shape)

    @property
    def dtype(self) -> str:
        return "float32"

    @property
    def path(self) -> str:
        return self.reference.path

    @property
    def name(self) -> str:
        return self.weight.name

    @property
    def value(self) -> Any:
        """The master: a float32 tensor."""
        raise NotImplementedError

    def store(self, value: Any, noise: Any) -> None:
        """Rounds a new master into the weight, and stores the rest.

        Args:
            value: float32 tensor.
            noise: what `noise_of_step` returned.
        """
        raise NotImplementedError

    def load(self, value: Any) -> None:
        """Takes over a saved master, and leaves its weight, which is saved elsewhere.

        Args:
            value: float32 tensor or array.
        """
        raise NotImplementedError

    def assign(self, value: Any) -> None:
        """Sets the master, and so its weight.

        Args:
            value: float32 tensor or array.
        """
        self._store_nearest(ops.convert_to_tensor(value, "float32"))

    def numpy(self) -> np.ndarray:
        """Returns the master: a float32 array."""
        return np.asarray(ops.convert_to_numpy(self.value))

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return self.numpy().astype(dtype or "float32", copy=False)

    def _store_nearest(self, value: Any) -> None:
        raise NotImplementedError

    @property
    def _half(self) -> str:
        return str(keras.backend.standardize_dtype(self.weight.dtype))


class RemainderMaster(StoredMaster):
    """A master that is its weight and a remainder, `compression.join` of both.

    Other code may write to the weight: the remainder stays, so that the master is
    within half a unit in the last place of what was written.

    Args:
        weight: float16 or bfloat16 `keras.Variable` or `tf.Variable`.
        remainder: int16 `keras.Variable` of the same shape; int8 in a subclass.
    """

    def __init__(self, weight: Any, remainder: Any) -> None:
        super().__init__(weight)
        self.remainder = remainder

    @property
    def variables(self) -> list[Any]:
        return [self.weight, self.remainder]

    @property
    def value(self) -> Any:
        read = ops.convert_to_tensor
        return join(read(self.weight), read(self.remainder))

    def store(self, value: Any, noise: Any) -> None:
        self._store_nearest(value)

    def _store_nearest(self, value: Any) -> None:
        self._store_both(value, round_nearest(value, self._half))

    def _store_both(self, value: Any, weight: Any) -> None:
        self.remainder.assign(self._split(value, weight))
        self.weight.assign(weight)

    def load(self, value: Any) -> None:
        value = ops.convert_to_tensor(value, "float32")
        self.remainder.assign(self._split(value, round_nearest(value, self._half)))

    def _split(self, value: Any, weight: Any) -> Any:
        dtype = keras.backend.standardize_dtype(self.remainder.dtype)
        return split(value, weight, dtype)


class Int8RemainderMaster(RemainderMaster):
    """A master of 24 bits: its weight and a remainder of 8, rounded stochastically.

    What is assigned or loaded is rounded to nearest, so that it stays what it is.
    """

    def store(self, value: Any, noise: Any) -> None:
        bits = random_bits(self.shape, noise, STREAM_OF_WEIGHTS)
        self._store_both(*round_to_24_bits(value, self._half, bits))


class WeightOnlyMaster(StoredMaster):
    """A weight without a master: each update rounds it stochastically."""

    @property
    def value(self) -> Any:
        return ops.cast(ops.convert_to_tensor(self.weight), "float32")

    def load(self, value: Any) -> None:
        # The weight is all there is.
        pass

    def store(self, value: Any, noise: Any) -> None:
        random_numbers = uniforms(self.shape, noise)
        self.weight.assign(round_by(value, self._half, random_numbers))

    def _store_nearest(self, value: Any) -> None:
        self.weight.assign(round_nearest(value, self._half))


def reference_of(master: Any) -> Any:
    """Returns what the inner optimizer knows a master by: a variable is itself."""
    return master.reference if isinstance(master, StoredMaster) else master


def create_masters(
    variables: Sequence[Any], form: str | None, of_all: bool = False
) -> list[Any]:
    """Returns the master of each variable: itself, unless it is stored in 16 bits.

    Args:
        variables: list of the trainable variables.
        form: as `masters` for `wrap`.
        of_all: bool, whether other variables too get one, of their own dtype. Defaults
            to False.
    """

    def master_of(variable: Any) -> Any:
        if needs_master(variable):
            return _new_master(variable, form)
        if of_all:
            dtype = keras.backend.standardize_dtype(variable.dtype)
            return create_master(variable, dtype)
        return variable

    masters = {id(variable): master_of(variable) for variable in variables}
    return [masters[id(variable)] for variable in variables]


# Of each form: the class of a master, and the dtype of its remainder.
REMAINDERS: dict[str | None, tuple[type[RemainderMaster], str]] = {
    "remainders": (RemainderMaster, "int16"),
    "int8_remainders": (Int8RemainderMaster, "int8"),
}


def _new_master(weight: Any, form: str | None) -> Any:
    if form in REMAINDERS:
        of_form, dtype = REMAINDERS[form]
        return of_form(weight, create_master(weight, dtype))
    return WeightOnlyMaster(weight) if form is None else create_master(weight)


def create_master(weight: Any, dtype: str = "float32") -> keras.Variable:
    """Returns a variable of zeros with the name, path and hooks of `weight`.

    `MasterWeights.initialize` gives it its value: a weight that a traced function
    creates has none before the trace ends.

    Args:
        weight: `keras.Variable` or `tf.Variable`.
        dtype: str. Defaults to `"float32"`.

    Returns:
        `keras.Variable`, not trainable.
    """
    path = getattr(weight, "path", weight.name.split(":")[0])
    parent, _, name = path.rpartition("/")
    grandparent, _, scope = parent.rpartition("/")
    with (
        keras.name_scope(scope, override_parent=grandparent),
        backend.colocated_with(weight),
    ):
        master = keras.Variable(
            "zeros",
            shape=weight.shape,
            dtype=dtype,
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
class CodedSlot:
    """One slot of one variable: codes, and the exponents of groups of 32.

    Attributes:
        codes: uint8 `keras.Variable` of shape `code.shape(shape)`.
        exponents: uint8 `keras.Variable` of shape `[groups_in(size)]`.
        code: `SlotCode`.
        shape: tuple of ints, of the variable.
        stream: int, the number of the slot, of the noise that it is rounded with.
    """

    codes: Any
    exponents: Any
    code: SlotCode
    shape: tuple[int, ...]
    stream: int

    @property
    def bits(self) -> int:
        """The bits of a code."""
        return self.code.bits

    @property
    def value(self) -> Any:
        """What is stored: a float32 tensor."""
        read = ops.convert_to_tensor
        return slot_codes.decode(
            read(self.codes), read(self.exponents), self.code, self.shape
        )

    def store(self, value: Any, noise: Any) -> None:
        """Rounds a new value.

        Args:
            value: float32 tensor.
            noise: what `noise_of_step` returned.
        """
        codes, exponents = slot_codes.encode(value, self.code, noise, self.stream)
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
    optimizer: Any, master: Any, kind: SlotKind, bits: int, stream: int
) -> CodedSlot:
    """Returns a new slot with the initial value of its kind, rounded to nearest.

    Args:
        optimizer: the inner `keras.optimizers.Optimizer`. The slot bears its name.
        master: the variable or `StoredMaster` that it is a slot of.
        kind: `SlotKind`.
        bits: int, 8 or 4, of each element.
        stream: int, the number of the slot.
    """
    code = SlotCode(bits, kind.is_signed)
    group = ops.full((slot_codes.GROUP,), kind.initial_value)
    nearest = ops.full((slot_codes.GROUP,), slot_codes.TO_NEAREST, "int32")
    codes, exponent = (
        int(ops.convert_to_numpy(each)[0])
        for each in slot_codes.encode_by(group, code, nearest)
    )
    shape = tuple(master.shape)
    layout = keras_internals.layout_argument(reference_of(master))

    def create(
        name: str, shape: tuple[int, ...], value: int, **layout: Any
    ) -> keras.Variable:
        with (
            keras.name_scope(optimizer.name, caller=optimizer),
            backend.colocated_with(reference_of(master)),
        ):
            return keras.Variable(
                keras.initializers.Constant(value),
                shape=shape,
                dtype="uint8",
                trainable=False,
                name=name,
                **layout,
            )

    name = f"{master.path.replace('/', '_')}_{kind.name}"
    groups = slot_codes.groups_in(math.prod(shape))
    of_codes = code.shape(shape)
    in_pairs = {} if bits == 8 else _of_vector(math.prod(of_codes), **layout)
    return CodedSlot(
        create(name, of_codes, codes, **{**layout, **in_pairs}),
        create(
            f"{name}_exponents", (groups,), exponent, **_of_vector(groups, **layout)
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
