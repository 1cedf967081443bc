"""`estimate_memory`: the bytes that a training step takes, before one runs."""

import os
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from typing import Any

import keras

from keras_mp import keras_internals
from keras_mp.arguments import short_repr, whole_number
from keras_mp.diagnostics.live_bytes import LiveBytes
from keras_mp.optimizer.masters import variable_like
from keras_mp.optimizer.properties import masters_and_state, total_bytes
from keras_mp.optimizer.sharding import sharded_dimension
from keras_mp.precision.batch import check_model
from keras_mp.precision.run import loss_of
from keras_mp.precision.variable_values import VariableValues, regularizing_in_fp32

# How many orders of the operations of a step are tried.
_ORDERS = 4


@dataclass(frozen=True)
class MemoryUse:
    """The bytes that a training step takes on a device. `print` shows a table.

    Attributes:
        weights: int, of all variables of the model.
        masters: int, of FP32 masters or remainders.
        state: int, of the optimizer's other variables.
        gradients: int, of the gradients of all trainable weights, each in the dtype of
            its weight.
        activations: int, the most that all else takes at once: the batch, results of
            layers that the backward pass reads, what operations make meanwhile. None
            without a batch.
        step: int, the most that gradients and activations take together: less than
            their sum, because activations are freed while gradients are computed. None
            without a batch.

    Example:

    >>> print(keras_mp.MemoryUse(2 * 2**20, 4 * 2**20, 8 * 2**20, 2 * 2**20))
    weights              2.0 MiB
    masters              4.0 MiB
    state                8.0 MiB
    gradients            2.0 MiB
    activations    not estimated
    step           not estimated
    total               16.0 MiB
    """

    weights: int
    masters: int
    state: int
    gradients: int
    activations: int | None = None
    step: int | None = None

    @property
    def total(self) -> int:
        """Weights, masters, state and `step`; without a batch, instead of it gradients.

        The peak of training, with a batch.
        """
        step = self.gradients if self.step is None else self.step
        return self.weights + self.masters + self.state + step

    def __str__(self) -> str:
        names = [*(field.name for field in fields(self)), "total"]
        rows = [(name, _mebibytes(getattr(self, name))) for name in names]
        return "\n".join(f"{name:<12}{size:>16}" for name, size in rows)


def _mebibytes(size: int | None) -> str:
    return "not estimated" if size is None else f"{size / 2**20:,.1f} MiB"


def estimate_memory(
    model: keras.Model,
    optimizer: keras.Optimizer | None = None,
    x: Any = None,
    y: Any = None,
    sample_weight: Any = None,
    devices: int = 1,
) -> MemoryUse:
    """Estimates the memory that a training step takes on a device, before one runs.

    The bytes of weights, masters, state and gradients are exact: a copy of the
    optimizer is built, in the memory of the CPU, counted and dropped. Activations are
    an estimate: forward pass, loss, backward pass and update are traced, not run, and
    each tensor counts from the operation that makes it to the last one that reads it,
    in the order in which TensorFlow runs operations on all cores. Neither the model nor
    the optimizer changes.

    Not counted are the program, what kernels and memory allocators hold, and what XLA
    makes of the step. On a CPU with two cores, the total was within 15% of the peak of
    a process in 14 of 15 comparisons of models that take 0.5 to 2.5 GiB; for an LSTM in
    FP32 it was 27% below, for a small U-Net up to 47%: docs/guides/memory.md.

    Args:
        model: `keras.Model`, built. With a batch it must be compiled, on the TensorFlow
            backend; a custom `train_step` is not called.
        optimizer: `keras.optimizers.Optimizer`, wrapped or not. Defaults to the
            model's optimizer.
        x: inputs of one batch, of one device: an array, tensor, `keras.KerasTensor`,
            `tf.TensorSpec`, or a structure of several. Only shapes and dtypes are read.
            Defaults to None: activations are not estimated.
        y: the targets, as `x`.
        sample_weight: the weights of the samples, as `x`.
        devices: int, how many devices share masters and state if the optimizer has
            `shard_state=True`; without it each device holds all. Each gets a share of
            every large variable, as on JAX. On TensorFlow the state of a weight is
            whole on one device, and the fullest device holds up to the state of the
            largest weight more; there the FP32 copies of FP32 weights, 4 bytes a
            parameter in all, are not counted. Defaults to 1.

    Returns:
        `MemoryUse`.

    Raises:
        TypeError: `model`, `optimizer`, `devices` or a part of the batch is of the
            wrong type.
        ValueError: the model is not built or has no trainable weights; there is no
            optimizer; `devices` is below 1; a size of the batch is not known; or as for
            `inspect`, with a batch.
        RuntimeError: as for `inspect`, with a batch.

    Example:

    >>> model = keras.Sequential([
    ...     keras.Input((256,)), keras.layers.Dense(512, dtype="float16")])
    >>> model.compile(keras_mp.wrap("adam", masters="remainders", state="int8"), "mse")
    >>> use = keras_mp.estimate_memory(
    ...     model, x=keras.KerasTensor((64, 256)), y=keras.KerasTensor((64, 512)))
    >>> use.weights == use.masters == 2 * model.count_params()
    True
    >>> use.total == use.weights + use.masters + use.state + use.step
    True
    """
    devices = whole_number("devices", devices, "Leave it at 1 for one device.")
    optimizer = _checked(model, optimizer)
    batch = None
    if x is not None:
        check_model(model)
        batch = keras.tree.map_structure(_as_spec, (x, y, sample_weight))
    weights = model.trainable_variables
    with keras.device("cpu"), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The loss scale was shared with another")
        copy = type(optimizer).from_config(optimizer.get_config())
        stand_ins = [variable_like(weight, weight.dtype) for weight in weights]
        copy.build(stand_ins)
    masters, state = masters_and_state(copy)
    if not getattr(optimizer, "shard_state", False):
        devices = 1
    activations, together = (
        (None, None) if batch is None else _bytes_of_step(model, copy, stand_ins, batch)
    )
    return MemoryUse(
        weights=total_bytes(model.variables),
        masters=_bytes_of_share(masters, weights, devices),
        state=_bytes_of_share(state, weights, devices),
        gradients=total_bytes(weights),
        activations=activations,
        step=together,
    )


def _checked(model: keras.Model, optimizer: keras.Optimizer) -> Any:
    """Returns the optimizer, after a check of both."""
    if not isinstance(model, keras.Model):
        raise TypeError(
            f"`model` must be a keras.Model. Received: model={short_repr(model)}. Pass "
            "the model that is to be trained."
        )
    if not model.built or not model.trainable_variables:
        raise ValueError(
            "`model` must be built and have trainable weights. Received: "
            f"{model.name!r} without any. Give it an Input, or call it once on a batch."
        )
    if optimizer is None:
        optimizer = getattr(model, "optimizer", None)
    if optimizer is None:
        raise ValueError(
            "The state depends on the optimizer. Received: optimizer=None, and "
            f"{model.name!r}, which is not compiled. Pass keras_mp.wrap(optimizer)."
        )
    if not isinstance(optimizer, keras.Optimizer):
        raise TypeError(
            "`optimizer` must be a keras.optimizers.Optimizer. Received: "
            f"optimizer={short_repr(optimizer)}. Try keras_mp.wrap({optimizer!r})."
        )
    return optimizer


def _as_spec(part: Any) -> Any:
    """Returns the `tf.TensorSpec` of a part of a batch, as `fit` would convert it."""
    import tensorflow as tf

    if part is None:
        return None
    if not hasattr(part, "shape") or not hasattr(part, "dtype"):
        raise TypeError(
            "Each part of a batch must have a shape and a dtype. Received: "
            f"{short_repr(part)}. Pass keras.KerasTensor((batch_size, ...), dtype), or "
            "a batch of data."
        )
    dtype = keras.backend.standardize_dtype(part.dtype)
    spec = tf.TensorSpec(
        part.shape, keras.config.floatx() if dtype == "float64" else dtype
    )
    if not spec.shape.is_fully_defined():
        raise ValueError(
            "All sizes of a batch must be known. Received: the shape "
            f"{tuple(part.shape)}. Pass keras.KerasTensor((batch_size, ...), dtype), "
            "or a batch of data."
        )
    return spec


def _bytes_of_share(
    variables: Iterable[Any], weights: Sequence[Any], devices: int
) -> int:
    """Returns the bytes of variables on each of the devices that share them.

    Shared is what has the shape of a weight, in 8 bits with its exponents.
    """
    shapes = {tuple(weight.shape) for weight in weights}
    total = 0
    for variable in variables:
        shape = tuple(variable.shape)
        follows = shape in shapes or variable.dtype == "uint8"
        is_shared = follows and sharded_dimension(shape, devices) is not None
        total += total_bytes([variable]) // (devices if is_shared else 1)
    return total


def _bytes_of_step(
    model: keras.Model, optimizer: keras.Optimizer, stand_ins: Sequence[Any], batch: Any
) -> tuple[int, int]:
    """Returns the bytes of activations, and of gradients and activations together.

    Args:
        model: `keras.Model`, compiled.
        optimizer: built on the stand-ins, which it is to update.
        stand_ins: list of a variable for each trainable weight of the model.
        batch: inputs, targets and sample weights: structures of `tf.TensorSpec`.
    """
    import tensorflow as tf

    weights = [weight.value for weight in model.trainable_variables]
    gradients: list[Any] = []

    def step(x: Any, y: Any, sample_weight: Any) -> Any:
        with tf.GradientTape() as tape:
            # What layers assign to their variables, and their losses, are forgotten.
            with VariableValues({id(v): v.value for v in model.variables}):
                predictions = model(x, training=True)
                loss = loss_of(model, x, y, predictions, sample_weight)
            loss = optimizer.scale_loss(loss)
        found = tape.gradient(loss, weights)
        gradients.extend(gradient for gradient in found if gradient is not None)
        optimizer.apply(found, stand_ins)
        return loss

    with regularizing_in_fp32(model):
        graph = tf.function(step, autograph=False).get_concrete_function(*batch).graph
    for layer in keras_internals.flatten_layers(model):
        keras_internals.forget_losses(layer)
    cores = tf.config.threading.get_inter_op_parallelism_threads() or os.cpu_count()
    held = LiveBytes(graph, cores or 1, _ORDERS)
    return held.most(tf.nest.flatten(gradients, expand_composites=True)), held.most()
