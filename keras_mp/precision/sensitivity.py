"""The layers with rounding that the gradients do not bear: each is run separately.

An error that a layer amplifies in its backward pass shows in the gradients of the
layers before it, and all roundings before it are at fault. So no comparison of tensors
tells which layer to widen: a run in which it is the only one in FP16 does.
"""

import functools
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from keras_mp.precision.decide import Choice, next_mode
from keras_mp.precision.layer_table import LayerRow
from keras_mp.precision.model_index import LayerEntry, ModelIndex
from keras_mp.precision.modes import FLOAT16, FLOAT32


@dataclass(frozen=True)
class Group:
    """Layers that are tried together.

    Attributes:
        paths: tuple of their paths.
        parts: tuple of `Group`, what they are tried in where all together are too much:
            the own code of a layer, and each layer inside it. Empty for one layer.
    """

    paths: tuple[str, ...]
    parts: tuple["Group", ...] = ()


def groups_of(index: ModelIndex, numbers: Mapping[str, LayerRow]) -> list[Group]:
    """Returns the groups of a model: one for each outermost layer that is no graph.

    Args:
        index: of the model.
        numbers: the `LayerRow` by path of the layers that were called.
    """
    seen: set[str] = set()

    def groups(entry: LayerEntry) -> list[Group]:
        if entry.path in seen:
            return []
        seen.add(entry.path)
        own = [Group((entry.path,))] if entry.path in numbers else []
        if entry.kind == "unit":  # it has one mode with all that is inside
            return own
        inner = [group for child in entry.children for group in groups(child)]
        if entry.kind == "graph" or not inner:
            return own + inner
        parts = (*own, *inner)
        return [Group(tuple(path for part in parts for path in part.paths), parts)]

    root = next(iter(index.values()))
    return groups(root)


def widen_for_gradients(
    groups: Iterable[Group],
    numbers: Mapping[str, LayerRow],
    choices: Mapping[str, Choice],
    error_of: Callable[[Mapping[str, str]], float],
    tolerance: float,
) -> dict[str, Choice]:
    """Returns choices with which the errors of all layers together are tolerable.

    Errors of different layers add as squares. Of n layers each may have an error of
    `tolerance / (2 sqrt(n))`, which is half of the tolerance for all; k layers that are
    tried together may have `sqrt(k)` times that.

    Args:
        groups: the groups of the model.
        numbers: dict from path to `LayerRow`.
        choices: dict from path to `Choice`; other layers compute in FP16.
        error_of: function of a dict from path to mode, which returns the relative error
            of the gradients with these layers in these modes, and all others in FP32.
        tolerance: float.
    """
    found = dict(choices)
    pending = list(groups)
    share = tolerance / 2 / math.sqrt(sum(len(group.paths) for group in pending) or 1)

    def mode_of(path: str) -> str:
        return found[path].mode if path in found else FLOAT16

    while pending:
        group = pending.pop(0)
        modes = {path: mode_of(path) for path in group.paths}
        error = 0.0 if set(modes.values()) == {FLOAT32} else error_of(modes)
        if error <= share * math.sqrt(len(group.paths)):
            continue
        if group.parts:
            pending[:0] = group.parts
            continue
        (path,) = group.paths
        before, mode = modes[path], modes[path]
        reason = f"gradient error {error:.2%} from {before} in only this layer"
        while not error <= share:
            mode = next_mode(numbers[path], mode) or FLOAT32
            error = 0.0 if mode == FLOAT32 else error_of({path: mode})
        found[path] = Choice(mode, reason)
    return found


def remembered(
    error_of: Callable[[Mapping[str, str]], float],
) -> Callable[[Mapping[str, str]], float]:
    """Returns a function that measures the same modes once."""

    @functools.cache
    def measure(modes: frozenset[tuple[str, str]]) -> float:
        return error_of(dict(modes))

    return lambda modes: measure(frozenset(modes.items()))
