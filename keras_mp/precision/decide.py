"""The rule: from the largest numbers of each layer to the mode that it computes in."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from keras_mp.precision.layer_table import LayerRow
from keras_mp.precision.modes import (
    FLOAT16,
    FLOAT32,
    MATMUL,
    MODES,
    SCALED_MATMUL,
)

FP16_MAX = 65_504.0


@dataclass(frozen=True)
class Choice:
    """The mode of a layer, and why.

    Attributes:
        mode: str, one of `keras_mp.precision.modes.MODES`.
        reason: str, with the number that asked for it.
    """

    mode: str
    reason: str


def decide(
    numbers: Iterable[LayerRow], margin: float, loss_scale: float
) -> dict[str, Choice]:
    """Returns the cheapest mode of each layer that its numbers allow, but for FP16.

    FP16 holds values of at most `65504 / margin`. A layer that is given or returns
    something larger computes in FP32, and so do the layers with code of their own that
    receive it. Products stay in FP16, with FP32 results; scaled, where what is
    multiplied is too large. Gradients count as the loss scale makes them.

    Args:
        numbers: the `LayerRow` of a model.
        margin: float, at least 1.
        loss_scale: float, the smallest that there may be.
    """
    known = {each.path: each for each in numbers}
    choices: dict[str, Choice] = {}
    for each in known.values():
        if reason := _too_large(each, margin, loss_scale):
            mode = _least_mode(each, margin, loss_scale)
            widen(choices, known, each.path, mode, reason)
    return choices


def fp32_weights(numbers: Iterable[LayerRow], margin: float) -> list[str]:
    """Returns the paths of layers that store weights which FP16 does not hold.

    Args:
        numbers: the `LayerRow` of a model.
        margin: float, at least 1.
    """
    return [
        each.path
        for each in numbers
        if each.has_half_weights and each.weights * margin > FP16_MAX
    ]


def widen(
    choices: dict[str, Choice],
    numbers: Mapping[str, LayerRow],
    path: str,
    mode: str,
    reason: str,
) -> None:
    """Gives a layer a mode, and FP32 to what computes with its results.

    Args:
        choices: dict from path to `Choice`, which is changed.
        numbers: the `LayerRow` of the model by path.
        path: of the layer.
        mode: str, the mode.
        reason: str.
    """
    choices[path] = Choice(mode, reason)
    for outer in numbers[path].callers:
        if outer in numbers and outer not in choices:
            code = MATMUL if numbers[outer].has_matmul else FLOAT32
            choices[outer] = Choice(code, f"computes with {path}")


def at_least(choices: dict[str, Choice], modes: Mapping[str, str]) -> None:
    """Gives layers the modes that they had before, where those are further from FP16.

    Args:
        choices: dict from path to `Choice`, which is changed.
        modes: dict from path to mode.
    """
    for path, mode in modes.items():
        chosen = choices[path].mode if path in choices else FLOAT16
        if MODES.index(mode) > MODES.index(chosen):
            choices[path] = Choice(mode, "as before")


def next_mode(each: LayerRow, mode: str) -> str | None:
    """Returns the next mode for a layer if one does not hold its numbers, or None."""
    ladder = [*MODES] if each.has_matmul else [FLOAT16, FLOAT32]
    later = ladder[ladder.index(mode) + 1 :]
    return later[0] if later else None


def _least_mode(each: LayerRow, margin: float, loss_scale: float) -> str:
    """Returns the cheapest mode but FP16 that the numbers of a layer allow."""
    if not each.has_matmul:
        return FLOAT32
    multiplied = max(each.inputs, each.kernels, each.gradients * loss_scale)
    return SCALED_MATMUL if multiplied * margin > FP16_MAX else MATMUL


def _too_large(each: LayerRow, margin: float, loss_scale: float) -> str:
    """Returns which of the numbers of a layer FP16 does not hold; empty if it does."""
    sizes = {
        "inputs": each.inputs,
        "outputs": each.outputs,
        "gradients": each.gradients * loss_scale,
        "weights": each.weights,
    }
    largest = max(sizes, key=lambda kind: sizes[kind])
    is_too_large = sizes[largest] * margin > FP16_MAX
    return f"{largest} up to {getattr(each, largest):.3g}" if is_too_large else ""
