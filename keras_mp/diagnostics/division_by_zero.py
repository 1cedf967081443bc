"""Layers that divide by the length of a vector of zeros, which no precision helps.

`x / max(norm(x), 1e-12)`, as in Keras's `UnitNormalization`, is 0 for a vector of zeros
in FP32, and multiplies its gradient by 1e12. In FP16 1e-12 is 0.
"""

from typing import Any

import keras
import numpy as np

from keras_mp.precision.observation import CallRecord

# What no product of a layer that is trained does to a gradient in one call.
_AMPLIFICATION = 2.0**16


def advice_on(layer: str) -> str:
    """Returns what to do about a layer that divides by zero.

    Args:
        layer: str, its path.
    """
    return (
        f"{layer!r} divides by zero: it is given vectors of zeros. In FP32 an epsilon "
        "such as 1e-12 is the divisor, and the gradient is multiplied by its inverse, "
        "so that no loss scale and no precision helps. Keep vectors of zeros out, for "
        "instance by a bias or a small constant added before. With "
        "keras_mp.convert(model) their gradient in a UnitNormalization is 0."
    )


def returns_nan_for_zeros(call: CallRecord, output: Any) -> bool:
    """Tells whether an output is NaN for vectors of zeros, and finite for all others.

    Args:
        call: `CallRecord` of the layer.
        output: one of its outputs.
    """
    values = _in_float32(output)
    return bool(np.any(np.isnan(values))) and any(
        _are_in_zeros(~np.isfinite(values), _in_float32(given)) for given in call.inputs
    )


def find_divisor(calls: list[CallRecord]) -> str | None:
    """Returns the path of a layer that multiplies the gradient of zeros without bound.

    Of a tensor, the gradient is 2**16 times larger in its vectors of zeros than all
    gradients of the outputs of a layer that is given it; or not finite only there.

    Args:
        calls: list of the `CallRecord`s of a run in FP32.
    """
    for call in reversed(calls):
        for output, gradient in zip(call.outputs, call.gradients, strict=True):
            users = [
                user
                for user in calls
                if any(given is output for given in user.inputs)
                and all(own is not output for own in user.outputs)
            ]
            # Of several that contain each other, the innermost ends first.
            for user in users[:1] if gradient is not None else []:
                if _is_amplified(_in_float32(output), _in_float32(gradient), user):
                    return user.path
    return None


def _is_amplified(output: Any, gradient: Any, user: CallRecord) -> bool:
    found = [_in_float32(each) for each in user.gradients if each is not None]
    largest = max(
        (float(np.max(np.abs(each), initial=0.0)) for each in found), default=0.0
    )
    if not 0.0 < largest < np.inf:
        return False
    with np.errstate(invalid="ignore"):
        is_large = ~(np.abs(gradient) < _AMPLIFICATION * largest)
    return _are_in_zeros(is_large, output)


def _are_in_zeros(chosen: Any, given: Any) -> bool:
    """Tells whether elements are chosen, all of them in vectors of zeros of `given`."""
    if given.ndim < 2 or chosen.shape[: given.ndim - 1] != given.shape[:-1]:
        return False
    is_zero = ~np.any(given, axis=-1)
    rows = np.any(chosen.reshape(*is_zero.shape, -1), axis=-1)
    return bool(np.any(rows)) and bool(np.all(is_zero[rows]))


def _in_float32(tensor: Any) -> Any:
    return keras.ops.convert_to_numpy(keras.ops.cast(tensor, "float32"))
