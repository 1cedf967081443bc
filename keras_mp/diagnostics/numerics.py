"""`Numerics`: the report of `inspect`, and the verdicts that follow from it."""

import json
import math
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from keras_mp.arguments import positive_number
from keras_mp.diagnostics.plot import plot_exponents
from keras_mp.diagnostics.statistics import TensorStatistics, total

KINDS = (
    "activation",
    "activation_gradient",
    "weight",
    "weight_gradient",
    "update",
)
GRADIENTS = ("activation_gradient", "weight_gradient")
_FP16_MAX = 65_504.0
# Beyond them a scale is of no use: FP32 has no more numbers to gain or to lose.
_MIN_EXPONENT, _MAX_EXPONENT = -14, 24
# A tenth of the length of an update or a gradient.
_TOLERANCE = 0.1


@dataclass(frozen=True)
class Entry:
    """What is known of one tensor.

    Attributes:
        path: str, of the layer or the variable.
        kind: str, one of `KINDS`.
        statistics: `TensorStatistics` of its values.
        relative_error: float or None: of FP16's gradient, or of the update of an FP16
            weight without a master, `|x - reference| / |reference|`; the reference is
            computed in FP32.
        cosine: float or None, of the angle between the two.
        too_small: int or None, updates that are zero in FP16 and not in FP32.
        absorbed: int or None, other updates that do not change the FP16 weight.
        rounding_noise: float or None, the standard deviation of the update of an FP16
            weight that is rounded stochastically, over the length of the update.
    """

    path: str
    kind: str
    statistics: TensorStatistics
    relative_error: float | None = None
    cosine: float | None = None
    too_small: int | None = None
    absorbed: int | None = None
    rounding_noise: float | None = None

    @property
    def lost(self) -> int:
        """How many FP16 loses: numbers, or of updates the weights left unchanged."""
        if self.kind != "update":
            return self.statistics.lost
        return (self.too_small or 0) + (self.absorbed or 0)

    @property
    def lost_share(self) -> float:
        """The share of `lost` in all elements."""
        elements = self.statistics.elements
        return self.lost / elements if elements else 0.0

    def to_dict(self) -> dict[str, Any]:
        """Returns all attributes as what JSON can hold; `from_dict` reads it.

        An infinite error is the text `"inf"`, which JSON has no number for.
        """
        return {
            **vars(self),
            "statistics": self.statistics.to_dict(),
            "relative_error": _to_json(self.relative_error),
            "rounding_noise": _to_json(self.rounding_noise),
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> "Entry":
        """Returns the entry that `to_dict` described."""
        statistics = TensorStatistics.from_dict(data["statistics"])
        numbers = {
            name: _from_json(data.get(name))
            for name in ("relative_error", "rounding_noise")
        }
        return cls(**{**data, "statistics": statistics, **numbers})


@dataclass(frozen=True)
class Verdict:
    """An answer, true or false, with the number that it rests on.

    Attributes:
        needed: bool.
        value: float, what was measured.
        threshold: float, beyond which the answer is yes.
        reason: str, a sentence that says both.
    """

    needed: bool
    value: float
    threshold: float
    reason: str

    def __bool__(self) -> bool:
        return self.needed

    def __str__(self) -> str:
        return f"{'yes' if self.needed else 'no'}: {self.reason}"


@dataclass(frozen=True)
class Numerics:
    """What FP16 does to the values of a model in one step of training.

    Attributes:
        entries: tuple of `Entry`, in the order of computation.
        loss: float, of the batch.
        loss_scale: float, at which FP16's gradients were computed.
        gradient_errors: dict from a loss scale to the relative error of all FP16 weight
            gradients, taken as one vector, at that scale.
        notes: tuple of str, what was not seen, and why.
        fp16_loss: float or None, the loss of the batch in FP16.
        loss_error: float or None, its relative error; inf if it is not finite.
        output_error: float or None, the relative error of the model's outputs in FP16,
            taken as one vector; inf if they are not finite.

    Example:

    >>> model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    >>> model.compile(optimizer="sgd", loss=lambda y, p: 2.0**-30 * p[:, 0])
    >>> report = keras_mp.inspect(model, np.ones((1, 4)), np.ones((1, 1)))
    >>> report.recovered(1.0), report.recovered(report.suggested_scale())
    (0.0, 1.0)
    >>> bool(report.needs_scaling())
    True

    Reference: Mixed Precision Training, sections 3.1 and 3.2, figures 2b and 3.
    """

    entries: tuple[Entry, ...]
    loss: float
    loss_scale: float
    gradient_errors: Mapping[float, float]
    notes: tuple[str, ...] = ()
    fp16_loss: float | None = None
    loss_error: float | None = None
    output_error: float | None = None

    def of_kind(self, *kinds: str) -> list[Entry]:
        """Returns the entries of these kinds, in the order of computation."""
        return [entry for entry in self.entries if entry.kind in kinds]

    def total(self, *kinds: str) -> TensorStatistics | None:
        """Returns the statistics of all tensors of these kinds together."""
        return total(entry.statistics for entry in self.of_kind(*kinds))

    def suggested_scale(self, margin: float = 2.0) -> float:
        """Returns the loss scale that the rule of the paper gives for this batch.

        The largest power of two that, times `margin` and the largest magnitude of an
        activation or weight gradient, is below 65,504; from 2**-14 to 2**24.

        Args:
            margin: positive float, by how much the gradients of other batches may be
                larger. Defaults to 2.

        Reference: Mixed Precision Training, section 3.2.
        """
        margin = positive_number("margin", margin, "Try 2.")
        gradients = self.total(*GRADIENTS)
        largest = gradients.largest if gradients else None
        return 1.0 if largest is None else scale_below_overflow(largest * margin)

    def recovered(self, scale: float) -> float:
        """Returns the share of the lost gradients that a loss scale brings back.

        Lost are those that FP16 rounds to zero, and that are not zero in FP32.

        Args:
            scale: float, a power of two.

        Returns:
            float from 0 to 1; 1 where nothing is lost without a scale.

        Raises:
            ValueError: `scale` is not a power of two.
        """
        exponent = _exponent_of(scale)
        gradients = self.total(*GRADIENTS)
        if gradients is None or not gradients.lost:
            return 1.0
        return 1.0 - gradients.lost_at(exponent) / gradients.lost

    def overflowed(self, scale: float) -> float:
        """Returns the share of the gradients that overflow FP16 at a loss scale.

        Args:
            scale: float, a power of two.

        Raises:
            ValueError: `scale` is not a power of two.
        """
        exponent = _exponent_of(scale)
        gradients = self.total(*GRADIENTS)
        if gradients is None or not gradients.elements:
            return 0.0
        return gradients.overflows_at(exponent) / gradients.elements

    def needs_fp32(self) -> Verdict:
        """Tells whether the forward pass needs more range than FP16 has.

        Yes, if the loss or the outputs of the model differ in FP16 from those in
        FP32 by more than a tenth, or are not finite. No loss scale helps then.

        Raises:
            ValueError: the report is of an earlier version, which did not compare them.
        """
        if self.loss_error is None or self.output_error is None:
            raise ValueError(
                "The verdict rests on the loss and the outputs in FP16. Received: a "
                "report of an earlier version. Call keras_mp.inspect again."
            )
        error = max(self.loss_error, self.output_error)
        loss = f"in FP16 the loss is {self.fp16_loss:.6g}"
        if math.isfinite(self.loss_error):
            loss += f", off by {self.loss_error:.2%}"
        outputs = "not finite"
        if math.isfinite(self.output_error):
            outputs = f"off by {self.output_error:.2%}"
        return Verdict(
            error > _TOLERANCE,
            error,
            _TOLERANCE,
            f"{loss}, and the outputs are {outputs}",
        )

    def needs_scaling(self) -> Verdict:
        """Tells whether FP16 loses gradients that a loss scale would keep.

        Yes, if without a scale the weight gradients of FP16 differ from FP32's by more
        than a tenth of their length, and by less than half as much at
        `suggested_scale()`.
        """
        without = self.gradient_errors[1.0]
        suggested = self.suggested_scale()
        with_scale = self.gradient_errors.get(suggested, without)
        return Verdict(
            without > _TOLERANCE and with_scale < without / 2,
            without,
            _TOLERANCE,
            f"without a scale FP16's weight gradients differ from FP32's by "
            f"{without:.2%} of their length, at {_power(suggested)} by "
            f"{with_scale:.2%}",
        )

    def needs_masters(self) -> Verdict:
        """Tells whether weights stored only in FP16 would lose their updates.

        Yes, if the relative error of the change of the FP16 weights, averaged over
        all weights (each variable counts by its number of elements, and at most as
        1), is more than a tenth.

        Then the reason also says when `wrap(opt, masters=None, rounding="stochastic")`
        is enough: after how many equal steps the noise of stochastic rounding is a
        tenth of the sum of the updates (its square grows as the steps do).
        """
        updates = [e for e in self.of_kind("update") if e.relative_error is not None]
        elements = sum(e.statistics.elements for e in updates)
        errors = sum(
            min(e.relative_error or 0.0, 1.0) * e.statistics.elements for e in updates
        )
        error = errors / elements if elements else 0.0
        unchanged = sum((e.too_small or 0) + (e.absorbed or 0) for e in updates)
        share = unchanged / elements if elements else 0.0
        return Verdict(
            error > _TOLERANCE,
            error,
            _TOLERANCE,
            f"the updates of FP16 weights without masters are off by {error:.2%}, and "
            f"{share:.2%} of the weights would not change"
            + (self._on_stochastic_rounding() if error > _TOLERANCE else ""),
        )

    def _on_stochastic_rounding(self) -> str:
        updates = [e for e in self.of_kind("update") if e.rounding_noise is not None]
        elements = sum(e.statistics.elements for e in updates)
        squares = sum(
            (e.rounding_noise or 0.0) ** 2 * e.statistics.elements for e in updates
        )
        steps = squares / max(elements, 1) / _TOLERANCE**2
        if not updates or not math.isfinite(steps):
            return ""
        return (
            f"; rounded stochastically, their noise is a tenth of the sum after "
            f"{math.ceil(steps):,} equal steps"
        )

    def to_dict(self) -> dict[str, Any]:
        """Returns the report as what JSON can hold; `from_dict` reads it."""
        entries = [entry.to_dict() for entry in self.entries]
        errors = {str(s): _to_json(error) for s, error in self.gradient_errors.items()}
        return {
            **vars(self),
            "entries": entries,
            "gradient_errors": errors,
            "notes": list(self.notes),
            "fp16_loss": _to_json(self.fp16_loss),
            "loss_error": _to_json(self.loss_error),
            "output_error": _to_json(self.output_error),
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> "Numerics":
        """Returns the report that `to_dict` described."""
        entries = tuple(Entry.from_dict(entry) for entry in data["entries"])
        errors = {float(s): float(e) for s, e in data["gradient_errors"].items()}
        return cls(
            **{
                **data,
                "entries": entries,
                "gradient_errors": errors,
                "notes": tuple(data["notes"]),
                # Reports of an earlier version have none of these.
                "fp16_loss": _from_json(data.get("fp16_loss")),
                "loss_error": _from_json(data.get("loss_error")),
                "output_error": _from_json(data.get("output_error")),
            }
        )

    def to_json(self) -> str:
        """Returns `to_dict()` as a text."""
        return json.dumps(self.to_dict())

    def plot(self, path: str | os.PathLike[str], scale: float | None = None) -> None:
        """Draws the exponents of the gradients and updates, and what FP16 holds.

        Figures 3 and 2b of the paper: a bar for each power of two, red where FP16 has
        only zero or infinity, and one for zeros; FP16's range is shaded, and a line
        marks what a loss scale brings into it.

        Args:
            path: of the file to write; its suffix chooses the format.
            scale: positive float, the loss scale to mark. Defaults to
                `suggested_scale()`.

        Raises:
            ImportError: matplotlib is not installed.
        """
        scale = self.suggested_scale() if scale is None else scale
        plot_exponents(
            path,
            {
                "Activation gradients": self.total("activation_gradient"),
                "Weight gradients": self.total("weight_gradient"),
                "Updates": self.total("update"),
            },
            positive_number("scale", scale, "Try 2.0**15."),
        )

    def _headline(self) -> list[str]:
        """Returns what FP16 makes of the loss and the outputs, in one line or two."""
        if self.loss_error is None:
            return [f"loss {self.loss:.6g}"]
        verdict = self.needs_fp32()
        lines = [f"loss {self.loss:.6g}; {verdict.reason}"]
        return [*lines, _OVERFLOWS] if verdict else lines

    def __str__(self) -> str:
        scale = self.suggested_scale()
        lines = [
            *self._headline(),
            f"FP16 gradients at the loss scale {_power(self.loss_scale)}",
            "",
            _ROW.format(*_TITLES),
        ]
        for kind in KINDS:
            entries = sorted(self.of_kind(kind), key=_damage, reverse=True)
            lines += [_row(entry) for entry in entries[:_ROWS]]
            if len(entries) > _ROWS:
                lines.append(f"{kind:<19} and {len(entries) - _ROWS} more")
        lines += [
            "",
            f"loss scaling needed? {self.needs_scaling()}",
            f"suggested scale      {_power(scale)}, which recovers "
            f"{self.recovered(scale):.2%} of the lost gradients",
            f"masters needed?      {self.needs_masters()}",
            *(f"note: {note}" for note in self.notes),
        ]
        return "\n".join(_folded(lines))


_OVERFLOWS = (
    "This model exceeds the range of FP16: see keras_mp.plan_precision(model, x, y)"
)
_ROW = "{:<19} {:<27} {:>9} {:>6} {:>6} {:>6} {:>6} {:>7} {:>6}"
_TITLES = (
    *("kind", "layer or variable", "elements"),
    *("zero%", "lost%", "subn%", "over%", "max", "err%"),
)
_WIDTH = 100
_ROWS = 12  # of a kind, the worst ones


def _row(entry: Entry) -> str:
    found = entry.statistics
    parts = (found.zeros, entry.lost, found.subnormals, found.overflows)
    shares = [
        _percent(part / found.elements if found.elements else 0) for part in parts
    ]
    return _ROW.format(
        entry.kind,
        _shortened(entry.path, 27),
        found.elements,
        *shares,
        f"{found.largest:.1e}" if found.largest is not None else "-",
        _percent(entry.relative_error),
    )


def _power(scale: float) -> str:
    """Returns a loss scale as a power of two, if it is one."""
    mantissa, exponent = math.frexp(scale)
    return f"2^{exponent - 1}" if mantissa == 0.5 else f"{scale:g}"


def _percent(share: float | None) -> str:
    """Returns a share in percent, in six characters."""
    if share is None:
        return "-"
    percent = 100 * share
    if 0 < percent < 0.01:
        return "<0.01"
    return f"{percent:.2f}" if percent < 1000 else f"{percent:.0e}"


def _shortened(text: str, size: int) -> str:
    return text if len(text) <= size else "..." + text[3 - size :]


def _folded(lines: Iterable[str]) -> Iterable[str]:
    import textwrap

    for line in lines:
        yield from textwrap.wrap(line, _WIDTH, subsequent_indent="    ") or [""]


def _to_json(error: float | None) -> Any:
    return error if error is None or math.isfinite(error) else str(error)


def _from_json(error: Any) -> float | None:
    return None if error is None else float(error)


def _damage(entry: Entry) -> tuple[float, float]:
    elements = max(entry.statistics.elements, 1)
    lost = entry.statistics.lost + entry.statistics.overflows
    return entry.relative_error or 0.0, lost / elements


def scale_below_overflow(magnitude: float) -> float:
    """Returns the largest power of two that, times it, is below 65,504."""
    exponent = math.ceil(math.log2(_FP16_MAX / magnitude)) - 1
    return 2.0 ** min(max(exponent, _MIN_EXPONENT), _MAX_EXPONENT)


def _exponent_of(scale: float) -> int:
    scale = positive_number("scale", scale, "Try 2.0**15.")
    mantissa, exponent = math.frexp(scale)
    if mantissa != 0.5:
        smaller = 2.0 ** (exponent - 1)
        raise ValueError(
            "`scale` must be a power of two, for which the losses are known exactly. "
            f"Received: scale={scale!r}. The next smaller one is {smaller}."
        )
    return exponent - 1
