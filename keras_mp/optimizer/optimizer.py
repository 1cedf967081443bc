"""The optimizer of the paper: FP32 master weights and loss scaling around any other."""

import math
from collections.abc import Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any

import keras
from keras import ops

from keras_mp import keras_internals
from keras_mp.loss_scale import LossScale, as_loss_scale
from keras_mp.optimizer.arguments import (
    Int4State,
    Int8State,
    check_arguments,
    check_gradients,
    check_one_to_one,
    check_state,
    check_values_to_copy,
)
from keras_mp.optimizer.backend import backend, sum_gradients
from keras_mp.optimizer.checkpoint import (
    SavedState,
    deserialize_arguments,
    saved_state,
    serialize_arguments,
    warn_that_a_pickle_does_not_share,
)
from keras_mp.optimizer.compressed_step import plan_compressed, plan_options
from keras_mp.optimizer.compression import Rounding
from keras_mp.optimizer.gradients import (
    CheckOptions,
    GradientNorm,
    find_nonfinite,
    merge_checks,
    scaling_state,
    unscale,
)
from keras_mp.optimizer.inner_optimizer import (
    Replicas,
    exclude_masters_from_weight_decay,
    leaves,
    replicas_for,
)
from keras_mp.optimizer.loss_scaler import LossScaler, add_scalar
from keras_mp.optimizer.master_weights import MasterWeights, OutsideWrites
from keras_mp.optimizer.masters import Master, create_masters, path_of
from keras_mp.optimizer.properties import OptimizerProperties
from keras_mp.optimizer.rules import OPTIONS_AROUND_A_RULE, Rule, rule_of
from keras_mp.optimizer.sharding import sharded_state, to_numpy
from keras_mp.optimizer.sharding_tf import Owners
from keras_mp.optimizer.slot_codes import create_coded_slots
from keras_mp.optimizer.step import Step, plan
from keras_mp.regularizers import regularize_weights
from keras_mp.typing import Gradient, Strategy, Tensor, Variable


@keras.saving.register_keras_serializable(package="keras_mp")
class FP32MasterOptimizer(OptimizerProperties):
    """An optimizer that updates FP32 masters from scaled gradients.

    A training step, in the order of the methods below:

    1. `scale_loss` multiplies the loss, and so all gradients, by the loss scale.
    2. `apply` tells whether all gradients on all replicas are finite. If not, only the
       state of the loss scale changes (step 7).
    3. The gradients are cast to FP32 and divided by the scale.
    4. A master takes over what was written to its weight since the last step.
    5. The inner optimizer (clipping, decay, accumulation, moments, EMA, constraints)
       updates the masters.
    6. Every weight becomes its master, rounded. A variable stored in FP32 is its own
       master.
    7. The rule of the loss scale chooses the scale of the next step.

    Args:
        inner_optimizer: `keras.optimizers.Optimizer`, not yet built.
        loss_scale: as for `wrap`.
        rounding: as for `wrap`.
        seed: as for `wrap`.
        all_reduce_dtype: as for `wrap`.
        name: as for `wrap`.
        masters: as for `wrap`.
        state: as for `wrap`.
        shard_state: as for `wrap`.

    Raises:
        ValueError: as for `wrap`.
        RuntimeError: as for `wrap`.

    Example:

    >>> weight = keras.Variable([1.0], dtype="float16")
    >>> optimizer = keras_mp.FP32MasterOptimizer(
    ...     keras.optimizers.SGD(1e-4), loss_scale=1)
    >>> for _ in range(100):
    ...     optimizer.apply([keras.ops.ones(1, "float16")], [weight])
    >>> print(f"{weight.numpy()[0]:.4f}")
    0.9902

    Reference: Mixed Precision Training, sections 3.1 and 3.2.
    """

    def __init__(
        self,
        inner_optimizer: keras.Optimizer,
        loss_scale: "LossScale | FP32MasterOptimizer | float | str" = "dynamic",
        rounding: str = "nearest",
        seed: int = 0,
        all_reduce_dtype: str = "float32",
        name: str | None = None,
        masters: str | None = "float32",
        state: Int8State | Int4State | str = "float32",
        shard_state: bool = False,
    ) -> None:
        check_arguments(
            inner_optimizer, rounding, seed, all_reduce_dtype, name, shard_state
        )
        compressed = check_state(inner_optimizer, masters, state, rounding)
        super().__init__(inner_optimizer, name=name)
        self._compressed_state = compressed
        self.masters = masters
        self.state = state
        self.shard_state = shard_state
        self.rounding = rounding
        self.all_reduce_dtype = all_reduce_dtype
        track = partial(keras_internals.add_to_variables, self)
        self._seed_generator = keras.random.SeedGenerator(int(seed))
        track(self._seed_generator.state)
        self._scaling_state = scaling_state()
        self._rounding = Rounding(rounding, self._seed_generator)
        self._master_weights = MasterWeights([], self._rounding, None)
        self._outside_writes = OutsideWrites()
        self._replicas = Replicas()
        self._norm = GradientNorm()
        self._scaler = scaler_of(loss_scale)
        scalar = partial(add_scalar, self)
        self._last_round = self._scaler.add_user(self._scaling_state, scalar, track)
        self._last_overflow = scalar("last_overflow", -1)

    def build(self, variables: Sequence[keras.Variable]) -> None:
        """Creates the masters and builds the inner optimizer on them.

        Also puts `FP32Regularizer` around the regularizer of every weight that is
        stored in 16 bits.

        Args:
            variables: the trainable variables, in the order of the gradients.
        """
        if self.built:
            return
        strategy = backend.strategy_of(self)
        for optimizer in (self, *leaves(self.inner_optimizer)):
            backend.check_scope(backend.strategy_of(optimizer))
        variables = list(variables)
        self._replicas = replicas_for(
            self.inner_optimizer,
            variables,
            self.all_reduce_dtype,
            backend.replicas_in(strategy),
            self._wants_compression,
            self._owners(variables, strategy),
        )
        layouts = sharded_state(variables) if self.shard_state else nullcontext()
        with backend.scope_of(strategy), self._replicas.creation(), layouts:
            self._create_variables(variables, strategy)

    def _create_variables(self, variables: list[Variable], strategy: Strategy) -> None:
        """Does the work of `build`, in the scope of the strategy."""
        check_values_to_copy(self.inner_optimizer, variables)
        # Compressed state is updated by code that assigns to an FP32 weight everywhere.
        of_all = self._replicas.owners is not None and not self._wants_compression
        masters = create_masters(variables, self.masters, self._rounding, of_all)
        rule = rule_of(self.inner_optimizer, OPTIONS_AROUND_A_RULE)
        if rule is not None:
            self._create_coded_slots(masters, rule)
        self._master_weights = MasterWeights(masters, self._rounding, strategy)
        for variable in self._master_weights.own_variables:
            keras_internals.add_to_variables(self, variable)
        regularize_weights(variables)
        self._master_weights.initialize()
        exclude_masters_from_weight_decay(
            self.inner_optimizer, self._master_weights.separate
        )
        self.inner_optimizer.build([m.reference for m in masters if not m.slots])
        if of_all:
            # A file does not depend on whether FP32 weights have masters.
            for leaf in leaves(self.inner_optimizer):
                keras_internals.hide_trainable_variables(leaf)
        if rule is not None:
            self._master_weights.create_averages_and_accumulators(self.inner_optimizer)
        # Past the parent, whose `build` would make the inner slots from the weights.
        super(keras.optimizers.LossScaleOptimizer, self).build(variables)

    @property
    def _wants_compression(self) -> bool:
        return self.masters != "float32" or self._compressed_state is not None

    def _owners(self, variables: list[Variable], strategy: Strategy) -> Owners | None:
        """Returns who owns the state of each variable; None if all replicas do."""
        if not self.shard_state or backend.replicas_in(strategy) == 1:
            return None
        sizes = [self._bits_of_slots(v) * math.prod(v.shape) for v in variables]
        return Owners(strategy, variables, sizes, not self._wants_compression)

    def _create_coded_slots(self, masters: Sequence[Master], rule: Rule) -> None:
        """Gives masters the slots that are not FP32."""
        for master in masters:
            bits = self._bits_of_slots(master.weight)
            if bits < 32 and not master.slots:
                master.slots = create_coded_slots(
                    self.inner_optimizer,
                    master.reference,
                    path_of(master.weight),
                    rule.slots,
                    bits,
                )

    def _bits_of_slots(self, weight: Variable) -> int:
        """Returns the bits of each element of the slots of a weight."""
        compressed = self._compressed_state
        if compressed is None or not compressed.applies_to(weight):
            return 32
        return compressed.bits

    def scale_loss(self, loss: Tensor) -> Tensor:
        """Multiplies the loss by the current scale, in FP32.

        Args:
            loss: scalar tensor.

        Returns:
            Scalar tensor, at least float32.

        Example:

        >>> optimizer = keras_mp.wrap("sgd", loss_scale=8)
        >>> float(optimizer.scale_loss(0.5))
        4.0
        """
        scale = ops.copy(self.loss_scale)
        self._scaler.record_scaled_loss(scale, self._scaling_state)
        loss = ops.convert_to_tensor(loss)
        dtype = keras.backend.result_type(loss.dtype, "float32")
        return ops.cast(loss, dtype) * ops.cast(scale, dtype)

    def unscale_gradients(
        self,
        gradients: Sequence[Gradient],
        trainable_variables: Sequence[keras.Variable] | None = None,
    ) -> list[Any]:
        """Divides gradients by the scale, in FP32, for a loop that looks at them.

        The `apply` that follows, in the same function or in a branch or loop of it,
        takes them unchanged.

        Args:
            gradients: list of tensors, `tf.IndexedSlices` or None.
            trainable_variables: list of their variables. Defaults to those that the
                optimizer was built with.

        Returns:
            List like `gradients`, float32.

        Raises:
            RuntimeError: no loss was scaled; called twice before `apply`; or several
                replicas are to sum gradients in FP16, where unscaled ones are lost.
            ValueError: lists of different lengths.

        Example:

        >>> optimizer = keras_mp.wrap("sgd", loss_scale=8)
        >>> loss = optimizer.scale_loss(0.5)
        >>> gradients = [keras.ops.full((1,), 16.0, dtype="float16")]
        >>> optimizer.unscale_gradients(gradients)[0].numpy()
        array([2.], dtype=float32)
        """
        self._scaling_state.check_not_unscaled()
        self._replicas.check_may_unscale(self.all_reduce_dtype)
        self._scaler.check_a_loss_was_scaled()
        scale = self._scaling_state.scale_of_loss(self.loss_scale)
        if trainable_variables is None:
            known = keras_internals.trainable_variables(self)
            trainable_variables = known or [None] * len(gradients)
        check_one_to_one(gradients, trainable_variables)
        unscaled, check = unscale(
            self, gradients, trainable_variables, scale, self._check_options
        )
        self._scaling_state.record(scale, check)
        return unscaled

    def apply(
        self,
        grads: Sequence[Gradient],
        trainable_variables: Sequence[keras.Variable] | None = None,
    ) -> None:
        """Does a step, unless a gradient is not finite.

        Args:
            grads: list of tensors, `tf.IndexedSlices` or None: the gradients of the
                scaled loss, or what `unscale_gradients` returned.
            trainable_variables: list of their variables. Defaults to those that the
                optimizer was built with.

        Raises:
            ValueError: no gradient at all, an unknown variable, or lists of
                different lengths.
            RuntimeError: no loss was scaled, and the loss scale is not a constant 1; or
                `unscale_gradients` was called in another function.
        """
        grads = list(grads)
        if not grads:
            return
        known = keras_internals.trainable_variables(self)
        variables = list(trainable_variables or known)
        check_gradients(grads, variables)
        grads = backend.with_shapes(grads, variables)
        self._scaler.check_a_loss_was_scaled()
        if not self.built:
            backend.refuse_several_replicas()
            backend.run_eagerly(lambda: self.build(variables))
        self._master_weights.initialize()
        keras_internals.check_variables_are_known(self, variables)
        self._outside_writes.check(variables)
        indices = {keras_internals.variable_index(self, v) for v in variables}
        scale = self._scaling_state.divisor(self.loss_scale, indices)
        if self.gradient_sampler is not None:
            self.gradient_sampler.sample(grads, variables, scale)
        if self._replicas.sums_first:
            grads = sum_gradients(grads, self.all_reduce_dtype)
        step = Step(
            self.inner_optimizer,
            self._master_weights,
            self._masters_of(variables),
            grads,
            scale,
            self._replicas,
        )
        if self._master_weights.are_compressed:
            updates = plan_compressed(step)
        else:
            updates = plan_options(step) or plan(step)
        # Step 2. Some updates unscale the gradients (step 3) in the same pass.
        check = merge_checks(update.check(self._check_options) for update in updates)
        positions = [
            self._master_weights.index(master)
            for update in updates
            for master in update.step.given
        ]
        finite, first = find_nonfinite(check.nonfinite, positions)
        # What `unscale_gradients` returned may have been clipped since.
        check = check if scale is not None else self._scaling_state.check
        self._scaling_state.mark_applied(indices)
        is_summed = self._replicas.sums_first or self._replicas.count == 1
        self._norm.assign(check, None if is_summed else grads, scale)
        # Steps 3 to 6.
        for update in updates:
            update.apply(finite)
        self._outside_writes.take_note()
        # Step 7.
        self._scaler.advance(finite, check.largest, self._last_round)
        last = ops.convert_to_tensor(self._last_overflow)
        self._last_overflow.assign(ops.where(finite, last, first))

    @property
    def _check_options(self) -> CheckOptions:
        is_kept = self.gradient_norm is not None
        return CheckOptions(largest=self._scaler.needs_largest, sum_of_squares=is_kept)

    def save_own_variables(self, store: Any) -> None:
        """Saves FP32 masters and slots, in whatever form they are stored.

        Args:
            store: dict-like, to which arrays are added.
        """
        for i, entry in enumerate(self._saved_state().entries):
            store[str(i)] = to_numpy(entry.read())

    def __dir__(self) -> list[str]:
        # Keras saves what it finds here: an inner optimizer would be in a file twice,
        # and in the form of its storage.
        names = super().__dir__()
        return [x for x in names if x not in ("inner_optimizer", "optimizers")]

    def load_own_variables(self, store: Any) -> None:
        """Takes over the state of an optimizer, in whatever form that stored it.

        The state of a bare optimizer fits as well: its slots are loaded, and the loss
        scale does not change. State of another optimizer, or of weights of other
        shapes, is left out as a whole, with a warning that names a variable and both
        shapes. So is all state while this optimizer is not built.

        Args:
            store: dict-like, which `save_own_variables` has filled.
        """
        self._saved_state().load(store, self)

    def _saved_state(self) -> SavedState:
        of_inner = {id(variable) for variable in self.inner_optimizer.variables}
        own = [variable for variable in self.variables if id(variable) not in of_inner]
        return saved_state(own, self.inner_optimizer, self._master_weights)

    def get_config(self) -> dict[str, Any]:
        """Returns the constructor's arguments, serialized."""
        return serialize_arguments(self)

    @classmethod
    def from_config(
        cls, config: dict[str, Any], custom_objects: Any = None
    ) -> "FP32MasterOptimizer":
        """Returns the optimizer that `get_config` described.

        Raises:
            TypeError: an argument is missing, unknown or of the wrong type.
            ValueError: as for `wrap`, or a config inside is malformed.
        """
        return cls(**deserialize_arguments(config, custom_objects))

    def __reduce__(self) -> Any:
        warn_that_a_pickle_does_not_share(self._scaler)
        return super().__reduce__()

    def __repr__(self) -> str:
        inner = type(self.inner_optimizer).__name__
        return (
            f"{type(self).__name__}({inner}, loss_scale={self._scaler.rule!r}, "
            f"rounding={self.rounding!r}{self._forms()})"
        )

    def _forms(self) -> str:
        """Returns the forms that differ from the defaults, as `wrap` takes them."""
        given = {"masters": self.masters, "state": self.state}
        forms = "".join(f", {k}={v!r}" for k, v in given.items() if v != "float32")
        return forms + (", shard_state=True" if self.shard_state else "")


def scaler_of(loss_scale: Any) -> LossScaler:
    """Returns the `LossScaler` for an argument `loss_scale`.

    Args:
        loss_scale: what `as_loss_scale` takes, for a new one; an `FP32MasterOptimizer`
            or its `LossScaler`, which is then shared.
    """
    if isinstance(loss_scale, OptimizerProperties):
        return loss_scale._scaler
    if isinstance(loss_scale, LossScaler):
        return loss_scale
    return LossScaler(as_loss_scale(loss_scale))


def wrap(
    optimizer: keras.Optimizer | str | dict[str, Any],
    loss_scale: LossScale | FP32MasterOptimizer | float | str = "dynamic",
    rounding: str = "nearest",
    seed: int = 0,
    all_reduce_dtype: str = "float32",
    name: str | None = None,
    masters: str | None = "float32",
    state: Int8State | Int4State | str = "float32",
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
        seed: int, of all stochastic rounding. Defaults to 0.
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
            `"int8_remainders"`: the same in 8 bits, for masters of 24 bits. Each update
            is rounded to these stochastically, with a mean error of zero and an error
            of less than one unit in the 24th bit; two, near the middle between two
            weights.
            None: no masters; each update rounds the weights stochastically, and needs
            `rounding="stochastic"`. Defaults to `"float32"`.
        state: how the optimizer's own variables, such as the moments of Adam, are
            stored: `"float32"`, `"int8"` (8 bits and an exponent for each 32
            elements), `"int4"` (4 bits and such an exponent), or an `Int8State` or
            `Int4State`, which says for which variables. Defaults to `"float32"`. Both
            arguments but for the defaults are for the optimizers that have a kernel:
            SGD, Adam, AdamW, Nadam, Adamax, Lion, Adagrad, Adadelta, RMSprop and, for
            `masters`, Ftrl, Lamb and Adafactor.
        shard_state: bool, whether each of N devices holds only its share of the masters
            and of all other state that belongs to weights (ZeRO stage 1). With Adam a
            16-bit weight takes 4 + 12/N bytes a parameter on each, its gradient
            included, and 4 + 4.06/N with `masters="remainders", state="int8"`; a weight
            in FP32 takes 8 + 8/N on JAX, 8 + 12/N on TensorFlow. Files fit any number
            of devices. Without several devices nothing changes. Defaults to False.

            On TensorFlow, for a `tf.distribute.MirroredStrategy`: the state of a weight
            is whole, on one device. The largest goes first, to the device that holds
            the least: at most the mean of all and the largest. All bits are equal to
            training without it.

            On JAX, for the devices of a `keras.distribution` along the batch: a
            variable has the layout of its weight, and the batch axis at the first
            dimension that is free and that N divides; a variable without one stays
            whole on each device. Weights are bit-equal to training with whole state,
            unless the optimizer sums over a variable (`clipnorm`, `global_clipnorm`,
            Lamb, Adafactor, Muon): each device then sums its share first. Of several
            processes all must save.

    Returns:
        `FP32MasterOptimizer`, to be passed to `model.compile`.

    Raises:
        ValueError: `optimizer` already scales the loss, has already been used, or an
            argument is out of range.
        RuntimeError: the backend or the strategy does not have what an argument needs.

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
