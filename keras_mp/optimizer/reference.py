"""The rules of the update kernel in plain operations, in the kernel's order.

custom_ops/include/keras_mp/update.h has them in mathematical notation. They serve where
state is stored in a form that only the kernel and this module know. All numbers of one
variable have one dtype: float32, or float64, for which there is no kernel.
"""

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

from keras import ops

from keras_mp.optimizer.backend import backend
from keras_mp.typing import Gradient, Tensor

Slots = Sequence[Tensor]
Numbers = dict[str, Tensor]
# The new master, and the new slots.
Updated = tuple[Tensor, list[Tensor]]


class GradientSums:
    """The gradient of one variable, which may be sparse.

    Several tokens of a batch may share a row of a sparse gradient. As Keras does on
    TensorFlow, a rule takes the square of each of them, and not of their sum.

    Args:
        by_token: tensor or `tf.IndexedSlices`.
    """

    def __init__(self, by_token: Gradient) -> None:
        self._by_token = by_token

    @cached_property
    def total(self) -> Tensor:
        return backend.as_dense(self._by_token)

    @cached_property
    def squares(self) -> Tensor:
        return backend.as_dense(ops.square(self._by_token))

    @cached_property
    def magnitudes(self) -> Tensor:
        return backend.as_dense(ops.absolute(self._by_token))

    def times(self, factor: Tensor) -> "GradientSums":
        return GradientSums(ops.multiply(self._by_token, factor))

    def over(self, divisor: Tensor) -> "GradientSums":
        return GradientSums(ops.divide(self._by_token, divisor))


def squares_gradients(rule: str) -> bool:
    """Tells whether a rule uses more of a gradient than the sum of its tokens.

    Args:
        rule: str, the name of a `Rule`.
    """
    return rule not in {"sgd", "momentum", "nesterov", "lion"}


def apply_formula(
    rule: str, h: Numbers, decays: bool, gradient: Gradient, w: Tensor, slots: Slots
) -> Updated:
    """Returns the new master and slots of one variable.

    Args:
        rule: str, the name of a `Rule`.
        h: dict of scalars by name, as for `update_variables`, all of them.
        decays: bool, whether weight decay applies.
        gradient: tensor or `tf.IndexedSlices`, unscaled.
        w: tensor, the master.
        slots: list of tensors.
    """
    # Python's branches: whether an option is used is known when the step is traced.
    if "clip_value" in h:
        gradient = ops.clip(gradient, -h["clip_value"], h["clip_value"])
    if "clip_factor" in h:
        gradient = ops.multiply(gradient, h["clip_factor"])
    if decays:
        w = decayed(h, w)
    return _RULES[rule](h, GradientSums(gradient), w, slots)


def decayed(h: Numbers, w: Tensor) -> Any:
    """Returns a master to which weight decay was applied.

    Args:
        h: as for `apply_formula`.
        w: tensor.
    """
    return w - w * h["weight_decay"] * h["learning_rate"]


def _sgd(h: Numbers, g: GradientSums, w: Tensor, slots: Slots) -> Updated:
    return w - g.total * h["learning_rate"], []


def _momentum(h: Numbers, g: GradientSums, w: Tensor, slots: Slots) -> Updated:
    m = slots[0] * h["momentum"] - g.total * h["learning_rate"]
    return w + m, [m]


def _nesterov(h: Numbers, g: GradientSums, w: Tensor, slots: Slots) -> Updated:
    m = slots[0] * h["momentum"] - g.total * h["learning_rate"]
    return w + (m * h["momentum"] - g.total * h["learning_rate"]), [m]


def _moments(
    h: Numbers, g: GradientSums, m: Tensor, v: Tensor
) -> tuple[Tensor, Tensor]:
    m = m + (g.total - m) * h["one_minus_beta_1"]
    return m, v + (g.squares - v) * h["one_minus_beta_2"]


def _adam(h: Numbers, g: GradientSums, w: Tensor, slots: Slots) -> Updated:
    m, v = _moments(h, g, *slots)
    return w - m * h["alpha"] / (ops.sqrt(v) + h["epsilon"]), [m, v]


def _amsgrad(h: Numbers, g: GradientSums, w: Tensor, slots: Slots) -> Updated:
    m, v = _moments(h, g, *slots[:2])
    most = ops.maximum(slots[2], v)
    return w - m * h["alpha"] / (ops.sqrt(most) + h["epsilon"]), [m, v, most]


def _nadam(h: Numbers, g: GradientSums, w: Tensor, slots: Slots) -> Updated:
    m, v = _moments(h, g, *slots)
    n = m * h["m_factor"] / h["m_divisor"] + g.total * h["g_factor"] / h["g_divisor"]
    root = ops.sqrt(v / h["v_divisor"])
    return w - n * h["learning_rate"] / (root + h["epsilon"]), [m, v]


def _lamb(h: Numbers, g: GradientSums, w: Tensor, slots: Slots) -> Updated:
    m, v = _moments(h, g, *slots)
    root = ops.sqrt(v / h["v_divisor"])
    direction = m / h["m_divisor"] / (root + h["epsilon"])
    of_w, of_direction = (ops.sqrt(ops.sum(x * x)) for x in (w, direction))
    has_ratio = ops.logical_and(of_w > 0, of_direction > 0)
    ratio = ops.where(has_ratio, of_w / of_direction, 1.0)
    return w - direction * (ratio * h["learning_rate"]), [m, v]


def _adafactor(h: Numbers, g: GradientSums, w: Tensor, slots: Slots) -> Updated:
    h_of_g = g.squares + h["epsilon"]
    if len(w.shape) < 2:
        new_slots = [_moving_mean(h, h_of_g, slots[0]), *slots[1:]]
    else:
        r = _moving_mean(h, ops.mean(h_of_g, axis=-1), slots[1])
        c = _moving_mean(h, ops.mean(h_of_g, axis=-2), slots[2])
        factors = r / ops.mean(r, axis=-1, keepdims=True)
        new_slots = [factors[..., None] * c[..., None, :], r, c]
    d = g.over(ops.sqrt(new_slots[0]))
    of_w, of_d = (ops.sqrt(ops.mean(x)) for x in (w * w, d.squares))
    rate = ops.maximum(h["epsilon_2"], of_w) * h["alpha"]
    return w - rate * (d.total / ops.maximum(1.0, of_d / h["threshold"])), new_slots


def _adamax(h: Numbers, g: GradientSums, w: Tensor, slots: Slots) -> Updated:
    m = slots[0] + (g.total - slots[0]) * h["one_minus_beta_1"]
    most = ops.maximum(slots[1] * h["beta_2"], g.magnitudes)
    divisor = (most + h["epsilon"]) * h["m_divisor"]
    return w - m * h["learning_rate"] / divisor, [m, most]


def _lion(h: Numbers, g: GradientSums, w: Tensor, slots: Slots) -> Updated:
    direction = ops.sign(slots[0] * h["beta_1"] + g.total * h["one_minus_beta_1"])
    m = slots[0] * h["beta_2"] + g.total * h["one_minus_beta_2"]
    return w - direction * h["learning_rate"], [m]


def _adagrad(h: Numbers, g: GradientSums, w: Tensor, slots: Slots) -> Updated:
    v = slots[0] + g.squares
    return w - g.total * h["learning_rate"] / ops.sqrt(v + h["epsilon"]), [v]


def _moving_mean(h: Numbers, x: Tensor, mean: Any) -> Any:
    return mean * h["beta_2"] + x * h["one_minus_beta_2"]


def _adadelta(h: Numbers, g: GradientSums, w: Tensor, slots: Slots) -> Updated:
    v = _moving_mean(h, g.squares, slots[0])
    root_of_steps = ops.sqrt(slots[1] + h["epsilon"])
    d = g.times(root_of_steps).over(ops.sqrt(v + h["epsilon"]))
    steps = _moving_mean(h, d.squares, slots[1])
    return w - d.total * h["learning_rate"], [v, steps]


def _ftrl(h: Numbers, g: GradientSums, w: Tensor, slots: Slots) -> Updated:
    n, z = slots
    total = n + g.squares
    root = ops.sqrt(total)
    change = (root - ops.sqrt(n)) / h["learning_rate"] * w
    z = z + (g.total + w * h["l2_shrinkage"] - change)
    clipped = ops.clip(z, -h["l1"], h["l1"])
    return (clipped - z) / (root / h["learning_rate"] + h["l2"]), [total, z]


def _rmsprop(
    h: Numbers, g: GradientSums, w: Tensor, slots: Slots, centered: bool, momentum: bool
) -> Updated:
    v = _moving_mean(h, g.squares, slots[0])
    variance, new_slots = v, [v]
    if centered:
        mean = _moving_mean(h, g.total, slots[1])
        variance = v - mean * mean
        new_slots.append(mean)
    change = g.total * h["learning_rate"] / ops.sqrt(variance + h["epsilon"])
    if momentum:
        change = slots[-1] * h["momentum"] + change
        new_slots.append(change)
    return w - change, new_slots


def _kind_of_rmsprop(centered: bool, momentum: bool) -> Callable[..., Any]:
    def rule(h: Numbers, g: GradientSums, w: Tensor, slots: Slots) -> Updated:
        return _rmsprop(h, g, w, slots, centered, momentum)

    return rule


_RULES: dict[str, Callable[..., tuple[Any, list[Any]]]] = {
    "sgd": _sgd,
    "momentum": _momentum,
    "nesterov": _nesterov,
    "adam": _adam,
    "amsgrad": _amsgrad,
    "nadam": _nadam,
    "adamax": _adamax,
    "lion": _lion,
    "adagrad": _adagrad,
    "adadelta": _adadelta,
    "ftrl": _ftrl,
    "rmsprop": _kind_of_rmsprop(centered=False, momentum=False),
    "rmsprop_momentum": _kind_of_rmsprop(centered=False, momentum=True),
    "centered_rmsprop": _kind_of_rmsprop(centered=True, momentum=False),
    "centered_rmsprop_momentum": _kind_of_rmsprop(centered=True, momentum=True),
    "lamb": _lamb,
    "adafactor": _adafactor,
}
