"""`conversion_report`: the layers that `convert` converted, and those it did not."""

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import keras

from keras_mp.dtypes import is_half
from keras_mp.layers.rnn.base_rnn import has_cell_of_keras
from keras_mp.precision.counterparts import (
    COUNTERPARTS,
    NOT_CONVERTED,
    counterpart,
    is_converted,
    keras_base,
    overridden,
    replaced_methods,
)
from keras_mp.precision.model_index import LayerEntry, ModelIndex
from keras_mp.precision.own_code import PRODUCTS_AND_SUMS, products_and_sums


@dataclass(frozen=True)
class ConversionReport:
    """The number of layers of a model, by class and state of conversion.

    Args:
        converted: number of layers of each class of `keras_mp.layers`.
        unaffected: number of layers of each class without 16-bit matrix
            products and sums, including layers that compute in FP32.
        not_converted: number of layers and operations that compute 16-bit matrix
            products or sums as Keras does, by `(class, reason)`.

    Example:

    >>> model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
    >>> print(keras_mp.conversion_report(keras_mp.convert(model)))
    converted: Dense
    unaffected: -
    not converted: -
    """

    converted: Counter[str] = field(default_factory=Counter)
    unaffected: Counter[str] = field(default_factory=Counter)
    not_converted: Counter[tuple[str, str]] = field(default_factory=Counter)

    def __str__(self) -> str:
        return "\n".join(
            [
                f"converted: {_format_counts(self.converted)}",
                f"unaffected: {_format_counts(self.unaffected)}",
                f"not converted: {self.reasons}",
            ]
        )

    @property
    def reasons(self) -> str:
        """What is not converted, each with the reason in brackets; `-` for nothing."""
        described = {
            f"{name} ({why})": n for (name, why), n in self.not_converted.items()
        }
        return _format_counts(Counter(described))


def _format_counts(counts: Counter[str]) -> str:
    return (
        ", ".join(f"{n} x {name}" if n > 1 else name for name, n in counts.items())
        or "-"
    )


def conversion_report(model: keras.Layer) -> ConversionReport:
    """Reports which layers of a model are converted, which are not, and why.

    A layer is not converted if its compute dtype is FP16 or bfloat16 and it is a Keras
    layer with a counterpart in keras_mp, a Keras layer without one that computes matrix
    products or sums, or a layer of your own with a `call` that refers to one of them.
    The code of such a layer is analysed, not run. If it mentions float32, it may cast
    before it sums, and the reason adds that.

    Args:
        model: `keras.Model`, or a layer with sublayers.

    Returns:
        `ConversionReport`.

    Example:

    >>> layer = keras.layers.Dense(2, dtype="mixed_float16")
    >>> model = keras.Sequential([keras.Input((3,)), layer])
    >>> print(keras_mp.conversion_report(model))
    converted: -
    unaffected: -
    not converted: Dense (not converted: call `keras_mp.convert`)

    Reference: Mixed Precision Training, section 3.3.
    """
    report = ConversionReport()
    for layer in layers_that_compute(model):
        name = type(layer).__name__
        if is_converted(type(layer)):
            report.converted[name] += 1
        elif reason := _why_not_converted(layer):
            report.not_converted[name, reason] += 1
        elif not isinstance(layer, keras.Model | keras.layers.InputLayer):
            report.unaffected[name] += 1
    for operation in ModelIndex(model).operations.values():
        if _is_product_or_sum(operation):
            report.not_converted[
                type(operation).__name__, "an operation, not a layer"
            ] += 1
    return report


def layers_that_compute(model: keras.Model) -> list[Any]:
    """Returns a model and all layers inside it, outer layers first.

    A cell that only holds the weights of its recurrent layer is left out.
    """
    entries = ModelIndex(model).values()
    return [e.layer for e in entries if not _replaces_its_cell(e.recurrent)]


_WITH_CELLS = tuple(base for base in COUNTERPARTS if issubclass(base, keras.layers.RNN))


def _replaces_its_cell(recurrent: LayerEntry | None) -> bool:
    """Tells whether a recurrent layer computes what its cell would, without calling it.

    Then the cell only holds the weights.
    """
    layer = recurrent and recurrent.layer
    return isinstance(layer, _WITH_CELLS) and has_cell_of_keras(layer)


def _why_not_converted(layer: keras.Layer) -> str:
    """Returns why a layer computes products or sums as Keras; empty if it has none."""
    if not is_half(layer.compute_dtype):
        return ""
    cls = type(layer)
    base = keras_base(cls)
    if base is not None:
        if names := replaced_methods(layer):
            return f"a {base.__name__} with a replaced {_quote(names)}"
        if counterpart(cls) is not None:
            return "not converted: call `keras_mp.convert`"
        names = overridden(cls) or ["__init_subclass__"]
        return f"a {base.__name__} with its own {_quote(names)}"
    if cls.__module__.partition(".")[0] == "keras" and cls is not keras.layers.Lambda:
        if "call" in vars(layer):
            return f"a {cls.__name__} with a replaced `call`"
        return NOT_CONVERTED.get(cls.__name__, "")
    names, casts = products_and_sums(layer)
    if not names:
        return ""
    rest = ", and casts to float32 somewhere" if casts else ""
    return f"its own code calls {_quote(names)}{rest}"


def _quote(names: list[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def _is_product_or_sum(operation: Any) -> bool:
    name = type(operation).__name__.lower()
    names = {known.replace("_", "") for known in PRODUCTS_AND_SUMS}
    outputs = keras.tree.flatten(operation.output)
    return name in names and any(is_half(x.dtype) for x in outputs)
