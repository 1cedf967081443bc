"""`wrap`, the one line that gives an optimizer masters and loss scaling."""

from typing import Any

import keras

from keras_mp.loss_scale import LossScale
from keras_mp.optimizer.arguments import Int8State
from keras_mp.optimizer.fp32_master_optimizer import FP32MasterOptimizer


def wrap(
    optimizer: keras.Optimizer | str | dict[str, Any],
    loss_scale: LossScale | FP32MasterOptimizer | float | str = "dynamic",
    rounding: str = "nearest",
    seed: int = 0,
    all_reduce_dtype: str = "float32",
    name: str | None = None,
    masters: str | None = "float32",
    state: Int8State | str = "float32",
    shard_state: bool = False,
) -> FP32MasterOptimizer:
    """Gives `optimizer` FP32 master weights and loss scaling.

    `fit` scales the loss. A `train_step` or a loop of your own calls
    `scale_loss`, or the first step is an error.

    Args:
        optimizer: `keras.optimizers.Optimizer`, its name or its config.
        loss_scale: `"dynamic"`, a positive number (a constant scale), a `LossScale`,
            or another `FP32MasterOptimizer`, to share its scale. A step of
            all of them then counts as one: the scale moves once until one of them
            applies again, and backs off if any of them overflowed. Their counters are
            shared; `iterations` and `last_overflow` are each optimizer's own. Wrap them
            all before a train function is traced, or it moves the scale separately.
            Defaults to `"dynamic"`.
        rounding: `"nearest"` (to even) or `"stochastic"`, how masters become
            weights. Defaults to `"nearest"`.
        seed: int, of stochastic rounding. Defaults to 0.
        all_reduce_dtype: `"float32"` or `"float16"`, in which the replicas of a
            `tf.distribute.Strategy` sum their gradients. FP16 halves the traffic. The
            error of a sum over n replicas is at most n roundings of the sum of the
            absolute terms, and a step is skipped if a sum overflows. If the optimizer
            clips or accumulates, the sum is then copied in FP32 from the first replica
            of a machine to its others. Defaults to `"float32"`.
        name: str. Defaults to a name made from the class.
        masters: how the masters of 16-bit weights are stored. `"float32"`: as FP32
            variables. `"remainders"`: as what the weights lack, in 16 bits; the values
            are the same but in the cases that docs/guides/optimizer_state.md lists.
            None: no masters; each update rounds the weights stochastically, and needs
            `rounding="stochastic"`. Defaults to `"float32"`.
        state: how the optimizer's own variables, such as the moments of Adam, are
            stored: `"float32"`, `"int8"` (8 bits and an exponent for each 32
            elements), or an `Int8State`, which says for which variables. Defaults to
            `"float32"`. Both forms but the defaults are for the optimizers that have a
            kernel: SGD, Adam, AdamW, Nadam, Adamax, Lion, Adagrad, Adadelta, RMSprop
            and, for `masters`, Ftrl, Lamb and Adafactor.
        shard_state: bool, whether each device of a `keras.distribution` holds only its
            share of the masters and of all other state that has the shape of a weight
            (ZeRO stage 1); JAX only. With N devices along the batch and Adam, a 16-bit
            weight takes 4 + 12/N bytes a parameter on each, its gradient included, and
            4 + 4.06/N with `masters="remainders", state="int8"`; a weight in FP32 takes
            8 + 8/N. A variable has the layout of its weight, and the batch axis
            at the first dimension that is free and that N divides; a variable without
            one stays whole on each device. Weights are bit-equal to training
            with whole state, unless the optimizer sums over a variable (`clipnorm`,
            `global_clipnorm`, Lamb, Adafactor, Muon): each device then sums its share
            first. Without a distribution nothing changes. Of several processes all must
            save. Defaults to False.

    Returns:
        `FP32MasterOptimizer`, to be passed to `model.compile`.

    Raises:
        ValueError: `optimizer` already scales the loss, has already been used, or an
            argument is out of range.
        RuntimeError: the backend does not have what an argument needs.

    Example:

    >>> model = keras.Sequential([keras.layers.Dense(1, dtype="float16")])
    >>> model.compile(optimizer=keras_mp.wrap("adam"), loss="mse")
    >>> model.optimizer
    FP32MasterOptimizer(Adam, loss_scale=DynamicLossScale(initial_scale=32768.0, \
growth_factor=2.0, backoff_factor=0.5, growth_interval=2000, hysteresis=1, \
min_scale=6.103515625e-05, max_scale=16777216.0), rounding='nearest')

    Reference: Mixed Precision Training, sections 3.1 and 3.2.
    """
    inner = keras.optimizers.get(optimizer)
    return FP32MasterOptimizer(
        inner,
        loss_scale,
        rounding,
        seed,
        all_reduce_dtype,
        name,
        masters,
        state,
        shard_state,
    )
