"""`PrecisionPlan`: the precision that each layer of a model computes in."""

import dataclasses
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import keras

from keras_mp import keras_internals
from keras_mp.optimizer import FP32MasterOptimizer
from keras_mp.precision.batch import as_batch, check_model, master_values
from keras_mp.precision.convert import convert_layers, converted_in_modes
from keras_mp.precision.measurement import (
    Verification,
    gradient_statistics,
    largest_loss_scale,
)
from keras_mp.precision.model_index import ModelIndex
from keras_mp.precision.modes import MODES
from keras_mp.precision.run import run_batch
from keras_mp.precision.scope import apply_modes, members, remove_modes
from keras_mp.precision.weight_storage import (
    check_can_store,
    half_weights,
    store_in_fp32,
)

_FORMAT = 2


@dataclass(frozen=True)
class LayerPlan:
    """The precision of one layer, and its price.

    Attributes:
        path: str, of the layer in the model.
        precision: str, `"float16_matmul"`, `"scaled_float16_matmul"` or `"float32"`.
        reason: str, the measured number that asked for it.
        extra_bytes: int, by how much its results grow from those in FP16, for a batch.
        fp32_weights: bool, whether `PrecisionPlan.apply` stores its weights in FP32,
            since they are too large for FP16. Defaults to False.
    """

    path: str
    precision: str
    reason: str
    extra_bytes: int
    fp32_weights: bool = False


@dataclass(frozen=True)
class PrecisionPlan:
    """Which layers of a model need more than FP16, and what each computes in.

    A layer computes in one of four precisions. The plan lists the layers that do not
    compute in FP16:

    - `"float16"`: as its dtype policy says.
    - `"float16_matmul"`: the inputs of its matrix products are rounded to FP16, and
      everything else is FP32, the results of the products too.
    - `"scaled_float16_matmul"`: as that, and what is multiplied is divided by a power
      of two first, so that it neither overflows nor vanishes.
    - `"float32"`.

    Attributes:
        layers: tuple of `LayerPlan`, in the order of computation, with the attributes
            `path`, `precision`, `reason`, `extra_bytes`, by how much its results grow,
            and `fp32_weights`, whether its weights are too large to store in FP16.
        float16_share: float, the share of multiply-adds with FP16 inputs.
        gradient_error: float, the relative error of all weight gradients with the plan,
            taken as one vector, when the plan was measured.
        margin: float, by how much other batches may have larger values.
        notes: tuple of str, what the plan could not mend, and why.
        loss_scale: float, the largest power of two at which no gradient overflowed in
            FP16; None in a plan that was saved without it.
        fp32_noise: float, the relative error of the weight gradients that FP32 itself
            has, if each weight is rounded again; None if it was not needed.

    Example:

    >>> keras.config.set_dtype_policy("mixed_float16")
    >>> model = keras.Sequential([
    ...     keras.Input((4,)),
    ...     keras.layers.Dense(2, kernel_initializer="ones", name="fine"),
    ...     keras.layers.Rescaling(1e5, name="too_large")])
    >>> model.compile(keras_mp.wrap("sgd"), loss="mse")
    >>> plan = keras_mp.plan_precision(model, np.ones((8, 4)), np.ones((8, 2)))
    >>> plan.precisions["too_large"]
    'float32'
    >>> float(np.max(plan.apply(model)(np.ones((8, 4)))))
    400000.0

    Reference: Mixed Precision Training, section 3.3.
    """

    layers: tuple[LayerPlan, ...]
    float16_share: float
    gradient_error: float
    margin: float
    notes: tuple[str, ...] = ()
    loss_scale: float | None = None
    fp32_noise: float | None = None

    @property
    def precisions(self) -> dict[str, str]:
        """The precision of each layer that is listed, by its path."""
        return {layer.path: layer.precision for layer in self.layers}

    def apply(self, model: keras.Model) -> keras.Model:
        """Has the layers of a model compute as planned, in place.

        The model is converted as by `keras_mp.convert`; then the listed layers get
        other dtype policies, and a layer inside another one returns values in the
        precision of that. Weights that are too large for FP16 are stored in FP32, with
        the values of their masters, and their layers get the policy `mixed_float16`.
        All other weights, names and the state of the optimizer stay, except for a
        dynamic loss scale above `loss_scale`: it is lowered to that. If no layer has a
        16-bit policy, the other layers get `mixed_float16`. A plan that was
        applied before is forgotten; `keras_mp.to_keras` also does that.

        Policies are saved with a model, for the layers in its config. A layer that
        creates sublayers creates them without: apply the plan again after `load_model`.

        Args:
            model: `keras.Model`, of the architecture that was measured.

        Returns:
            The same object.

        Raises:
            ValueError: a listed layer is not in the model; or a weight must be stored
                in FP32, but an optimizer that is not wrapped, or one on several
                replicas, already has state for it.
        """
        modes = self._precisions_in(model)
        index = ModelIndex(model)
        stored = _stored_in_fp32(index, self._fp32_weights)
        halves = [half for layer in stored for half in half_weights(layer)]
        check_can_store(index.layers, halves)
        remove_modes(index)
        # What it leaves in FP16 was measured with the plan, and need not be told of.
        convert_layers(model)
        store_in_fp32(index.layers, halves)
        for layer in stored:
            keras_internals.set_policy(layer, keras.DTypePolicy("mixed_float16"))
        apply_modes(index, modes)
        optimizer = getattr(model, "optimizer", None)
        if isinstance(optimizer, FP32MasterOptimizer) and self.loss_scale is not None:
            scale, lowest = optimizer.loss_scale, optimizer.loss_scale_rule.min_scale
            scale.assign(max(lowest, min(float(scale), self.loss_scale)))
        return model

    def verify(
        self, model: keras.Model, x: Any, y: Any = None, sample_weight: Any = None
    ) -> Verification:
        """Compares loss and gradients in FP16, with and without the plan, to FP32.

        Nothing of the model is changed.

        Args:
            model: `keras.Model`, built and compiled; the plan need not be applied.
            x: array or tensor, or a structure of several: one batch of inputs.
            y: as `x`: its targets.
            sample_weight: as `x`, or None (default).

        Returns:
            `Verification`, with the attributes `loss` in FP32, `before` and `after`,
            which have `loss`, `gradient_error` and `cosine`. Printed, it is three
            lines.
        """
        check_model(model)
        batch, masters = as_batch(x, y, sample_weight), master_values(model)
        with converted_in_modes(model, {}):
            fp32 = run_batch(model, batch, dtype="float32", masters=masters)
            scale = self.loss_scale or largest_loss_scale(gradient_statistics([fp32]))
            fp16 = run_batch(model, batch, scale, masters=masters)
        modes = self._precisions_in(model)
        with converted_in_modes(model, modes, self._fp32_weights):
            planned = run_batch(model, batch, scale, masters=masters)
        return Verification.of(fp32, fp16, planned)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the plan to a JSON file, which `load` reads on any machine.

        Args:
            path: str or path-like, of the file.
        """
        Path(path).write_text(json.dumps(self.to_dict(), indent=1) + "\n")

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> "PrecisionPlan":
        """Returns the plan that `save` has written.

        Args:
            path: str or path-like, of the file.

        Raises:
            ValueError: the file is no plan.
        """
        try:
            return cls.from_dict(json.loads(Path(path).read_text(encoding="utf-8")))
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise ValueError(
                "A plan is a file that PrecisionPlan.save has written. Received: "
                f"{str(path)!r}, with {type(error).__name__}: {error}. Measure again: "
                "keras_mp.plan_precision(model, x, y).save(path)."
            ) from error

    def to_dict(self) -> dict[str, Any]:
        """Returns all attributes as what JSON can hold; `from_dict` reads it."""
        return {"format": _FORMAT, **dataclasses.asdict(self)}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> "PrecisionPlan":
        """Returns the plan that `to_dict` described."""
        if data["format"] == 1:
            data = _in_second_format(data)
        if data["format"] != _FORMAT:
            raise ValueError(f"a plan of format {data['format']!r}, not {_FORMAT}")
        layers = tuple(LayerPlan(**layer) for layer in data["layers"])
        if unknown := {layer.precision for layer in layers} - set(MODES):
            raise ValueError(f"unknown precisions {sorted(unknown)}")
        return cls(
            layers,
            float(data["float16_share"]),
            float(data["gradient_error"]),
            float(data["margin"]),
            tuple(data["notes"]),
            data.get("loss_scale"),
            data.get("fp32_noise"),
        )

    def __str__(self) -> str:
        share = f"{self.float16_share:.1%} of the multiply-adds have FP16 inputs"
        error = f"gradient error {self.gradient_error:.2%}"
        if self.fp32_noise is not None:
            error += f", of FP32 itself {self.fp32_noise:.2%}"
        if self.loss_scale is not None:
            error += f"; loss scale up to {self.loss_scale:g}"
        if not self.layers:
            return f"FP16 throughout; {share}; {error}"
        width = max(len(layer.path) for layer in self.layers)
        row = f"{{:<{width}}}  {{:<23}}  {{:>9}}  {{}}"
        return "\n".join(
            [
                row.format("layer", "computes in", "price", "because of"),
                *(
                    row.format(
                        each.path,
                        each.precision,
                        _size(each.extra_bytes),
                        each.reason + "; weights stored in FP32" * each.fp32_weights,
                    )
                    for each in self.layers
                ),
                f"all other layers compute in FP16; {share}; {error}",
                *(f"note: {note}" for note in self.notes),
            ]
        )

    @property
    def _fp32_weights(self) -> list[str]:
        return [layer.path for layer in self.layers if layer.fp32_weights]

    def _precisions_in(self, model: keras.Model) -> dict[str, str]:
        """Returns `precisions`, after checking that all are in the model."""
        index = ModelIndex(model)
        missing = [layer.path for layer in self.layers if layer.path not in index]
        if missing:
            raise ValueError(
                "A plan fits models of the architecture that it was measured on. "
                f"Received: {model.name!r}, without the layers {missing[:5]}. Measure "
                "this one, keras_mp.plan_precision(model, x, y); or, if it was loaded, "
                "have the `get_config` of your own layers return their `name`."
            )
        return self.precisions


def _stored_in_fp32(index: ModelIndex, paths: list[str]) -> list[keras.Layer]:
    """Returns the layers with 16-bit weights at or inside of some paths."""
    layers = [each.layer for path in paths for each in members(index[path])]
    return [layer for layer in layers if half_weights(layer)]


def _in_second_format(data: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a plan of the first format, which had other names, in the second."""
    layers = [
        {
            "path": layer["path"],
            "precision": layer["way"].replace("float16_products", "float16_matmul"),
            "reason": layer["reason"],
            "extra_bytes": layer["bytes"],
        }
        for layer in data["layers"]
    ]
    return {**data, "format": 2, "layers": layers}


def _size(number: float) -> str:
    """Returns a number of bytes in nine characters."""
    for unit in ("B", "kB", "MB"):
        if number < 1000:
            return f"+{number:.3g} {unit}"
        number /= 1000
    return f"+{number:.3g} GB"
