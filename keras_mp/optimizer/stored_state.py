"""The choice of the forms in which masters and slots are stored."""

from typing import Any

from keras_mp.arguments import short_repr
from keras_mp.optimizer.rules import AROUND_A_RULE, slot_kinds, what_has_no_rule
from keras_mp.optimizer.state.int8_state import Int8State

_MASTERS = ("float32", "remainders", None)


def check_state(
    optimizer: Any, masters: Any, state: Any, rounding: str
) -> Int8State | None:
    """Checks the arguments `masters` and `state`.

    Args:
        optimizer: the inner `keras.optimizers.Optimizer`.
        masters: as for `wrap`.
        state: as for `wrap`.
        rounding: as for `wrap`.

    Returns:
        `Int8State`, or None if all slots are FP32.

    Raises:
        TypeError: `state` is of the wrong type.
        ValueError: a form is unknown, or the optimizer or rounding does not allow it.
    """
    if masters not in _MASTERS:
        raise ValueError(
            '`masters` must be "float32", "remainders" or None. Received: '
            f'masters={short_repr(masters)}. "remainders" holds the same masters in '
            "two thirds of the bytes."
        )
    if masters == "remainders" and rounding == "stochastic":
        raise ValueError(
            "A remainder is what rounding to nearest drops. Received: "
            'masters="remainders" with rounding="stochastic". Leave rounding at '
            '"nearest".'
        )
    if masters is None and rounding != "stochastic":
        raise ValueError(
            "Weights without masters must be rounded stochastically, or updates below "
            "half a unit in their last place are lost. Received: masters=None with "
            f'rounding={short_repr(rounding)}. Add rounding="stochastic".'
        )
    eight_bit = _as_int8_state(state)
    if masters != "float32" or eight_bit is not None:
        _check_rule(optimizer, eight_bit)
    return eight_bit


def _as_int8_state(state: Any) -> Int8State | None:
    if isinstance(state, Int8State):
        return state
    if not isinstance(state, str):
        raise TypeError(
            '`state` must be "float32", "int8" or a keras_mp.Int8State. Received: '
            f"state={short_repr(state)} of type {type(state).__name__}."
        )
    if state not in ("float32", "int8"):
        raise ValueError(
            '`state` must be "float32", "int8" or a keras_mp.Int8State. Received: '
            f"state={short_repr(state)}."
        )
    return Int8State() if state == "int8" else None


def _check_rule(optimizer: Any, eight_bit: Int8State | None) -> None:
    missing = what_has_no_rule(optimizer, AROUND_A_RULE)
    if missing:
        raise ValueError(
            "Compressed optimizer state is for the optimizers that have a kernel: SGD, "
            "Adam, AdamW, Nadam, Adamax, Lion, Adagrad, Adadelta, Ftrl, RMSprop, Lamb "
            "and Adafactor, with the options of all of Keras's optimizers and their "
            "own. "
            f"Received: {missing}. Leave out what was received, or choose "
            'masters="float32" and state="float32".'
        )
    if eight_bit is not None and slot_kinds(optimizer) is None:
        raise ValueError(
            "State in 8 bits is for optimizers that can bear its rounding: not for "
            "Ftrl, Lamb, Adafactor, amsgrad=True and centered=True. Received: "
            f'{type(optimizer).__name__}, or such an option. Choose state="float32".'
        )
