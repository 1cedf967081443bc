"""Which optimizer state is stored in 8 bits."""

import math
import re
from collections.abc import Sequence
from typing import Any

import keras

from keras_mp.arguments import short_repr, whole_number


@keras.saving.register_keras_serializable(package="keras_mp")
class Int8State:
    """Stores the optimizer state of large variables in 8 bits.

    The state of a variable is in 8 bits if the variable has at least `least_rank` axes
    and `least_size` elements, and none of the patterns `excluded` is found in its path.
    All other state is FP32.

    Args:
        least_size: int >= 1. Defaults to 4096.
        least_rank: int >= 0. Defaults to 2, so that biases and the scales of
            normalizations stay FP32.
        excluded: sequence of str, regular expressions that are searched for in the
            path of a variable. Defaults to `("embeddings",)`: rows of an embedding get
            gradients rarely, and differ in size.

    Raises:
        TypeError: an argument has the wrong type.
        ValueError: one is out of range, or no regular expression.

    Example:

    >>> state = keras_mp.Int8State(least_size=1)
    >>> model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(3)])
    >>> [state.applies_to(weight) for weight in model.weights]
    [True, False]
    >>> optimizer = keras_mp.wrap("adam", state=state)
    """

    def __init__(
        self,
        least_size: int = 4096,
        least_rank: int = 2,
        excluded: Sequence[str] = ("embeddings",),
    ) -> None:
        self.least_size = whole_number("least_size", least_size, "Try 4096.")
        self.least_rank = whole_number("least_rank", least_rank, "Try 2.", least=0)
        self.excluded = _patterns(excluded)

    def applies_to(self, variable: Any) -> bool:
        """Tells whether the state of a variable is stored in 8 bits.

        Args:
            variable: `keras.Variable`.
        """
        path = getattr(variable, "path", variable.name)
        return (
            len(variable.shape) >= self.least_rank
            and math.prod(variable.shape) >= self.least_size
            and not any(re.search(pattern, path) for pattern in self.excluded)
        )

    def get_config(self) -> dict[str, Any]:
        """Returns the constructor's arguments."""
        return {
            "least_size": self.least_size,
            "least_rank": self.least_rank,
            "excluded": list(self.excluded),
        }

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> "Int8State":
        """Returns the state that `get_config` described."""
        return cls(**config)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Int8State) and other.get_config() == self.get_config()

    def __hash__(self) -> int:
        return hash((self.least_size, self.least_rank, self.excluded))

    def __repr__(self) -> str:
        return (
            f"Int8State(least_size={self.least_size}, least_rank={self.least_rank}, "
            f"excluded={self.excluded})"
        )


def _patterns(excluded: Any) -> tuple[str, ...]:
    rule = "`excluded` must be a sequence of regular expressions. Received: "
    fix = ' Try excluded=("embeddings",), or excluded=() for none.'
    is_sequence = isinstance(excluded, Sequence) and not isinstance(excluded, str)
    if not is_sequence or not all(isinstance(each, str) for each in excluded):
        raise TypeError(f"{rule}excluded={short_repr(excluded)}.{fix}")
    for pattern in excluded:
        try:
            re.compile(pattern)
        except re.error as error:
            raise ValueError(
                f"{rule}{pattern!r}, which is none: {error}.{fix}"
            ) from error
    return tuple(excluded)
