"""Masters, in every form in which an optimizer stores them."""

from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_mp import keras_internals
from keras_mp.dtypes import is_half
from keras_mp.optimizer.backend import backend
from keras_mp.optimizer.compression import (
    Rounding,
    differs,
    join,
    round_by,
    round_nearest,
    round_to_24_bits,
    split,
)
from keras_mp.optimizer.slot_codes import CodedSlot
from keras_mp.random_bits import STREAM_OF_WEIGHTS, random_bits, uniforms
from keras_mp.typing import Tensor, Variable


def needs_master(variable: Variable) -> bool:
    """Tells whether `variable` is stored in less than FP32."""
    return is_half(keras.backend.standardize_dtype(variable.dtype))


def are_distinct(variables: Sequence[Variable]) -> bool:
    """Tells whether no variable is listed twice."""
    return len({id(variable) for variable in variables}) == len(variables)


def path_of(variable: Variable) -> str:
    """Returns the path of a `keras.Variable`, or the name of a `tf.Variable`."""
    return getattr(variable, "path", variable.name.split(":")[0])


class Master:
    """The FP32 value of a weight, and what an optimizer stores for it.

    Attributes:
        weight: the variable of the model.
        reference: what the inner optimizer makes its own variables for, and finds them
            by.
        variables: list of the variables that the value is stored in.
        own_variables: list of the variables that were made for it, and are saved.
        kernel_arguments: the two variables that the kernel of the update takes: the
            FP32 master or the remainder, and the 16-bit weight; or the weight and None.
        is_compressed: bool, whether it is stored in another form than in FP32.
        slots: list of `CodedSlot`; empty if the inner optimizer has the slots.
    """

    weight: Any
    reference: Any
    variables: list[Any]
    own_variables: list[Any]
    kernel_arguments: tuple[Any, Any]
    is_compressed: bool
    slots: list[CodedSlot]

    @property
    def variable(self) -> Any:
        """What users see, and what an optimizer of Keras updates."""
        raise NotImplementedError

    @property
    def value(self) -> Tensor:
        """The master, with what was written to its weight: a float32 tensor.

        A float64 tensor where the weight is float64.
        """
        raise NotImplementedError

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.weight.shape)

    @property
    def constraint(self) -> Any:
        """What the values of the master are constrained to, or None."""
        return getattr(self.variables[0], "constraint", None)

    @property
    def is_separate(self) -> bool:
        """Whether the master is something else than its weight."""
        return self.variable is not self.weight

    def store(self, value: Tensor, noise: Tensor) -> None:
        """Stores a new value, and rounds it into the weight.

        Args:
            value: tensor of the dtype of `value`.
            noise: what `Rounding.noise` returned.
        """
        raise NotImplementedError


class FP32Master(Master):
    """A master that is a variable: the weight itself, or a separate one.

    A separate one of a 16-bit weight holds the true value, unless other code wrote to
    the weight: then that is no rounding of it. A separate one of an FP32 weight is a
    copy on the replica that owns its state.

    Args:
        weight: `keras.Variable` or `tf.Variable`.
        variable: the same, or a `keras.Variable` of the same shape.
        rounding: `Rounding`.
    """

    is_compressed = False

    def __init__(
        self, weight: Variable, variable: Variable, rounding: Rounding
    ) -> None:
        self.weight = weight
        self._variable = self.reference = variable
        self.rounding = rounding
        self.variables = [variable]
        self.slots = []
        # A copy of an FP32 weight equals it after each step, and is in no file.
        is_saved = self.is_separate and needs_master(weight)
        self.own_variables = [variable] if is_saved else []
        self.kernel_arguments = (variable, weight if self.is_separate else None)

    @property
    def variable(self) -> Any:
        return self._variable

    @property
    def value(self) -> Any:
        value = ops.convert_to_tensor(self.variable)
        if not self.is_separate:
            return value
        return self.follow(value, ops.convert_to_tensor(self.weight))

    def follow(self, master: Tensor, weight: Tensor) -> Tensor:
        """Returns the weight, widened, where it is no rounding of its master.

        Args:
            master: float32 tensor.
            weight: tensor of the same elements of the weight.
        """
        if not needs_master(weight):
            return weight
        changed = differs(weight, master, self.rounding.mode)
        return ops.where(changed, ops.cast(weight, "float32"), master)

    def rounded(self, weight: Tensor, master: Tensor) -> Tensor:
        """Returns a master rounded to the dtype of its weight.

        Args:
            weight: tensor or variable of that dtype.
            master: float32 tensor.
        """
        if not needs_master(weight):
            return master
        dtype = keras.backend.standardize_dtype(weight.dtype)
        return self.rounding.round(master, dtype)

    def store(self, value: Tensor, noise: Tensor) -> None:
        self.variable.assign(value)
        if self.is_separate:
            self.weight.assign(self.rounded(self.weight, value))


class SlotTemplate(keras.Variable):
    """What an optimizer makes its FP32 slots for, without an FP32 variable.

    Keras reads the shape, dtype, path and layout of a new slot from a variable, and
    finds the slot again by `value`: by the weight here.

    Args:
        weight: float16 or bfloat16 `keras.Variable` or `tf.Variable`.
    """

    def __init__(self, weight: Variable) -> None:
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
        return path_of(self._weight)

    @property
    def name(self) -> str:
        return self._weight.name

    def assign(self, value: Tensor) -> None:
        """Sets the weight: `tf.train.Checkpoint` restores what it tracks by this.

        Args:
            value: float16 or bfloat16 tensor.
        """
        self._weight.assign(value)


class CompressedMaster(Master, keras.Variable):
    """A master computed from what is stored: an FP32 variable to users.

    Args:
        weight: float16 or bfloat16 `keras.Variable` or `tf.Variable`.
    """

    is_compressed = True

    def __init__(self, weight: Variable) -> None:
        # Not that of `keras.Variable`, which would create one.
        self.weight = weight
        self.reference = SlotTemplate(weight)
        self.variables = [weight]
        self.own_variables = []
        self.kernel_arguments = (weight, None)
        self.slots = []

    @property
    def variable(self) -> "CompressedMaster":
        return self

    @property
    def dtype(self) -> str:
        return "float32"

    @property
    def path(self) -> str:
        return self.reference.path

    @property
    def name(self) -> str:
        return self.weight.name

    def load(self, value: Tensor) -> None:
        """Takes over a saved master, and leaves its weight, which is saved elsewhere.

        Args:
            value: float32 tensor or array.
        """
        raise NotImplementedError

    def assign(self, value: Tensor) -> None:
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

    def _store_nearest(self, value: Tensor) -> None:
        raise NotImplementedError

    @property
    def _half(self) -> str:
        return str(keras.backend.standardize_dtype(self.weight.dtype))


class RemainderMaster(CompressedMaster):
    """A master that is its weight and a remainder, `compression.join` of both.

    Other code may write to the weight: the remainder stays, so that the master is
    within half a unit in the last place of what was written.

    Args:
        weight: float16 or bfloat16 `keras.Variable` or `tf.Variable`.
        remainder: int16 `keras.Variable` of the same shape; int8 in a subclass.
    """

    def __init__(self, weight: Variable, remainder: keras.Variable) -> None:
        super().__init__(weight)
        self.remainder = remainder
        self.variables = [weight, remainder]
        self.own_variables = [remainder]
        self.kernel_arguments = (remainder, weight)

    @property
    def value(self) -> Any:
        read = ops.convert_to_tensor
        return join(read(self.weight), read(self.remainder))

    def store(self, value: Tensor, noise: Tensor) -> None:
        self._store_nearest(value)

    def _store_nearest(self, value: Tensor) -> None:
        self._store_both(value, round_nearest(value, self._half))

    def _store_both(self, value: Tensor, weight: Tensor) -> None:
        self.remainder.assign(self._split(value, weight))
        self.weight.assign(weight)

    def load(self, value: Tensor) -> None:
        value = ops.convert_to_tensor(value, "float32")
        self.remainder.assign(self._split(value, round_nearest(value, self._half)))

    def _split(self, value: Tensor, weight: Tensor) -> Any:
        dtype = keras.backend.standardize_dtype(self.remainder.dtype)
        return split(value, weight, dtype)


class Int8RemainderMaster(RemainderMaster):
    """A master of 24 bits: its weight and a remainder of 8, rounded stochastically.

    What is assigned or loaded is rounded to nearest, so that it stays what it is.
    """

    def store(self, value: Tensor, noise: Tensor) -> None:
        bits = random_bits(self.shape, noise, STREAM_OF_WEIGHTS)
        self._store_both(*round_to_24_bits(value, self._half, bits))


class WeightOnlyMaster(CompressedMaster):
    """A weight without a master: each update rounds it stochastically."""

    @property
    def value(self) -> Any:
        return ops.cast(ops.convert_to_tensor(self.weight), "float32")

    def load(self, value: Tensor) -> None:
        # The weight is all there is.
        pass

    def store(self, value: Tensor, noise: Tensor) -> None:
        random_numbers = uniforms(self.shape, noise)
        self.weight.assign(round_by(value, self._half, random_numbers))

    def _store_nearest(self, value: Tensor) -> None:
        self.weight.assign(round_nearest(value, self._half))


def create_masters(
    variables: Sequence[Variable],
    form: str | None,
    rounding: Rounding,
    of_all: bool = False,
) -> list[Master]:
    """Returns the master of each variable.

    A variable that is not stored in 16 bits is its own master, unless `of_all`. One
    that is listed twice has one master, listed twice.

    Args:
        variables: list of the trainable variables.
        form: as `masters` for `wrap`.
        rounding: `Rounding`.
        of_all: bool, whether all others get a separate master of their own dtype.
            Defaults to False.
    """

    def master_of(weight: Variable) -> Master:
        if needs_master(weight):
            return _FORMS[form](weight, rounding)
        if of_all:
            dtype = keras.backend.standardize_dtype(weight.dtype)
            return FP32Master(weight, variable_like(weight, dtype), rounding)
        return FP32Master(weight, weight, rounding)

    masters = {id(variable): master_of(variable) for variable in variables}
    return [masters[id(variable)] for variable in variables]


# What a weight stored in 16 bits gets, by the argument `masters` of `wrap`.
_FORMS: dict[str | None, Callable[[Any, Rounding], Master]] = {
    "float32": lambda weight, rounding: FP32Master(
        weight, variable_like(weight, "float32"), rounding
    ),
    "remainders": lambda weight, rounding: RemainderMaster(
        weight, variable_like(weight, "int16")
    ),
    "int8_remainders": lambda weight, rounding: Int8RemainderMaster(
        weight, variable_like(weight, "int8")
    ),
    None: lambda weight, rounding: WeightOnlyMaster(weight),
}
# The values of that argument.
FORMS = tuple(_FORMS)


def variable_like(weight: Variable, dtype: str) -> keras.Variable:
    """Returns a variable of zeros with the name, path and constraint of `weight`.

    `MasterWeights.initialize` gives an FP32 master its value: a weight that a traced
    function creates has none before the trace ends.

    Args:
        weight: `keras.Variable` or `tf.Variable`.
        dtype: str.

    Returns:
        `keras.Variable`, not trainable.
    """
    parent, _, name = path_of(weight).rpartition("/")
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


def _aggregation(variable: Variable) -> str:
    """Returns how the copies of several replicas are combined, by Keras's name."""
    if isinstance(variable, keras.Variable):
        return variable.aggregation
    return variable.aggregation.name.lower()
