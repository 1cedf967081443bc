"""The rule: from the largest numbers of each layer to the way it is computed."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from keras_mp.precision.modes import (
    FLOAT16,
    FLOAT32,
    MODES,
    PRODUCTS,
    SCALED_PRODUCTS,
)
from keras_mp.precision_plan.layer_numbers import LayerNumbers

FP16_MAX = 65_504.0


@dataclass(frozen=True)
class Choice:
    """The way of a layer, and why.

    Attributes:
        way: str, one of `keras_mp.precision.modes.MODES`.
        reason: str, with the number that asked for it.
    """

    way: str
    reason: str


def decide(numbers: Iterable[LayerNumbers], margin: float) -> dict[str, Choice]:
    """Returns the cheapest way of each layer that its numbers allow, but for FP16.

    FP16 holds what is at most `65504 / margin`. A layer that is given, returns or has
    the gradient of something larger computes in FP32, and so do the layers whose own
    code goes on with it. Products stay in FP16, with FP32 results; scaled, where what
    is multiplied is too large. Inside a layer that computes in FP32, sublayers without
    sublayers do, too.

    Args:
        numbers: the `LayerNumbers` of a model.
        margin: float, at least 1.
    """
    known = {each.path: each for each in numbers}
    choices: dict[str, Choice] = {}
    for each in known.values():
        if reason := _too_large(each, margin):
            raise_way(choices, known, each.path, _least_way(each, margin), reason)
    return choices


def raise_way(
    choices: dict[str, Choice],
    numbers: Mapping[str, LayerNumbers],
    path: str,
    way: str,
    reason: str,
) -> None:
    """Gives a layer a way, and FP32 to what computes with its results.

    Args:
        choices: dict from path to `Choice`, which is changed.
        numbers: the `LayerNumbers` of the model by path.
        path: of the layer.
        way: str, the way.
        reason: str.
    """
    choices[path] = Choice(way, reason)
    widened = [path] if numbers[path].is_block else []
    for outer in numbers[path].around:
        if outer in numbers and outer not in choices:
            choices[outer] = Choice(_way_of_own_code(numbers[outer]), f"around {path}")
            widened.append(outer)
    for block in widened:
        for each in numbers.values():
            if block in each.around and not each.is_block and each.path not in choices:
                choices[each.path] = Choice(_way_of_own_code(each), f"inside {block}")


def keep_at_least(choices: dict[str, Choice], ways: Mapping[str, str]) -> None:
    """Gives layers the ways that they had before, where those are further from FP16.

    Args:
        choices: dict from path to `Choice`, which is changed.
        ways: dict from path to way.
    """
    for path, way in ways.items():
        chosen = choices[path].way if path in choices else FLOAT16
        if MODES.index(way) > MODES.index(chosen):
            choices[path] = Choice(way, "as before")


def next_way(each: LayerNumbers, way: str) -> str | None:
    """Returns the next way for a layer whose numbers one does not hold, or None."""
    ladder = [*MODES] if each.has_products else [FLOAT16, FLOAT32]
    later = ladder[ladder.index(way) + 1 :]
    return later[0] if later else None


def _way_of_own_code(each: LayerNumbers) -> str:
    return PRODUCTS if each.has_products else FLOAT32


def _least_way(each: LayerNumbers, margin: float) -> str:
    """Returns the cheapest way but FP16 that the numbers of a layer allow."""
    if not each.has_products:
        return FLOAT32
    multiplied = max(each.inputs, each.matrices, each.gradients)
    return SCALED_PRODUCTS if multiplied * margin > FP16_MAX else PRODUCTS


def _too_large(each: LayerNumbers, margin: float) -> str:
    """Returns which of the numbers of a layer FP16 does not hold; empty if it does."""
    kinds = ("inputs", "outputs", "gradients", "weights")
    largest = max(kinds, key=lambda kind: getattr(each, kind))
    size = getattr(each, largest)
    return f"{largest} up to {size:.3g}" if size * margin > FP16_MAX else ""
