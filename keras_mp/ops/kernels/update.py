"""The ops of the update step: one call of a kernel for all variables.

They run on CPUs and on CUDA devices, outside and inside XLA, on a single replica.
custom_ops/include/keras_mp/update.h defines what they compute.
"""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

import keras
import tensorflow as tf

from keras_mp.ops.kernels import native

_DTYPES = (tf.float16, tf.bfloat16, tf.float32)


def devices_of(variables: Sequence[Any]) -> set[str]:
    """Returns the names of the devices that hold variables.

    Args:
        variables: list of `keras.Variable` or `tf.Variable`.
    """
    return {variable.device for variable in _natives(variables)}


def has_rule(rule: str, variables: Sequence[Any]) -> bool:
    """Tells whether the device of the variables has a rule.

    Args:
        rule: str, as for `update_variables`.
        variables: on one device, for which `dispatch.has_update_kernels` is true.
    """
    needs_norms = native.update_rules()[rule].needs_norms
    return not needs_norms or _device_type(variables) == "CPU"


def takes_powers(rule: str, variables: Sequence[Any]) -> bool:
    """Tells whether the device of the variables has a rule for sparse gradients.

    Args:
        rule: str, as for `update_variables`.
        variables: on one device, for which `dispatch.has_update_kernels` is true.
    """
    takes_tokens = native.update_rules()[rule].tokens != "nothing"
    return takes_tokens and _device_type(variables) == "CPU"


def takes_magnitudes(rule: str) -> bool:
    """Tells whether `powers` are magnitudes in a rule, and not squares."""
    return native.update_rules()[rule].tokens == "magnitudes"


def device_of(variables: Sequence[Any]) -> AbstractContextManager[None]:
    """Returns the `tf.device` scope of the variables, for ops without variable inputs.

    Args:
        variables: on one device, for which `dispatch.has_update_kernels` is true.
    """
    return tf.device(_natives(variables)[0].device)


def supports(gradient: Any) -> bool:
    """Tells whether the ops support the dtype of a gradient."""
    return values_of(gradient).dtype in _DTYPES


def values_of(gradient: Any) -> tf.Tensor:
    """Returns a gradient as a tensor: of a `tf.IndexedSlices`, its values."""
    if isinstance(gradient, tf.IndexedSlices):
        return gradient.values
    return tf.convert_to_tensor(gradient)


def check_gradients(
    gradients: Sequence[Any], scale: Any, compute_sum_of_squares: bool
) -> tuple[tf.Tensor, tf.Tensor]:
    """Finds the largest magnitude in each of `gradients / scale`.

    Args:
        gradients: list of tensors or `tf.IndexedSlices`.
        scale: scalar float32 tensor.
        compute_sum_of_squares: bool.

    Returns:
        float32 tensor, `[len(gradients)]`: NaN where an element is NaN, and 0 for no
        elements; scalar float32 tensor: the sum of the squares of all elements of
        `gradients / scale`, or 0 without `compute_sum_of_squares`.
    """
    return native.library().keras_mp_check_gradients(
        scale=scale,
        gradients=[values_of(gradient) for gradient in gradients],
        compute_sum_of_squares=compute_sum_of_squares,
    )


def unscale_gradients(
    gradients: Sequence[Any], scale: Any, compute_sum_of_squares: bool
) -> tuple[list[Any], tf.Tensor, tf.Tensor]:
    """Divides gradients by the scale in FP32, and checks them.

    Args:
        gradients: as for `check_gradients`.
        scale: as for `check_gradients`.
        compute_sum_of_squares: bool.

    Returns:
        List like `gradients`, float32; the two tensors of `check_gradients`.
    """
    unscaled, largest, sum_of_squares = native.library().keras_mp_unscale_gradients(
        scale=scale,
        gradients=[values_of(gradient) for gradient in gradients],
        count=len(gradients),
        compute_sum_of_squares=compute_sum_of_squares,
    )

    def like(gradient: Any, values: tf.Tensor) -> Any:
        if not isinstance(gradient, tf.IndexedSlices):
            return values
        return tf.IndexedSlices(values, gradient.indices, gradient.dense_shape)

    pairs = zip(gradients, unscaled, strict=True)
    return [like(g, v) for g, v in pairs], largest, sum_of_squares


def sync_masters_from_weights(
    masters: Sequence[Any], weights: Sequence[Any], rounding: str
) -> None:
    """Sets a master to its weight wherever the weight is not the master rounded.

    Args:
        masters: list of float32 variables.
        weights: list of their 16-bit weights.
        rounding: `"nearest"` or `"stochastic"`.
    """
    native.library().keras_mp_sync_masters_from_weights(
        masters=_handles(masters),
        weights=_handles(weights),
        is_stochastic=rounding == "stochastic",
    )


def cast_masters(
    masters: Sequence[Any], weights: Sequence[Any], uniforms: Sequence[tf.Tensor]
) -> None:
    """Assigns the rounded masters to their weights.

    Args:
        masters: list of float32 variables.
        weights: list of their 16-bit weights.
        uniforms: for stochastic rounding, float32 tensors of random numbers from
            [0, 1), of the shapes of the weights; empty for rounding to nearest even.
    """
    native.library().keras_mp_cast_masters(
        masters=_handles(masters), weights=_handles(weights), uniforms=list(uniforms)
    )


def update_variables(
    finite: Any,
    gradients: Sequence[Any],
    masters: Sequence[Any],
    slots: Sequence[Any],
    weights: Sequence[Any],
    uniforms: Sequence[tf.Tensor],
    apply_weight_decay: Sequence[bool],
    *,
    rule: str,
    hyperparameters: dict[str, Any],
    powers: Sequence[Any] = (),
) -> None:
    """Updates masters and slots by the gradients and rounds masters into weights.

    Args:
        finite: scalar bool tensor; where it is false, nothing is written.
        gradients: list of tensors.
        masters: list of variables, one for each gradient: the float32 masters, int16
            or int8 remainders, or 16-bit weights that have none of these.
        slots: list of float32 variables, or of what has the uint8 variables `codes` and
            `exponents`, with 8 or 4 `bits` a code, the same in all: the first slot of
            each master, then the second slot of each, as many as the rule has. What it
            has no use for may be any variable.
        weights: list of 16-bit variables, or None if the master is the weight.
        uniforms: as for `cast_masters`, for the weights that are not None.
        apply_weight_decay: list of bool, one for each master.
        rule: the name of an `UpdateRule` of update.h, such as `"adam"`.
        hyperparameters: scalars by name, the fields of `UpdateHyperparameters`; those
            that are missing have their defaults.
        powers: empty, or one for each gradient: None, or a float32 tensor, the squares
            of the unscaled gradients of a row's tokens, added up, or their magnitudes
            if `takes_magnitudes`. If there are any, `takes_powers` is true.
    """
    weight_of = [i for i, weight in enumerate(weights) if weight is not None]
    coded = [i for i, slot in enumerate(slots) if hasattr(slot, "codes")]
    bits = {slots[i].bits for i in coded} or {8}
    power_of = [i for i, power in enumerate(powers) if power is not None]
    values = {**native.update_hyperparameters(), **hyperparameters}.values()
    native.library().keras_mp_update_variables(
        finite=finite,
        hyperparameters=tf.stack([tf.cast(x, tf.float32) for x in values]),
        gradients=list(gradients),
        masters=_handles(masters),
        slots=_handles([getattr(slot, "codes", slot) for slot in slots]),
        weights=_handles([weights[i] for i in weight_of]),
        uniforms=list(uniforms),
        powers=[powers[i] for i in power_of],
        power_of=power_of,
        exponents=_handles([slots[i].exponents for i in coded]),
        exponent_of=coded,
        code_bits=bits.pop(),
        weight_of=weight_of,
        apply_weight_decay=list(apply_weight_decay),
        rule=rule,
    )


def _device_type(variables: Sequence[Any]) -> str:
    device = _natives(variables)[0].device
    return str(tf.DeviceSpec.from_string(device).device_type)


def _natives(variables: Sequence[Any]) -> list[tf.Variable]:
    return [v.value if isinstance(v, keras.Variable) else v for v in variables]


def _handles(variables: Sequence[Any]) -> list[tf.Tensor]:
    return [variable.handle for variable in _natives(variables)]
