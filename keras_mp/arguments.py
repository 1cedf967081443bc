"""Checks of what a user passes and of Keras's backend; how errors show a value."""

import math
import numbers
import os
import reprlib
from typing import Any

import keras
import numpy as np

_FLOAT32_MAX = float(2**128 - 2**104)
_SHORT = reprlib.Repr()
_SHORT.maxdict = _SHORT.maxlist = 8
_SHORT.maxstring = _SHORT.maxother = _SHORT.maxlong = 500


def short_repr(value: Any) -> str:
    """Returns `repr(value)`, cut where it is long or deeply nested."""
    return _SHORT.repr(value)


def positive_number(name: str, value: Any, fix: str) -> float:
    """Returns `value` as a float if float32 can hold it and it is above 0."""
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise TypeError(
            f"`{name}` must be a number. Received: {name}={short_repr(value)} "
            f"of type {type(value).__name__}. {fix}"
        )
    try:
        with np.errstate(over="ignore"):
            number = float(np.float32(value))
    except OverflowError:  # an integer beyond float64
        number = math.inf
    if not 2.0**-126 <= number <= _FLOAT32_MAX:
        raise ValueError(
            f"`{name}` must be positive and finite in float32. "
            f"Received: {name}={short_repr(value)}. {fix}"
        )
    return number


def whole_number(name: str, value: Any, fix: str, least: int = 1) -> int:
    """Returns `value` as an int if it is a whole number that int32 can count to."""
    if isinstance(value, bool) or not isinstance(value, numbers.Integral):
        raise TypeError(
            f"`{name}` must be an int. Received: {name}={short_repr(value)} "
            f"of type {type(value).__name__}. {fix}"
        )
    number: Any = value
    if not least <= number < 2**31:
        raise ValueError(
            f"`{name}` must be at least {least} and below 2**31. "
            f"Received: {name}={short_repr(value)}. {fix}"
        )
    return int(number)


def check_tensorflow(what: str, otherwise: str) -> None:
    """Checks that Keras is on the TensorFlow backend.

    Args:
        what: str, what needs it: the subject of a sentence.
        otherwise: str, what a user of another backend can do, without the period.

    Raises:
        RuntimeError: it is on another one.
    """
    backend = keras.backend.backend()
    if backend != "tensorflow":
        raise RuntimeError(
            f"{what} needs Keras on the TensorFlow backend. Received: "
            f"backend={backend!r}. {otherwise}, or set KERAS_BACKEND=tensorflow before "
            "Keras is imported."
        )


def folder(name: str, value: Any) -> str:
    """Returns `value` as a str if it is a path."""
    if not isinstance(value, str | os.PathLike):
        raise TypeError(
            f"`{name}` must be a str or a path. Received: {name}={short_repr(value)} "
            f'of type {type(value).__name__}. Try {name}="logs".'
        )
    return os.fspath(value)
