"""What `convert` has done to a model, and what it has left."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import keras

from keras_mp import keras_internals
from keras_mp.dtypes import is_half
from keras_mp.layers.conversion.counterparts import (
    COUNTERPARTS,
    LEFT,
    counterpart,
    is_converted,
    overridden,
    plain_base,
)
from keras_mp.layers.conversion.own_code import PRODUCTS_AND_SUMS, products_and_sums
from keras_mp.layers.rnn.recurrence import has_cell_of_keras


@dataclass(frozen=True)
class ConversionReport:
    """The layers of a model by class, and how many there are of each.

    Args:
        converted: layers of `keras_mp.layers`: how many of each class.
        nothing_to_convert: layers with no 16-bit product or sum, those that compute in
            FP32 among them.
        left: layers and operations that compute 16-bit products or sums as in Keras:
            how many of each `(class, reason)`.

    Example:

    >>> model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
    >>> print(keras_mp.conversion_report(keras_mp.convert(model)))
    converted: Dense
    nothing to convert: -
    left: -
    """

    converted: Counter[str] = field(default_factory=Counter)
    nothing_to_convert: Counter[str] = field(default_factory=Counter)
    left: Counter[tuple[str, str]] = field(default_factory=Counter)

    def __str__(self) -> str:
        left = Counter({f"{name} ({why})": n for (name, why), n in self.left.items()})
        return "\n".join(
            f"{title}: {_listed(counts)}"
            for title, counts in (
                ("converted", self.converted),
                ("nothing to convert", self.nothing_to_convert),
                ("left", left),
            )
        )


def _listed(counts: Counter[str]) -> str:
    return (
        ", ".join(f"{n} x {name}" if n > 1 else name for name, n in counts.items())
        or "-"
    )


def conversion_report(model: keras.Layer) -> ConversionReport:
    """Tells of a model which layers are converted, and which are left and why.

    A layer counts as left where its compute dtype is FP16 or bfloat16, and it is a
    Keras layer with a counterpart, a Keras layer that has none and sums, or one whose
    own `call` refers to a product or a sum. Code is read, not run: where it names
    float32, it may cast before it sums, and the reason says so.

    Args:
        model: `keras.Model`, or a layer with others inside.

    Returns:
        `ConversionReport`.

    Example:

    >>> layer = keras.layers.Dense(2, dtype="mixed_float16")
    >>> model = keras.Sequential([keras.Input((3,)), layer])
    >>> print(keras_mp.conversion_report(model))
    converted: -
    nothing to convert: -
    left: Dense (not converted: call `keras_mp.convert`)

    Reference: Mixed Precision Training, section 3.3.
    """
    report = ConversionReport()
    for layer in every_layer(model):
        name = type(layer).__name__
        if is_converted(type(layer)):
            report.converted[name] += 1
        elif reason := _reason(layer):
            report.left[name, reason] += 1
        elif not isinstance(layer, keras.Model | keras.layers.InputLayer):
            report.nothing_to_convert[name] += 1
    for operation in _operations(model):
        if _is_product_or_sum(operation):
            report.left[type(operation).__name__, "an operation, not a layer"] += 1
    return report


def every_layer(layer: Any) -> list[Any]:
    """Returns a layer and all that are inside, each once, the outer ones first."""
    found: dict[int, Any] = {}
    waiting = [layer]
    while waiting:
        layer = waiting.pop()
        if id(layer) in found:
            continue
        found[id(layer)] = layer
        if not _runs_its_cell(layer):
            waiting.extend(reversed(keras_internals.direct_sublayers(layer)))
    return list(found.values())


_WITH_CELLS = tuple(base for base in COUNTERPARTS if issubclass(base, keras.layers.RNN))


def _runs_its_cell(layer: Any) -> bool:
    """Tells whether the cell holds weights alone: our loop computes what it would."""
    return isinstance(layer, _WITH_CELLS) and has_cell_of_keras(layer)


def _reason(layer: Any) -> str:
    """Returns why a layer's products or sums are those of Keras; empty without any."""
    if not is_half(layer.compute_dtype):
        return ""
    cls = type(layer)
    base = plain_base(cls)
    if base is not None:
        if counterpart(cls) is not None:
            return "not converted: call `keras_mp.convert`"
        names = overridden(cls) or ["__init_subclass__"]
        return f"a {base.__name__} with its own {_quoted(names)}"
    if cls.__module__.partition(".")[0] == "keras" and cls is not keras.layers.Lambda:
        return LEFT.get(cls.__name__, "")
    names, casts = products_and_sums(layer)
    if not names:
        return ""
    rest = ", and casts to float32 somewhere" if casts else ""
    return f"its own code calls {_quoted(names)}{rest}"


def _quoted(names: list[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def _operations(model: Any) -> Iterator[Any]:
    """Yields what is no layer in the functional models."""
    for layer in every_layer(model):
        for operation in getattr(layer, "operations", []):
            if not isinstance(operation, keras.Layer):
                yield operation


def _is_product_or_sum(operation: Any) -> bool:
    name = type(operation).__name__.lower()
    names = {known.replace("_", "") for known in PRODUCTS_AND_SUMS}
    outputs = keras.tree.flatten(operation.output)
    return name in names and any(is_half(x.dtype) for x in outputs)
