"""Checks of what a user passes to `FP32MasterOptimizer`."""

from collections.abc import Sequence
from typing import Any

import keras

from keras_mp.arguments import short_repr, whole_number
from keras_mp.optimizer.compression import ROUNDING_MODES
from keras_mp.optimizer.inner_optimizer import check_inner_optimizer
from keras_mp.optimizer.masters import path_of

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
            sharded state.
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
    if shard_state and keras.backend.backend() != "jax":
        raise RuntimeError(
            "`shard_state=True` shards state by the layouts of keras.distribution, and "
            "needs Keras on the JAX backend. Received: "
            f"backend={keras.backend.backend()!r}. Leave it at False, or set "
            "KERAS_BACKEND=jax before Keras is imported. To load a model that was "
            "saved with it, call load_model(path, compile=False) and compile."
        )


def check_gradients(gradients: Sequence[Any], variables: Sequence[Any]) -> None:
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


def check_one_to_one(gradients: Sequence[Any], variables: Sequence[Any]) -> None:
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
