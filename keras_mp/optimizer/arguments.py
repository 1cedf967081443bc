"""What a user passes to `FP32MasterOptimizer`, checked; and the forms of state."""

import math
import re
from collections.abc import Sequence
from typing import Any

import keras

from keras_mp.arguments import short_repr, whole_number
from keras_mp.optimizer.backend import backend
from keras_mp.optimizer.compression import ROUNDING_MODES
from keras_mp.optimizer.inner_optimizer import leaves
from keras_mp.optimizer.masters import FORMS, path_of
from keras_mp.optimizer.rules import (
    OPTIONS_AROUND_A_RULE,
    names_of_optimizers,
    rule_of,
    unsupported_options,
)
from keras_mp.typing import Gradient, Variable

# In files that were saved before 0.1.0.
_OLD_NAMES = {
    "least_size": "min_size",
    "least_rank": "min_rank",
    "excluded": "exclude",
}


class CompressedState:
    """Stores the optimizer state of large variables in few bits: what the forms share.

    Args:
        min_size: as for `Int8State`.
        min_rank: as for `Int8State`.
        exclude: as for `Int8State`.
    """

    bits: int

    def __init__(
        self,
        min_size: int = 4096,
        min_rank: int = 2,
        exclude: Sequence[str] = ("embeddings",),
    ) -> None:
        self.min_size = whole_number("min_size", min_size, "Try 4096.")
        self.min_rank = whole_number("min_rank", min_rank, "Try 2.", least=0)
        self.exclude = _patterns(exclude)

    def applies_to(self, variable: Variable) -> bool:
        """Tells whether the state of a variable is stored in this form.

        Args:
            variable: `keras.Variable`.
        """
        path = getattr(variable, "path", variable.name)
        return (
            len(variable.shape) >= self.min_rank
            and math.prod(variable.shape) >= self.min_size
            and not any(re.search(pattern, path) for pattern in self.exclude)
        )

    def get_config(self) -> dict[str, Any]:
        """Returns the constructor's arguments."""
        return {
            "min_size": self.min_size,
            "min_rank": self.min_rank,
            "exclude": list(self.exclude),
        }

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> "CompressedState":
        """Returns the state that `get_config` described."""
        return cls(**{_OLD_NAMES.get(name, name): x for name, x in config.items()})

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, CompressedState)
            and type(other) is type(self)
            and other.get_config() == self.get_config()
        )

    def __hash__(self) -> int:
        return hash((type(self), self.min_size, self.min_rank, self.exclude))

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}(min_size={self.min_size}, "
            f"min_rank={self.min_rank}, exclude={self.exclude})"
        )


@keras.saving.register_keras_serializable(package="keras_mp")
class Int8State(CompressedState):
    """Stores the optimizer state of large variables in 8 bits.

    The state of a variable is in 8 bits if the variable has at least `min_rank` axes
    and `min_size` elements, and none of the patterns `exclude` is found in its path.
    All other state is FP32.

    Args:
        min_size: int >= 1. Defaults to 4096.
        min_rank: int >= 0. Defaults to 2, so that biases and the scales of
            normalizations stay FP32.
        exclude: sequence of str, regular expressions that are searched for in the
            path of a variable. Defaults to `("embeddings",)`: rows of an embedding get
            gradients rarely, and differ in size.

    Raises:
        TypeError: an argument has the wrong type.
        ValueError: one is out of range, or no regular expression.

    Example:

    >>> state = keras_mp.Int8State(min_size=1)
    >>> model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(3)])
    >>> [state.applies_to(weight) for weight in model.weights]
    [True, False]
    >>> optimizer = keras_mp.wrap("adam", state=state)
    """

    bits = 8


@keras.saving.register_keras_serializable(package="keras_mp")
class Int4State(CompressedState):
    """Stores the optimizer state of large variables in 4 bits.

    As `Int8State`, in half of the bytes, with more error: see
    docs/guides/optimizer_state.md.

    Args:
        min_size: int >= 1. Defaults to 4096.
        min_rank: int >= 0. Defaults to 2.
        exclude: sequence of str. Defaults to `("embeddings",)`.

    Raises:
        TypeError: an argument has the wrong type.
        ValueError: one is out of range, or no regular expression.

    Example:

    >>> state = keras_mp.Int4State(exclude=("embeddings", "head"))
    >>> optimizer = keras_mp.wrap("adam", state=state)
    """

    bits = 4


def _patterns(exclude: Any) -> tuple[str, ...]:
    rule = "`exclude` must be a sequence of regular expressions. Received: "
    fix = ' Try exclude=("embeddings",), or exclude=() for none.'
    is_sequence = isinstance(exclude, Sequence) and not isinstance(exclude, str)
    if not is_sequence or not all(isinstance(each, str) for each in exclude):
        raise TypeError(f"{rule}exclude={short_repr(exclude)}.{fix}")
    for pattern in exclude:
        try:
            re.compile(pattern)
        except re.error as error:
            raise ValueError(
                f"{rule}{pattern!r}, which is none: {error}.{fix}"
            ) from error
    return tuple(exclude)


_BACKENDS = ("tensorflow", "jax", "torch")


def check_arguments(
    inner_optimizer: Any,
    rounding: Any,
    seed: Any,
    all_reduce_dtype: Any,
    name: Any,
    shard_state: Any,
) -> None:
    """Checks the constructor's arguments, but for the loss scale.

    Raises:
        TypeError: one has the wrong type.
        ValueError: one is out of range, or the optimizer cannot be wrapped.
        RuntimeError: this backend of Keras is not supported, or not with FP16 sums or
            sharded state; or the strategy is not supported with sharded state.
    """
    _check_backend()
    check_inner_optimizer(inner_optimizer)
    if rounding not in ROUNDING_MODES:
        raise ValueError(
            '`rounding` must be "nearest" or "stochastic". '
            f"Received: rounding={short_repr(rounding)}. The paper trained with "
            '"nearest"; Appendix A compares the two.'
        )
    if not isinstance(name, str | None):
        raise TypeError(
            f"`name` must be a str or None. Received: name={short_repr(name)}."
        )
    whole_number("seed", seed, "Try 0.", least=0)
    _check_all_reduce_dtype(all_reduce_dtype)
    _check_shard_state(shard_state)


def _check_backend() -> None:
    if keras.backend.backend() not in _BACKENDS:
        raise RuntimeError(
            f"FP32MasterOptimizer needs Keras on one of the backends {_BACKENDS}. "
            f"Received: keras.backend.backend()={keras.backend.backend()!r}. Set "
            "KERAS_BACKEND=tensorflow before Keras is imported."
        )


def _check_all_reduce_dtype(dtype: Any) -> None:
    if not isinstance(dtype, str) or dtype not in ("float32", "float16"):
        raise ValueError(
            '`all_reduce_dtype` must be "float32" or "float16". '
            f'Received: all_reduce_dtype={short_repr(dtype)}. "float16" halves what '
            "replicas send to each other."
        )
    if dtype == "float16" and keras.backend.backend() != "tensorflow":
        raise RuntimeError(
            '`all_reduce_dtype="float16"` is for tf.distribute, and needs Keras on the '
            "TensorFlow backend; on others the sum is part of the model's program. "
            f"Received: backend={keras.backend.backend()!r}. Leave it at "
            '"float32", or set KERAS_BACKEND=tensorflow before Keras is imported.'
        )


def _check_shard_state(shard_state: Any) -> None:
    if not isinstance(shard_state, bool):
        raise TypeError(
            "`shard_state` must be True or False. Received: "
            f"shard_state={short_repr(shard_state)}."
        )
    if shard_state:
        backend.check_shards_state()


def check_gradients(
    gradients: Sequence[Gradient], variables: Sequence[Variable]
) -> None:
    """Checks that there is a gradient, and a variable for each.

    Raises:
        ValueError: the lists have different lengths, or all gradients are None.
    """
    check_one_to_one(gradients, variables)
    if all(gradient is None for gradient in gradients):
        raise ValueError(
            "No gradients provided for any variable. Received: None for all of "
            f"{[path_of(v) for v in variables]}. Is the loss computed from them, "
            "inside the tape?"
        )


def check_one_to_one(
    gradients: Sequence[Gradient], variables: Sequence[Variable]
) -> None:
    """Checks that there are as many gradients as variables.

    Raises:
        ValueError: the lists have different lengths.
    """
    if len(variables) != len(gradients):
        raise ValueError(
            "Gradients must match variables one to one. Received: "
            f"{len(gradients)} gradients, {len(variables)} variables. Pass the "
            "variables that the gradients belong to, in the same order."
        )


def check_state(
    optimizer: keras.Optimizer, masters: Any, state: Any, rounding: str
) -> CompressedState | None:
    """Checks the arguments `masters` and `state`.

    Args:
        optimizer: the inner `keras.optimizers.Optimizer`.
        masters: as for `wrap`.
        state: as for `wrap`.
        rounding: as for `wrap`.

    Returns:
        `CompressedState`, or None if all slots are FP32.

    Raises:
        TypeError: `state` is of the wrong type.
        ValueError: a form is unknown, or the optimizer or rounding does not allow it.
    """
    if masters not in FORMS:
        raise ValueError(
            '`masters` must be "float32", "remainders", "int8_remainders" or None. '
            f'Received: masters={short_repr(masters)}. "remainders" holds the same '
            "masters in two thirds of the bytes."
        )
    if masters not in ("float32", None) and rounding == "stochastic":
        raise ValueError(
            "A remainder is what rounding to nearest drops. Received: "
            f'masters={masters!r} with rounding="stochastic". Leave rounding at '
            '"nearest".'
        )
    if masters is None and rounding != "stochastic":
        raise ValueError(
            "Weights without masters must be rounded stochastically, or updates below "
            "half a unit in their last place are lost. Received: masters=None with "
            f'rounding={short_repr(rounding)}. Add rounding="stochastic".'
        )
    compressed = _as_compressed_state(state)
    if masters != "float32" or compressed is not None:
        _check_rule(optimizer, compressed)
    return compressed


def _as_compressed_state(state: Any) -> CompressedState | None:
    if isinstance(state, CompressedState):
        return state
    rule = (
        '`state` must be "float32", "int8", "int4", a keras_mp.Int8State or a '
        f"keras_mp.Int4State. Received: state={short_repr(state)}"
    )
    if not isinstance(state, str):
        raise TypeError(f"{rule} of type {type(state).__name__}.")
    if state not in ("float32", "int8", "int4"):
        raise ValueError(f"{rule}.")
    return {"float32": None, "int8": Int8State(), "int4": Int4State()}[state]


def _check_rule(optimizer: keras.Optimizer, compressed: CompressedState | None) -> None:
    missing = unsupported_options(optimizer, OPTIONS_AROUND_A_RULE)
    if missing:
        raise ValueError(
            "Compressed optimizer state is for the optimizers that have a kernel: "
            f"{names_of_optimizers()}, with the options of all of Keras's optimizers "
            f"and their own. Received: {missing}. Leave out what was received, or "
            'choose masters="float32" and state="float32".'
        )
    rule = rule_of(optimizer, OPTIONS_AROUND_A_RULE)
    if compressed is not None and rule is not None and not rule.has_codes:
        raise ValueError(
            f"State in {compressed.bits} bits is for optimizers that can bear its "
            "rounding: not for Ftrl, Lamb, Adafactor, amsgrad=True and centered=True. "
            "Received: "
            f'{type(optimizer).__name__}, or such an option. Choose state="float32".'
        )


def check_inner_optimizer(optimizer: keras.Optimizer) -> None:
    """Refuses an optimizer that scales the loss itself, or has state for other weights.

    Raises:
        TypeError: not a `keras.optimizers.Optimizer`.
        ValueError: it scales the loss itself, or it has been built.
    """
    if isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
        raise ValueError(
            "The optimizer to wrap must not scale the loss itself, or gradients are "
            f"unscaled twice. Received: a {type(optimizer).__name__}. Wrap what is "
            "inside: keras_mp.wrap(optimizer.inner_optimizer)."
        )
    if not isinstance(optimizer, keras.optimizers.Optimizer):
        raise TypeError(
            "`inner_optimizer` must be a keras.optimizers.Optimizer. "
            f"Received: {short_repr(optimizer)} of type {type(optimizer).__name__}. "
            "keras_mp.wrap also takes a name or a config."
        )
    for leaf in leaves(optimizer):
        if leaf.loss_scale_factor is not None:
            raise ValueError(
                "The optimizer to wrap must not scale the loss itself. Received: "
                f"loss_scale_factor={leaf.loss_scale_factor}. Leave it out and write "
                f"keras_mp.wrap(optimizer, loss_scale={leaf.loss_scale_factor})."
            )
    if optimizer.built:
        raise ValueError(
            "The optimizer to wrap must be new: this one has made its slots for "
            f"other variables. Received: a built {type(optimizer).__name__}. Wrap a "
            "copy: optimizer.__class__.from_config(optimizer.get_config())."
        )


def check_values_to_copy(optimizer: keras.Optimizer, variables: list[Variable]) -> None:
    """Refuses to build an optimizer that copies weights which have no value yet.

    Raises:
        ValueError: it copies some, and they have no value.
    """
    # Keras 3.12, the last for Python 3.10, has no such optimizer.
    copying = getattr(keras.optimizers, "ScheduleFreeAdamW", ())
    copies = [leaf for leaf in leaves(optimizer) if isinstance(leaf, copying)]
    if copies and not backend.have_values(variables):
        raise ValueError(
            "ScheduleFreeAdamW starts from a copy of the weights, so the model must "
            "be built before the first step. Received: weights that the first step "
            "creates. Start the model with keras.Input, or call model.build(shape)."
        )
