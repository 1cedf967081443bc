"""The wrapped optimizers of a model, as callbacks watch them."""

from collections.abc import Sequence
from typing import NamedTuple

import keras

from keras_mp.optimizer import FP32MasterOptimizer


class Watched(NamedTuple):
    """An optimizer of a model, and what its numbers are called in logs.

    Attributes:
        prefix: str: the attribute of the model that holds it, and `_`; empty for the
            one of `compile`, and for an only one.
        optimizer: `FP32MasterOptimizer`.
    """

    prefix: str
    optimizer: FP32MasterOptimizer


def wrapped_optimizer(model: keras.Model, callback: str) -> FP32MasterOptimizer:
    """Returns the optimizer that a model was compiled with.

    Args:
        model: `keras.Model`.
        callback: str, what needs it.

    Raises:
        ValueError: it is not wrapped.
    """
    optimizer = getattr(model, "optimizer", None)
    if not isinstance(optimizer, FP32MasterOptimizer):
        raise ValueError(
            f"{callback} needs a wrapped optimizer. Received: optimizer={optimizer!r}. "
            "Compile with model.compile(optimizer=keras_mp.wrap(optimizer), ...)."
        )
    return optimizer


def watched_optimizers(model: keras.Model) -> list[Watched]:
    """Returns the wrapped optimizers among the attributes of a model.

    Raises:
        ValueError: there is none.
    """
    compiled = getattr(model, "optimizer", None)
    found = {"optimizer": compiled} | vars(model)
    watched = {
        id(value): Watched("" if value is compiled else f"{name}_", value)
        for name, value in found.items()
        if isinstance(value, FP32MasterOptimizer)
    }
    if not watched:
        raise ValueError(
            "LossScaleCallback needs a wrapped optimizer. Received: "
            f"optimizer={compiled!r}. Compile with "
            "model.compile(optimizer=keras_mp.wrap(optimizer), ...); a model with "
            "several holds each wrapped one as an attribute of its own."
        )
    return _without_prefix_of_one(list(watched.values()))


def one_of_each_scale(watched: Sequence[Watched]) -> list[Watched]:
    """Returns the first optimizer of each loss scale: several may share one."""
    first: dict[int, Watched] = {}
    for each in watched:
        first.setdefault(id(each.optimizer.loss_scale), each)
    return _without_prefix_of_one(list(first.values()))


def _without_prefix_of_one(watched: list[Watched]) -> list[Watched]:
    return watched if len(watched) > 1 else [Watched("", watched[0].optimizer)]
