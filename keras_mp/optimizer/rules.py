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

from keras_mp import keras_internals
from keras_mp.arguments import short_repr
from keras_mp.keras_internals import KERAS, nadam_momentum_product
from keras_mp.optimizer.inner_optimizer import class_of, options_in_use
from keras_mp.optimizer.masters import Master
from keras_mp.optimizer.slot_codes import Slot
from keras_mp.typing import Tensor


@dataclass(frozen=True)
class Rule:
    """How the kernel of the update step implements an optimizer.

    Attributes:
        name: str, in `update_rules.def` and in `reference.py`.
        slots: tuple of `Slot`, in the order of the kernel.
        hyperparameters: function of the optimizer that returns the rule's
            hyperparameters by name, without those that all rules have.
        weight_decay: str, the name of the optimizer's option for it.
        takes: function of a master that tells whether the rule is for it.
    """

    name: str
    slots: tuple[Slot, ...]
    hyperparameters: Callable[[Any], dict[str, Any]]
    weight_decay: str = "weight_decay"
    takes: Callable[[Master], bool] = lambda master: True

    @property
    def has_codes(self) -> bool:
        """Whether all of its slots can be stored as codes."""
        return all(slot.is_signed is not None for slot in self.slots)

    def slots_of(self, optimizer: keras.Optimizer) -> list[list[Any]]:
        """Returns, for each slot, the variables that a built optimizer has made.

        In the order of the optimizer's variables; None for one that it updates by
        another rule.
        """
        return keras_internals.slots(
            optimizer, *(slot.attribute for slot in self.slots)
        )


def of_sgd(optimizer: keras.Optimizer) -> dict[str, Any]:
    """Returns the hyperparameters of SGD without momentum: none."""
    return {}


def of_momentum(optimizer: keras.Optimizer) -> dict[str, Any]:
    """Returns the hyperparameters of SGD with momentum."""
    return {"momentum": optimizer.momentum}


def of_adam(optimizer: keras.Optimizer) -> dict[str, Any]:
    """Returns the hyperparameters of Adam, and of AdamW."""
    rate = ops.cast(optimizer.learning_rate, "float32")
    return _of_adam(optimizer, rate, optimizer.beta_1, optimizer.beta_2)


def of_muon(optimizer: keras.Optimizer) -> dict[str, Any]:
    """Returns the hyperparameters of the variables that Muon updates as Adam does."""
    rate = ops.cast(optimizer.learning_rate * optimizer.adam_lr_ratio, "float32")
    betas = (optimizer.adam_beta_1, optimizer.adam_beta_2)
    return _of_adam(optimizer, rate, *betas)


def _of_adam(
    optimizer: keras.Optimizer, rate: Tensor, beta_1: float, beta_2: float
) -> dict[str, Any]:
    power_1, power_2 = _powers(optimizer, beta_1, beta_2)
    return {
        "alpha": rate * ops.sqrt(1 - power_2) / (1 - power_1),
        "one_minus_beta_1": 1 - beta_1,
        "one_minus_beta_2": 1 - beta_2,
        "epsilon": optimizer.epsilon,
    }


def of_lamb(optimizer: keras.Optimizer) -> dict[str, Any]:
    """Returns the hyperparameters of Lamb."""
    power_1, power_2 = _powers(optimizer)
    return {
        "one_minus_beta_1": 1 - optimizer.beta_1,
        "one_minus_beta_2": 1 - optimizer.beta_2,
        "m_divisor": 1 - power_1,
        "v_divisor": 1 - power_2,
        "epsilon": optimizer.epsilon,
    }


def of_adafactor(optimizer: keras.Optimizer) -> dict[str, Any]:
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


def of_nadam(optimizer: keras.Optimizer) -> dict[str, Any]:
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


def _next_product(optimizer: keras.Optimizer) -> Any:
    """Returns the product of Nadam's momentums, this step's included."""
    product = nadam_momentum_product(optimizer)
    step = ops.cast(optimizer.iterations + 1, product.dtype)
    return product * optimizer.beta_1 * (1.0 - 0.5 * ops.power(0.96, step))


def of_adamax(optimizer: keras.Optimizer) -> dict[str, Any]:
    """Returns the hyperparameters of Adamax."""
    return {
        "one_minus_beta_1": 1 - optimizer.beta_1,
        "beta_2": optimizer.beta_2,
        "m_divisor": 1 - _powers(optimizer)[0],
        "epsilon": optimizer.epsilon,
    }


def of_lion(optimizer: keras.Optimizer) -> dict[str, Any]:
    """Returns the hyperparameters of Lion."""
    beta_1 = ops.cast(optimizer.beta_1, "float32")
    beta_2 = ops.cast(optimizer.beta_2, "float32")
    return {
        "beta_1": beta_1,
        "one_minus_beta_1": 1.0 - beta_1,
        "beta_2": beta_2,
        "one_minus_beta_2": 1.0 - beta_2,
    }


def of_adagrad(optimizer: keras.Optimizer) -> dict[str, Any]:
    """Returns the hyperparameters of Adagrad."""
    return {"epsilon": optimizer.epsilon}


def of_ftrl(optimizer: keras.Optimizer) -> dict[str, Any]:
    """Returns the hyperparameters of Ftrl."""
    rate = ops.cast(optimizer.learning_rate, "float32")
    l2 = optimizer.l2_regularization_strength + optimizer.beta / (2.0 * rate)
    return {
        "l1": optimizer.l1_regularization_strength,
        "l2": 2 * l2,
        "l2_shrinkage": 2 * optimizer.l2_shrinkage_regularization_strength,
    }


def of_adadelta(optimizer: keras.Optimizer) -> dict[str, Any]:
    """Returns the hyperparameters of Adadelta."""
    return {
        "beta_2": optimizer.rho,
        "one_minus_beta_2": 1 - optimizer.rho,
        "epsilon": optimizer.epsilon,
    }


def of_rmsprop(optimizer: keras.Optimizer) -> dict[str, Any]:
    """Returns the hyperparameters of RMSprop."""
    return {**of_adadelta(optimizer), **of_momentum(optimizer)}


def _powers(optimizer: keras.Optimizer, *betas: float) -> list[Any]:
    """Returns each beta to the power of the step's number.

    Args:
        optimizer: `keras.optimizers.Optimizer`.
        *betas: floats, the optimizer's by default.
    """
    step = ops.cast(optimizer.iterations + 1, "float32")
    betas = betas or (optimizer.beta_1, optimizer.beta_2)
    return [ops.power(ops.cast(beta, "float32"), step) for beta in betas]


_MOMENTUMS = Slot("momentums", "momentum", is_signed=True)
_VELOCITIES = Slot("velocities", "velocity", is_signed=False)
_MOMENTS = (_MOMENTUMS, _VELOCITIES)


def _in_fp32(*attributes: str) -> tuple[Slot, ...]:
    return tuple(Slot(attribute) for attribute in attributes)


# The kernel takes the matrices of a variable one by one, which is slow if it has many.
_MOST_MATRICES = 4096


def _has_few_matrices(master: Master) -> bool:
    return math.prod(master.shape[:-2]) <= _MOST_MATRICES


# A slot is in FP32 only where 8 bits do not do, nor 4: FTRL computes the weight from
# its slots, AMSGrad keeps the largest rounding, the centered RMSprop subtracts nearly
# equal numbers, Lamb reads its slots twice in a step, and Adafactor keeps means of rows
# and columns.
_SGD = Rule("sgd", (), of_sgd)
_MOMENTUM = Rule("momentum", (_MOMENTUMS,), of_momentum)
_NESTEROV = Rule("nesterov", (_MOMENTUMS,), of_momentum)
_ADAM = Rule("adam", _MOMENTS, of_adam)
_AMSGRAD = Rule(
    "amsgrad", _in_fp32("momentums", "velocities", "velocity_hats"), of_adam
)
_NADAM = Rule("nadam", _MOMENTS, of_nadam)
_ADAMAX = Rule(
    "adamax", (Slot("m", "momentum", True), Slot("u", "norm", False)), of_adamax
)
_LION = Rule("lion", (_MOMENTUMS,), of_lion)
_ADAGRAD = Rule(
    "adagrad",
    (Slot("accumulators", "accumulator", False, "initial_accumulator_value"),),
    of_adagrad,
)
_ADADELTA = Rule(
    "adadelta",
    (
        Slot("accumulated_grads", "accumulated_grad", False),
        Slot("accumulated_delta_vars", "accumulated_delta_var", False),
    ),
    of_adadelta,
)
_FTRL = Rule("ftrl", _in_fp32("accumulators", "linears"), of_ftrl)
_RMSPROP = Rule("rmsprop", (_VELOCITIES,), of_rmsprop)
_RMSPROP_MOMENTUM = Rule("rmsprop_momentum", (_VELOCITIES, _MOMENTUMS), of_rmsprop)
_CENTERED_RMSPROP = Rule(
    "centered_rmsprop", _in_fp32("velocities", "average_gradients"), of_rmsprop
)
_CENTERED_RMSPROP_MOMENTUM = Rule(
    "centered_rmsprop_momentum",
    _in_fp32("velocities", "average_gradients", "momentums"),
    of_rmsprop,
)
_LAMB = Rule("lamb", _in_fp32("momentums", "velocities"), of_lamb)
_ADAFACTOR = Rule(
    "adafactor", _in_fp32("v", "r", "c"), of_adafactor, takes=_has_few_matrices
)
# Of the variables that Muon leaves to Adam: the others have no velocities.
_ADAM_OF_MUON = Rule(
    "adam", _in_fp32("momentums", "adam_velocities"), of_muon, "adam_weight_decay"
)


def _sgd(optimizer: keras.Optimizer) -> Rule:
    if not optimizer.momentum:
        return _SGD
    return _NESTEROV if optimizer.nesterov else _MOMENTUM


def _adam(optimizer: keras.Optimizer) -> Rule:
    return _AMSGRAD if optimizer.amsgrad else _ADAM


def _rmsprop(optimizer: keras.Optimizer) -> Rule:
    if optimizer.momentum > 0:
        return _CENTERED_RMSPROP_MOMENTUM if optimizer.centered else _RMSPROP_MOMENTUM
    return _CENTERED_RMSPROP if optimizer.centered else _RMSPROP


_RuleOf = Callable[[Any], Rule]


def _always(rule: Rule) -> _RuleOf:
    return lambda optimizer: rule


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
# The other options that a rule implements, and the rule. Where another option is used,
# such as one of a later version of Keras, the optimizer itself does the step.
_KNOWN: dict[type, tuple[set[str], _RuleOf]] = {
    keras.optimizers.SGD: ({"momentum", "nesterov"}, _sgd),
    keras.optimizers.Adam: ({*_BETAS, "amsgrad"}, _adam),
    keras.optimizers.AdamW: ({*_BETAS, "amsgrad"}, _adam),
    keras.optimizers.Nadam: (_BETAS, _always(_NADAM)),
    keras.optimizers.Adamax: (_BETAS, _always(_ADAMAX)),
    keras.optimizers.Lion: ({"beta_1", "beta_2"}, _always(_LION)),
    keras.optimizers.Adagrad: (
        {"initial_accumulator_value", "epsilon"},
        _always(_ADAGRAD),
    ),
    keras.optimizers.Adadelta: ({"rho", "epsilon"}, _always(_ADADELTA)),
    keras.optimizers.Ftrl: (_OF_FTRL, _always(_FTRL)),
    keras.optimizers.RMSprop: ({"rho", "momentum", "epsilon", "centered"}, _rmsprop),
    keras.optimizers.Lamb: (_BETAS, _always(_LAMB)),
    keras.optimizers.Adafactor: (_OF_ADAFACTOR, _always(_ADAFACTOR)),
}
# Those of some variables. Muon has a step of its own for matrices.
_KNOWN_FOR_SOME: dict[type, tuple[set[str], _RuleOf]] = {}
if KERAS >= (3, 13):  # before, it has other slots, or there is none
    _KNOWN_FOR_SOME[keras.optimizers.Muon] = (_OF_MUON, _always(_ADAM_OF_MUON))


def rule_of(optimizer: keras.Optimizer, besides: Set[str] = frozenset()) -> Rule | None:
    """Returns the rule of an optimizer, None if the kernel lacks one of its options.

    Args:
        optimizer: `keras.optimizers.Optimizer`.
        besides: set of names of options that the caller implements.
    """
    if unsupported_options(optimizer, besides):
        return None
    return _KNOWN[class_of(optimizer)][1](optimizer)


def partial_rule_of(optimizer: keras.Optimizer) -> Rule | None:
    """Returns the rule of an optimizer, though it may be for some variables only.

    The other variables have None for a slot.

    Args:
        optimizer: `keras.optimizers.Optimizer`, built.
    """
    known = {**_KNOWN, **_KNOWN_FOR_SOME}
    if _unsupported(optimizer, known, frozenset()):
        return None
    return known[class_of(optimizer)][1](optimizer)


def names_of_optimizers() -> str:
    """Returns the classes that have a rule, as in `"SGD, Adam and Lion"`."""
    *names, last = (known.__name__ for known in _KNOWN)
    return f"{', '.join(names)} and {last}"


def unsupported_options(
    optimizer: keras.Optimizer, besides: Set[str] = frozenset()
) -> str | None:
    """Names what the kernel lacks of an optimizer: its class, or options in use.

    Args:
        optimizer: `keras.optimizers.Optimizer`, which need not be built.
        besides: set of names of options that the caller implements.

    Returns:
        str, or None if the kernel implements all of it.
    """
    return _unsupported(optimizer, _KNOWN, besides)


def _unsupported(
    optimizer: keras.Optimizer, rules: Mapping[type, Any], besides: Set[str]
) -> str | None:
    # Not isinstance: a subclass may override anything, and an instance `update_step`.
    known = rules.get(class_of(optimizer))
    if known is None or "update_step" in vars(optimizer):
        return type(optimizer).__name__
    used = options_in_use(optimizer, {*_OF_ALL, *known[0], *besides})
    numbers = {name: getattr(optimizer, name, None) for name in _NUMBERS}
    used |= {name: x for name, x in numbers.items() if not _is_number(x)}
    return ", ".join(f"{name}={short_repr(x)}" for name, x in used.items()) or None


def count_step(optimizer: keras.Optimizer, finite: Tensor) -> None:
    """Advances the variables that count the steps of an optimizer, if `finite` is true.

    Args:
        optimizer: `keras.optimizers.Optimizer` that has a rule.
        finite: bool, or scalar bool tensor.
    """
    count_update(optimizer, finite)
    iterations = optimizer.iterations
    iterations.assign_add(ops.cast(finite, iterations.dtype))


def count_update(optimizer: keras.Optimizer, finite: Tensor) -> None:
    """Advances what counts the updates besides `iterations`, if `finite` is true.

    Args:
        optimizer: `keras.optimizers.Optimizer` that has a rule.
        finite: bool, or scalar bool tensor.
    """
    if class_of(optimizer) is keras.optimizers.Nadam:
        product = nadam_momentum_product(optimizer)
        following = _next_product(optimizer)
        before = ops.convert_to_tensor(product)
        product.assign(ops.where(finite, following, before))


def _is_number(option: Any) -> bool:
    return option is None or isinstance(option, int | float)
