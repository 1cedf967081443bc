"""The optimizers that a kernel implements: their options, slots and hyperparameters.

Functions `of_...` take a `keras.optimizers.Optimizer` and return the hyperparameters of
a rule at a step by name, without those that all rules have. A number is computed as in
the `update_step` of an FP32 variable, bit for bit: in FP32 where that casts an option
first, in Python where it does not.
"""

import math
from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass
from typing import Any

import keras
from keras import ops

from keras_mp.arguments import short_repr
from keras_mp.keras_internals import KERAS, nadam_momentum_product, slots
from keras_mp.optimizer.inner_optimizer import class_of, options_in_use
from keras_mp.optimizer.masters import SlotKind


@dataclass(frozen=True)
class Rule:
    """How the kernel of the update step implements an optimizer.

    Attributes:
        name: str, as `keras_mp.ops.kernels.update.update_variables` takes it.
        slots: list of lists of slots, each as long as the optimizer's variables.
        hyperparameters: function of the optimizer that returns the rule's
            hyperparameters by name, without those that all rules have.
        weight_decay: str, the name of the optimizer's option for it.
        takes: function of a master that tells whether the rule is for it.
    """

    name: str
    slots: list[list[Any]]
    hyperparameters: Callable[[Any], dict[str, Any]]
    weight_decay: str = "weight_decay"
    takes: Callable[[Any], bool] = lambda master: True


def of_sgd(optimizer: Any) -> dict[str, Any]:
    """Returns the hyperparameters of SGD without momentum: none."""
    return {}


def of_momentum(optimizer: Any) -> dict[str, Any]:
    """Returns the hyperparameters of SGD with momentum."""
    return {"momentum": optimizer.momentum}


def of_adam(optimizer: Any) -> dict[str, Any]:
    """Returns the hyperparameters of Adam, and of AdamW."""
    rate = ops.cast(optimizer.learning_rate, "float32")
    return _of_adam(optimizer, rate, optimizer.beta_1, optimizer.beta_2)


def of_muon(optimizer: Any) -> dict[str, Any]:
    """Returns the hyperparameters of the variables that Muon updates as Adam does."""
    rate = ops.cast(optimizer.learning_rate * optimizer.adam_lr_ratio, "float32")
    betas = (optimizer.adam_beta_1, optimizer.adam_beta_2)
    return _of_adam(optimizer, rate, *betas)


def _of_adam(optimizer: Any, rate: Any, beta_1: float, beta_2: float) -> dict[str, Any]:
    power_1, power_2 = _powers(optimizer, beta_1, beta_2)
    return {
        "alpha": rate * ops.sqrt(1 - power_2) / (1 - power_1),
        "one_minus_beta_1": 1 - beta_1,
        "one_minus_beta_2": 1 - beta_2,
        "epsilon": optimizer.epsilon,
    }


def of_lamb(optimizer: Any) -> dict[str, Any]:
    """Returns the hyperparameters of Lamb."""
    power_1, power_2 = _powers(optimizer)
    return {
        "one_minus_beta_1": 1 - optimizer.beta_1,
        "one_minus_beta_2": 1 - optimizer.beta_2,
        "m_divisor": 1 - power_1,
        "v_divisor": 1 - power_2,
        "epsilon": optimizer.epsilon,
    }


def of_adafactor(optimizer: Any) -> dict[str, Any]:
    """Returns the hyperparameters of Adafactor: beta_2 grows with the steps."""
    step = ops.cast(optimizer.iterations + 1, "float32")
    rate = ops.cast(optimizer.learning_rate, "float32")
    beta_2 = 1 - ops.power(step, optimizer.beta_2_decay)
    return {
        # Keras limits its steps by this with and without `relative_step`.
        "alpha": ops.minimum(rate, 1 / ops.sqrt(step)),
        "beta_2": beta_2,
        "one_minus_beta_2": 1 - beta_2,
        "epsilon": optimizer.epsilon_1,
        "epsilon_2": optimizer.epsilon_2,
        "threshold": optimizer.clip_threshold,
    }


def of_nadam(optimizer: Any) -> dict[str, Any]:
    """Returns the hyperparameters of Nadam, with this and the next momentum."""
    beta_1 = ops.cast(optimizer.beta_1, "float32")
    beta_2 = ops.cast(optimizer.beta_2, "float32")
    decay = ops.cast(0.96, "float32")

    def momentum(steps: int) -> Any:
        step = ops.cast(optimizer.iterations + steps, "float32")
        return beta_1 * (1.0 - 0.5 * ops.power(decay, step))

    product = ops.cast(_next_product(optimizer), "float32")
    this, following = momentum(1), momentum(2)
    return {
        "one_minus_beta_1": 1 - beta_1,
        "one_minus_beta_2": 1 - beta_2,
        "m_factor": following,
        "m_divisor": 1 - product * following,
        "g_factor": 1 - this,
        "g_divisor": 1 - product,
        "v_divisor": 1 - _powers(optimizer)[1],
        "epsilon": optimizer.epsilon,
    }


def _next_product(optimizer: Any) -> Any:
    """Returns the product of Nadam's momentums, this step's included."""
    product = nadam_momentum_product(optimizer)
    step = ops.cast(optimizer.iterations + 1, product.dtype)
    return product * optimizer.beta_1 * (1.0 - 0.5 * ops.power(0.96, step))


def of_adamax(optimizer: Any) -> dict[str, Any]:
    """Returns the hyperparameters of Adamax."""
    return {
        "one_minus_beta_1": 1 - optimizer.beta_1,
        "beta_2": optimizer.beta_2,
        "m_divisor": 1 - _powers(optimizer)[0],
        "epsilon": optimizer.epsilon,
    }


def of_lion(optimizer: Any) -> dict[str, Any]:
    """Returns the hyperparameters of Lion."""
    beta_1 = ops.cast(optimizer.beta_1, "float32")
    beta_2 = ops.cast(optimizer.beta_2, "float32")
    return {
        "beta_1": beta_1,
        "one_minus_beta_1": 1.0 - beta_1,
        "beta_2": beta_2,
        "one_minus_beta_2": 1.0 - beta_2,
    }


def of_adagrad(optimizer: Any) -> dict[str, Any]:
    """Returns the hyperparameters of Adagrad."""
    return {"epsilon": optimizer.epsilon}


def of_ftrl(optimizer: Any) -> dict[str, Any]:
    """Returns the hyperparameters of Ftrl."""
    rate = ops.cast(optimizer.learning_rate, "float32")
    l2 = optimizer.l2_regularization_strength + optimizer.beta / (2.0 * rate)
    return {
        "l1": optimizer.l1_regularization_strength,
        "l2": 2 * l2,
        "l2_shrinkage": 2 * optimizer.l2_shrinkage_regularization_strength,
    }


def of_adadelta(optimizer: Any) -> dict[str, Any]:
    """Returns the hyperparameters of Adadelta."""
    return {
        "beta_2": optimizer.rho,
        "one_minus_beta_2": 1 - optimizer.rho,
        "epsilon": optimizer.epsilon,
    }


def of_rmsprop(optimizer: Any) -> dict[str, Any]:
    """Returns the hyperparameters of RMSprop."""
    return {**of_adadelta(optimizer), **of_momentum(optimizer)}


def _powers(optimizer: Any, *betas: float) -> list[Any]:
    """Returns each beta to the power of the step's number.

    Args:
        optimizer: `keras.optimizers.Optimizer`.
        *betas: floats, the optimizer's by default.
    """
    step = ops.cast(optimizer.iterations + 1, "float32")
    betas = betas or (optimizer.beta_1, optimizer.beta_2)
    return [ops.power(ops.cast(beta, "float32"), step) for beta in betas]


def rule_of(optimizer: Any, besides: Set[str] = frozenset()) -> Rule | None:
    """Returns the rule of an optimizer, None if the kernel lacks one of its options.

    Args:
        optimizer: `keras.optimizers.Optimizer`, built.
        besides: set of names of options that the caller implements.
    """
    if unsupported_options(optimizer, besides):
        return None
    return _KNOWN[class_of(optimizer)][1](optimizer)


def partial_rule_of(optimizer: Any) -> Rule | None:
    """Returns the rule of an optimizer, though it may be for some variables only.

    The other variables have None for a slot.

    Args:
        optimizer: `keras.optimizers.Optimizer`, built.
    """
    known = {**_KNOWN, **_KNOWN_FOR_SOME}
    if _unsupported(optimizer, known, frozenset()):
        return None
    return known[class_of(optimizer)][1](optimizer)


def unsupported_options(optimizer: Any, besides: Set[str] = frozenset()) -> str | None:
    """Names what the kernel lacks of an optimizer: its class, or options in use.

    Args:
        optimizer: `keras.optimizers.Optimizer`, which need not be built.
        besides: set of names of options that the caller implements.

    Returns:
        str, or None if the kernel implements all of it.
    """
    return _unsupported(optimizer, _KNOWN, besides)


def _unsupported(
    optimizer: Any, rules: Mapping[type, Any], besides: Set[str]
) -> str | None:
    # Not isinstance: a subclass may override anything, and an instance `update_step`.
    known = rules.get(class_of(optimizer))
    if known is None or "update_step" in vars(optimizer):
        return type(optimizer).__name__
    used = options_in_use(optimizer, {*_OF_ALL, *known[0], *besides})
    numbers = {name: getattr(optimizer, name, None) for name in _NUMBERS}
    used |= {name: x for name, x in numbers.items() if not _is_number(x)}
    return ", ".join(f"{name}={short_repr(x)}" for name, x in used.items()) or None


def count_step(optimizer: Any, finite: Any) -> None:
    """Advances the variables that count the steps of an optimizer, if `finite` is true.

    Args:
        optimizer: `keras.optimizers.Optimizer` that has a rule.
        finite: scalar bool tensor.
    """
    count_update(optimizer, finite)
    iterations = optimizer.iterations
    iterations.assign_add(ops.cast(finite, iterations.dtype))


def count_update(optimizer: Any, finite: Any) -> None:
    """Advances what counts the updates besides `iterations`, if `finite` is true.

    Args:
        optimizer: `keras.optimizers.Optimizer` that has a rule.
        finite: scalar bool tensor.
    """
    if class_of(optimizer) is keras.optimizers.Nadam:
        product = nadam_momentum_product(optimizer)
        following = _next_product(optimizer)
        before = ops.convert_to_tensor(product)
        product.assign(ops.where(finite, following, before))


def _is_number(option: Any) -> bool:
    return option is None or isinstance(option, int | float)


def _sgd(optimizer: Any) -> Rule:
    if not optimizer.momentum:
        return Rule("sgd", [], of_sgd)
    name = "nesterov" if optimizer.nesterov else "momentum"
    return Rule(name, [optimizer.momentums], of_momentum)


def _adam(optimizer: Any) -> Rule:
    names = ["momentums", "velocities"]
    if optimizer.amsgrad:
        names.append("velocity_hats")
    name = "amsgrad" if optimizer.amsgrad else "adam"
    return Rule(name, slots(optimizer, *names), of_adam)


def _lamb(optimizer: Any) -> Rule:
    names = ("momentums", "velocities")
    return Rule("lamb", slots(optimizer, *names), of_lamb)


# The kernel takes the matrices of a variable one by one, which is slow if it has many.
_MOST_MATRICES = 4096


def _adafactor(optimizer: Any) -> Rule:
    return Rule(
        "adafactor",
        slots(optimizer, *"vrc"),
        of_adafactor,
        takes=lambda master: math.prod(master.shape[:-2]) <= _MOST_MATRICES,
    )


def _muon(optimizer: Any) -> Rule:
    """Returns the rule of the variables that Muon leaves to Adam."""
    own = [optimizer.momentums, optimizer.adam_velocities]
    return Rule("adam", own, of_muon, "adam_weight_decay")


def _nadam(optimizer: Any) -> Rule:
    names = ("momentums", "velocities")
    return Rule("nadam", slots(optimizer, *names), of_nadam)


def _adamax(optimizer: Any) -> Rule:
    return Rule("adamax", slots(optimizer, "m", "u"), of_adamax)


def _lion(optimizer: Any) -> Rule:
    return Rule("lion", slots(optimizer, "momentums"), of_lion)


def _adagrad(optimizer: Any) -> Rule:
    accumulators = slots(optimizer, "accumulators")
    return Rule("adagrad", accumulators, of_adagrad)


def _adadelta(optimizer: Any) -> Rule:
    names = ("accumulated_grads", "accumulated_delta_vars")
    return Rule("adadelta", slots(optimizer, *names), of_adadelta)


def _ftrl(optimizer: Any) -> Rule:
    names = ("accumulators", "linears")
    return Rule("ftrl", slots(optimizer, *names), of_ftrl)


def _rmsprop(optimizer: Any) -> Rule:
    name, names = "rmsprop", ["velocities"]
    if optimizer.centered:
        name = "centered_rmsprop"
        names.append("average_gradients")
    if optimizer.momentum > 0:
        name += "_momentum"
        names.append("momentums")
    return Rule(name, slots(optimizer, *names), of_rmsprop)


# Options of every optimizer that the kernel or its caller implements.
_OF_ALL = {
    "learning_rate",
    "weight_decay",
    "clipvalue",
    "global_clipnorm",
    "name",
}
# Options of every optimizer that `UpdateWithOptions` implements around any rule.
OPTIONS_AROUND_A_RULE = frozenset(
    {
        "clipnorm",
        "gradient_accumulation_steps",
        "use_ema",
        "ema_momentum",
        "ema_overwrite_frequency",
    }
)
# Those whose value decides what is computed. That of a tensor is not known in a graph.
_NUMBERS = ("weight_decay", "clipvalue", "global_clipnorm", "adam_weight_decay")
_BETAS = {"beta_1", "beta_2", "epsilon"}
# Without `learning_rate_power`: the kernel has that of the default, a square root.
_OF_FTRL = {
    "initial_accumulator_value",
    "l1_regularization_strength",
    "l2_regularization_strength",
    "l2_shrinkage_regularization_strength",
    "beta",
}
_OF_MUON = {
    "epsilon",
    "exclude_layers",
    "exclude_embeddings",
    "muon_a",
    "muon_b",
    "muon_c",
    "adam_lr_ratio",
    "momentum",
    "ns_steps",
    "nesterov",
    "rms_rate",
    "adam_beta_1",
    "adam_beta_2",
    "adam_weight_decay",
}
_OF_ADAFACTOR = {
    "beta_2_decay",
    "epsilon_1",
    "epsilon_2",
    "clip_threshold",
    "relative_step",
}
_RuleOf = Callable[[Any], Rule]


# The other options that a rule implements, and the rule. Where another option is used,
# such as one of a later version of Keras, the optimizer itself does the step.
_KNOWN: dict[type, tuple[set[str], _RuleOf]] = {
    keras.optimizers.SGD: ({"momentum", "nesterov"}, _sgd),
    keras.optimizers.Adam: ({*_BETAS, "amsgrad"}, _adam),
    keras.optimizers.AdamW: ({*_BETAS, "amsgrad"}, _adam),
    keras.optimizers.Nadam: (_BETAS, _nadam),
    keras.optimizers.Adamax: (_BETAS, _adamax),
    keras.optimizers.Lion: ({"beta_1", "beta_2"}, _lion),
    keras.optimizers.Adagrad: ({"initial_accumulator_value", "epsilon"}, _adagrad),
    keras.optimizers.Adadelta: ({"rho", "epsilon"}, _adadelta),
    keras.optimizers.Ftrl: (_OF_FTRL, _ftrl),
    keras.optimizers.RMSprop: ({"rho", "momentum", "epsilon", "centered"}, _rmsprop),
    keras.optimizers.Lamb: (_BETAS, _lamb),
    keras.optimizers.Adafactor: (_OF_ADAFACTOR, _adafactor),
}
# Those of some variables. Muon has a step of its own for matrices.
_KNOWN_FOR_SOME: dict[type, tuple[set[str], _RuleOf]] = {}
if KERAS >= (3, 13):  # before, it has other slots, or there is none
    _KNOWN_FOR_SOME[keras.optimizers.Muon] = (_OF_MUON, _muon)


_MOMENTUM = SlotKind("momentum", is_signed=True)
_VELOCITY = SlotKind("velocity", is_signed=False)


def slot_kinds(optimizer: Any) -> tuple[SlotKind, ...] | None:
    """Returns the kinds of the slots of an optimizer that has a rule, in its order.

    None if 8 bits do not do, nor 4: FTRL computes the weight from its slots, AMSGrad
    keeps the largest rounding, the centered RMSprop subtracts nearly equal numbers,
    Lamb reads its slots twice in a step, and Adafactor keeps means of rows and columns.
    """
    match optimizer:
        case keras.optimizers.SGD():
            return (_MOMENTUM,) if optimizer.momentum else ()
        case keras.optimizers.Adam():  # and AdamW
            return None if optimizer.amsgrad else (_MOMENTUM, _VELOCITY)
        case keras.optimizers.Nadam():
            return _MOMENTUM, _VELOCITY
        case keras.optimizers.Adamax():
            return _MOMENTUM, SlotKind("norm", is_signed=False)
        case keras.optimizers.Lion():
            return (_MOMENTUM,)
        case keras.optimizers.Adagrad():
            initial_value = optimizer.initial_accumulator_value
            return (SlotKind("accumulator", False, initial_value),)
        case keras.optimizers.Adadelta():
            names = ("accumulated_grad", "accumulated_delta_var")
            return tuple(SlotKind(name, is_signed=False) for name in names)
        case keras.optimizers.RMSprop() if not optimizer.centered:
            return (_VELOCITY, _MOMENTUM) if optimizer.momentum > 0 else (_VELOCITY,)
    return None
