"""Masters that are stored in other forms than as an FP32 variable."""

from typing import Any

import keras
import numpy as np
from keras import ops

from keras_mp import keras_internals
from keras_mp.optimizer.compression import join, round_by, round_nearest, split
from keras_mp.random_bits import uniforms


class SlotReference(keras.Variable):
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
        self.reference = SlotReference(weight)
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
        remainder: int16 `keras.Variable` of the same shape.
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
        weight = round_nearest(value, self._half)
        self.remainder.assign(split(value, weight))
        self.weight.assign(weight)

    def load(self, value: Any) -> None:
        value = ops.convert_to_tensor(value, "float32")
        self.remainder.assign(split(value, round_nearest(value, self._half)))


class WeightAsMaster(StoredMaster):
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
