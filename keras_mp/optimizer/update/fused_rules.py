"""The optimizers that a kernel implements, with their options and slots."""

import math
from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass
from typing import Any

import keras
from keras import ops

from keras_mp.arguments import short_repr
from keras_mp.keras_internals import KERAS, nadam_momentum_product, slots
from keras_mp.optimizer.inner_optimizer import class_of, options_in_use
from keras_mp.optimizer.update import hyperparameters


@dataclass(frozen=True)
class FusedRule:
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


def rule_of(optimizer: Any, besides: Set[str] = frozenset()) -> FusedRule | None:
    """Returns the rule of an optimizer, None if the kernel lacks one of its options.

    Args:
        optimizer: `keras.optimizers.Optimizer`, built.
        besides: set of names of options that the caller implements.
    """
    if what_has_no_rule(optimizer, besides):
        return None
    return _KNOWN[class_of(optimizer)][1](optimizer)


def rule_of_some(optimizer: Any) -> FusedRule | None:
    """Returns the rule of an optimizer, though it may be for some variables only.

    The other variables have None for a slot.

    Args:
        optimizer: `keras.optimizers.Optimizer`, built.
    """
    known = {**_KNOWN, **_KNOWN_FOR_SOME}
    if _what_is_unknown(optimizer, known, frozenset()):
        return None
    return known[class_of(optimizer)][1](optimizer)


def what_has_no_rule(optimizer: Any, besides: Set[str] = frozenset()) -> str | None:
    """Names what the kernel lacks of an optimizer: its class, or options in use.

    Args:
        optimizer: `keras.optimizers.Optimizer`, which need not be built.
        besides: set of names of options that the caller implements.

    Returns:
        str, or None if the kernel implements all of it.
    """
    return _what_is_unknown(optimizer, _KNOWN, besides)


def _what_is_unknown(
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
        following = hyperparameters.next_product(optimizer)
        before = ops.convert_to_tensor(product)
        product.assign(ops.where(finite, following, before))


def _is_number(option: Any) -> bool:
    return option is None or isinstance(option, int | float)


def _sgd(optimizer: Any) -> FusedRule:
    if not optimizer.momentum:
        return FusedRule("sgd", [], hyperparameters.of_sgd)
    name = "nesterov" if optimizer.nesterov else "momentum"
    return FusedRule(name, [optimizer.momentums], hyperparameters.of_momentum)


def _adam(optimizer: Any) -> FusedRule:
    names = ["momentums", "velocities"]
    if optimizer.amsgrad:
        names.append("velocity_hats")
    name = "amsgrad" if optimizer.amsgrad else "adam"
    return FusedRule(name, slots(optimizer, *names), hyperparameters.of_adam)


def _lamb(optimizer: Any) -> FusedRule:
    names = ("momentums", "velocities")
    return FusedRule("lamb", slots(optimizer, *names), hyperparameters.of_lamb)


# The kernel takes the matrices of a variable one by one, which is slow if it has many.
_MOST_MATRICES = 4096


def _adafactor(optimizer: Any) -> FusedRule:
    return FusedRule(
        "adafactor",
        slots(optimizer, *"vrc"),
        hyperparameters.of_adafactor,
        takes=lambda master: math.prod(master.shape[:-2]) <= _MOST_MATRICES,
    )


def _muon(optimizer: Any) -> FusedRule:
    """Returns the rule of the variables that Muon leaves to Adam."""
    own = [optimizer.momentums, optimizer.adam_velocities]
    return FusedRule("adam", own, hyperparameters.of_muon, "adam_weight_decay")


def _nadam(optimizer: Any) -> FusedRule:
    names = ("momentums", "velocities")
    return FusedRule("nadam", slots(optimizer, *names), hyperparameters.of_nadam)


def _adamax(optimizer: Any) -> FusedRule:
    return FusedRule("adamax", slots(optimizer, "m", "u"), hyperparameters.of_adamax)


def _lion(optimizer: Any) -> FusedRule:
    return FusedRule("lion", slots(optimizer, "momentums"), hyperparameters.of_lion)


def _adagrad(optimizer: Any) -> FusedRule:
    accumulators = slots(optimizer, "accumulators")
    return FusedRule("adagrad", accumulators, hyperparameters.of_adagrad)


def _adadelta(optimizer: Any) -> FusedRule:
    names = ("accumulated_grads", "accumulated_delta_vars")
    return FusedRule("adadelta", slots(optimizer, *names), hyperparameters.of_adadelta)


def _ftrl(optimizer: Any) -> FusedRule:
    names = ("accumulators", "linears")
    return FusedRule("ftrl", slots(optimizer, *names), hyperparameters.of_ftrl)


def _rmsprop(optimizer: Any) -> FusedRule:
    name, names = "rmsprop", ["velocities"]
    if optimizer.centered:
        name = "centered_rmsprop"
        names.append("average_gradients")
    if optimizer.momentum > 0:
        name += "_momentum"
        names.append("momentums")
    return FusedRule(name, slots(optimizer, *names), hyperparameters.of_rmsprop)


# Options of every optimizer that the kernel or its caller implements.
_OF_ALL = {
    "learning_rate",
    "weight_decay",
    "clipvalue",
    "global_clipnorm",
    "name",
}
# Options of every optimizer that `RuleWithOptions` implements around any rule.
AROUND_A_RULE = frozenset(
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
_Rule = Callable[[Any], FusedRule]


# The other options that a rule implements, and the rule. Where another option is used,
# such as one of a later version of Keras, the optimizer itself does the step.
_KNOWN: dict[type, tuple[set[str], _Rule]] = {
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
_KNOWN_FOR_SOME: dict[type, tuple[set[str], _Rule]] = {}
if KERAS >= (3, 13):  # before, it has other slots, or there is none
    _KNOWN_FOR_SOME[keras.optimizers.Muon] = (_OF_MUON, _muon)
