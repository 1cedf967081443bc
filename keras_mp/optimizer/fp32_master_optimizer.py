"""The wrapper that gives any Keras optimizer FP32 masters and loss scaling."""

import contextlib
import warnings
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import keras
from keras import ops

from keras_mp import keras_internals
from keras_mp.arguments import shown, whole_number
from keras_mp.loss_scale import as_loss_scale
from keras_mp.optimizer.backend import backend
from keras_mp.optimizer.inner_optimizer import (
    check_inner,
    check_values_to_copy,
    exclude_from_weight_decay_too,
    leaves,
)
from keras_mp.optimizer.loss_scale_properties import RuledOptimizer
from keras_mp.optimizer.loss_scaler import LossScaler, add_scalar
from keras_mp.optimizer.master_weights import MasterWeights, create_masters
from keras_mp.optimizer.penalties import regularize_weights
from keras_mp.optimizer.rounding import ROUNDING_MODES
from keras_mp.optimizer.shared_loss_scale import (
    deserialize_scale,
    serialize_scaler,
    warn_that_a_pickle_does_not_share,
)
from keras_mp.optimizer.step_notes import step_notes
from keras_mp.optimizer.update.cross_replica import (
    Execution,
    check_all_reduce_dtype,
    choose_execution,
    sum_gradients,
)
from keras_mp.optimizer.update.plan import plan
from keras_mp.optimizer.update.unfused import overflows_of, unscale
from keras_mp.serialization import deserialize, serialize_optimizer

_BACKENDS = ("tensorflow", "jax", "torch")


def wrap(
    optimizer: Any,
    loss_scale: Any = "dynamic",
    rounding: str = "nearest",
    seed: int = 0,
    all_reduce_dtype: str = "float32",
    name: str | None = None,
) -> "FP32MasterOptimizer":
    """Gives `optimizer` FP32 master weights and loss scaling.

    Args:
        optimizer: `keras.optimizers.Optimizer`, its name or its config.
        loss_scale: `"dynamic"`, a positive number (a constant scale), a `LossScale`,
            or another `FP32MasterOptimizer` whose scale this one is to share. A step of
            all of them then counts as one: the scale moves once until one of them
            applies again, and backs off if any of them overflowed. Their counters are
            shared; `iterations` and `last_overflow` are each one's own. Wrap them all
            before a train function is traced, or it moves the scale by itself. Defaults
            to `"dynamic"`.
        rounding: `"nearest"` (to even) or `"stochastic"`, how masters become
            weights. Defaults to `"nearest"`.
        seed: int, of stochastic rounding. Defaults to 0.
        all_reduce_dtype: `"float32"` or `"float16"`, in which the replicas of a
            `tf.distribute.Strategy` sum their gradients. FP16 halves the traffic; the
            sum of n replicas is off by up to n roundings of the sum of its terms'
            sizes, and where it overflows the step is skipped. Where the optimizer clips
            or accumulates, the sum is then copied in FP32 from the first replica of a
            machine to its others. Defaults to `"float32"`.
        name: str. Defaults to a name made from the class.

    Returns:
        `FP32MasterOptimizer`, to be passed to `model.compile`.

    Raises:
        ValueError: `optimizer` already scales the loss, has already been used, or an
            argument is out of range.

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
        inner, loss_scale, rounding, seed, all_reduce_dtype, name
    )


@keras.saving.register_keras_serializable(package="keras_mp")
class FP32MasterOptimizer(RuledOptimizer):
    """An optimizer that updates FP32 masters from scaled gradients.

    A step: are all gradients finite? If not, only the loss scale's own state
    changes. If so, the gradients are cast to FP32 and divided by the scale, the
    inner optimizer (clipping, decay, accumulation, slots, EMA, constraints) updates
    the masters, and every weight becomes its master, rounded. A variable stored in
    FP32 is its own master. A weight that someone else changed since the last step
    is taken over by its master first.

    Args:
        inner_optimizer: `keras.optimizers.Optimizer`, not yet built.
        loss_scale: as for `wrap`.
        rounding: as for `wrap`.
        seed: as for `wrap`.
        all_reduce_dtype: as for `wrap`.
        name: as for `wrap`.

    Raises:
        ValueError: as for `wrap`.

    Example:

    >>> weight = keras.Variable([1.0], dtype="float16")
    >>> optimizer = keras_mp.FP32MasterOptimizer(
    ...     keras.optimizers.SGD(1e-4), loss_scale=1)
    >>> for _ in range(1000):
    ...     optimizer.apply([keras.ops.ones(1, "float16")], [weight])
    >>> print(f"{weight.numpy()[0]:.4f}")
    0.8999

    Reference: Mixed Precision Training, sections 3.1 and 3.2.
    """

    def __init__(
        self,
        inner_optimizer: Any,
        loss_scale: Any = "dynamic",
        rounding: str = "nearest",
        seed: int = 0,
        all_reduce_dtype: str = "float32",
        name: str | None = None,
    ) -> None:
        _check_backend()
        check_inner(inner_optimizer)
        if rounding not in ROUNDING_MODES:
            raise ValueError(
                '`rounding` must be "nearest" or "stochastic". '
                f"Received: rounding={shown(rounding)}. The paper trained with "
                '"nearest"; Appendix A compares the two.'
            )
        if not isinstance(name, str | None):
            raise TypeError(
                f"`name` must be a str or None. Received: name={shown(name)}."
            )
        seed = whole_number("seed", seed, "Try 0.", least=0)
        check_all_reduce_dtype(all_reduce_dtype)
        super().__init__(inner_optimizer, name=name)
        self.rounding = rounding
        self.all_reduce_dtype = all_reduce_dtype
        self._seed_generator = keras.random.SeedGenerator(seed)
        keras_internals.add_to_variables(self, self._seed_generator.state)
        self._notes = step_notes()
        self._own_masters = MasterWeights([], [], rounding, self._seed_generator, None)
        self._execution = Execution()
        self._scaler = _scaler_of(loss_scale)
        self._last_round = self._scaler.add_user(
            self._notes,
            self.add_variable,
            partial(keras_internals.add_to_variables, self),
        )
        self._last_overflow = add_scalar(self.add_variable, "last_overflow", -1)

    @property
    def master_weights(self) -> list[Any]:
        """The FP32 variables that are updated, in the order of the weights.

        Each has the name and path of its weight; a weight stored in FP32 is listed
        itself. Empty before `build`.
        """
        return list(self._masters)

    @property
    def _masters(self) -> list[Any]:
        # Not an attribute: Keras saves the variables in a list that is one, and those
        # of the model among these are the model's.
        return self._own_masters.all

    @property
    def last_overflow(self) -> str | None:
        """The path of the first variable that was not finite in the last overflow.

        None before the first overflow. Reading it waits for the device.
        """
        index = int(ops.convert_to_numpy(self._last_overflow))
        return (
            None
            if index < 0
            else _path(keras_internals.trainable_variables(self)[index])
        )

    def build(self, variables: Sequence[Any]) -> None:
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
        self._execution = choose_execution(
            self.inner_optimizer,
            variables,
            self.all_reduce_dtype,
            backend.replicas_in(strategy),
        )
        with backend.scope_of(strategy), self._execution.creation():
            self._create_variables(variables)

    def _create_variables(self, variables: list[Any]) -> None:
        """Does the work of `build`, in the scope of the strategy."""
        check_values_to_copy(self.inner_optimizer, variables)
        self._own_masters = MasterWeights(
            variables,
            create_masters(variables),
            self.rounding,
            self._seed_generator,
            backend.strategy_of(self),
        )
        for _, master in self._own_masters.pairs:
            keras_internals.add_to_variables(self, master)
        regularize_weights(variables)
        self._own_masters.fill()
        exclude_from_weight_decay_too(self.inner_optimizer, self._own_masters.pairs)
        self.inner_optimizer.build(self._masters)
        # Past the parent, whose `build` would make the inner slots from the weights.
        super(keras.optimizers.LossScaleOptimizer, self).build(variables)

    def exclude_from_weight_decay(
        self, var_list: Any = None, var_names: Any = None
    ) -> None:
        """Excludes variables from the inner optimizer's weight decay.

        Args:
            var_list: list of weights.
            var_names: list of str, patterns searched for in the names.
        """
        self.inner_optimizer.exclude_from_weight_decay(var_list, var_names)
        exclude_from_weight_decay_too(self.inner_optimizer, self._own_masters.pairs)

    def scale_loss(self, loss: Any) -> Any:
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
        self._scaler.has_scaled = True
        scale = self._read_scale()
        for notes in self._scaler.notes:
            notes.offer(scale)
        self._notes.take(scale, unscaled=False)
        loss = ops.convert_to_tensor(loss)
        dtype = keras.backend.result_type(loss.dtype, "float32")
        return ops.cast(loss, dtype) * ops.cast(scale, dtype)

    def get_scaled_loss(self, loss: Any) -> Any:
        """`scale_loss`, under the name it had in tf.keras."""
        return self.scale_loss(loss)

    def unscale_gradients(
        self, gradients: Sequence[Any], trainable_variables: Any = None
    ) -> list[Any]:
        """Divides gradients by the scale, in FP32, for a loop that looks at them.

        The `apply` that follows, in the same function or in a branch or loop of it,
        takes them as they are.

        Args:
            gradients: list of tensors, `tf.IndexedSlices` or None.
            trainable_variables: list of their variables. Defaults to those that the
                optimizer was built with.

        Returns:
            List like `gradients`, float32.

        Raises:
            RuntimeError: called twice before `apply`, or several replicas are to sum
                gradients in FP16, where un-scaled ones are lost.
            ValueError: lists of different lengths.

        Example:

        >>> optimizer = keras_mp.wrap("sgd", loss_scale=8)
        >>> loss = optimizer.scale_loss(0.5)
        >>> gradients = [keras.ops.full((1,), 16.0, dtype="float16")]
        >>> optimizer.unscale_gradients(gradients)[0].numpy()
        array([2.], dtype=float32)
        """
        if self._notes.awaits_apply and self._notes.is_here():
            raise RuntimeError(
                "The gradients of a step must be un-scaled once. Received: a second "
                "call of `unscale_gradients` before `apply`. Call it once, on all "
                "gradients; to add up gradients of several batches set "
                "`gradient_accumulation_steps` on the inner optimizer."
            )
        if self._execution.is_joint and self.all_reduce_dtype == "float16":
            raise RuntimeError(
                "Gradients that are summed in FP16 must be scaled. Received: a call of "
                '`unscale_gradients` with all_reduce_dtype="float16" on several '
                'replicas. Choose "float32", or do not un-scale: clipvalue, clipnorm '
                "and global_clipnorm of the inner optimizer clip the sum."
            )
        scale = self._scale_in_use()
        if trainable_variables is None:
            trainable_variables = keras_internals.trainable_variables(self) or [
                None
            ] * len(gradients)
        _check_one_to_one(gradients, trainable_variables)
        self._notes.take(scale, unscaled=True)
        return unscale(self, gradients, trainable_variables, scale)[0]

    def get_unscaled_gradients(self, gradients: Sequence[Any]) -> list[Any]:
        """`unscale_gradients`, under the name it had in tf.keras."""
        return self.unscale_gradients(gradients)

    def _scale_in_use(self) -> Any:
        """Returns the scale that the loss of this step was multiplied by.

        Not always the current one: another optimizer that shares the scale may have
        changed it since. Where this one scaled no loss, that of the other is for both.
        """
        if self._notes.is_here():
            return self._notes.scale
        return self._read_scale()

    def _read_scale(self) -> Any:
        """Returns a copy of the scale, which another optimizer cannot change."""
        return ops.copy(self.loss_scale)

    def apply(self, grads: Sequence[Any], trainable_variables: Any = None) -> None:
        """Does a step, unless a gradient is not finite.

        Args:
            grads: list of tensors, `tf.IndexedSlices` or None: the gradients of the
                scaled loss, or what `unscale_gradients` returned.
            trainable_variables: list of their variables. Defaults to those that the
                optimizer was built with.

        Raises:
            ValueError: no gradient at all, an unknown variable, or lists of
                different lengths.
            RuntimeError: `unscale_gradients` was called in another function.
        """
        grads = list(grads)
        if not grads:
            return
        variables = list(
            trainable_variables or keras_internals.trainable_variables(self)
        )
        _check_one_to_one(grads, variables)
        if all(gradient is None for gradient in grads):
            raise ValueError(
                "No gradients provided for any variable. Received: None for all of "
                f"{[_path(v) for v in variables]}. Is the loss computed from them, "
                "inside the tape?"
            )
        if not self.built:
            backend.refuse_several_replicas()
            backend.outside_functions(lambda: self.build(variables))
        self._own_masters.fill()
        keras_internals.check_variables_are_known(self, variables)
        scale = self._divisor()
        if self._execution.is_joint:
            grads = sum_gradients(grads, self.all_reduce_dtype)
        masters = [
            self._masters[keras_internals.variable_index(self, v)] for v in variables
        ]
        updates = plan(
            self.inner_optimizer,
            self._own_masters,
            grads,
            masters,
            scale,
            backend.replicas_in(backend.strategy_of(self)),
            self._execution.run,
        )
        self._notes.use()
        overflows = ops.concatenate([update.check() for update in updates])
        given = [master for update in updates for master in update.given]
        finite, overflow = self._decide(overflows, given)
        for update in updates:
            update.apply(finite)
        self._scaler.advance(finite, self._last_round)
        last = ops.convert_to_tensor(self._last_overflow)
        self._last_overflow.assign(ops.where(finite, last, overflow))

    def _divisor(self) -> Any:
        """Returns the scale that `apply` must divide by, or None."""
        if self._notes.unscaled and self._notes.is_here():
            return None
        if not self._notes.awaits_apply:
            self._warn_if_the_loss_was_never_scaled()
            return self._scale_in_use()
        self._notes.clear()
        raise RuntimeError(
            "`unscale_gradients` and `apply` must be called in the same function, or "
            "`apply` cannot know that the gradients are un-scaled. Received: calls in "
            "two functions, of which at least one is a tf.function. Move both into it; "
            "`apply` may stand in a branch or loop after `unscale_gradients`."
        )

    def _warn_if_the_loss_was_never_scaled(self) -> None:
        if self._scaler.has_scaled or self._scaler.rule.initial_scale == 1:
            return
        self._scaler.has_scaled = True
        warnings.warn(
            "`apply` divides the gradients by the loss scale, but `scale_loss` was "
            "never called, so the updates will be too small. Received: a loss scale "
            f"that starts at {self._scaler.rule.initial_scale}. Inside the tape, write "
            "`loss = optimizer.scale_loss(loss)`; if the loss is scaled elsewhere, "
            "ignore this.",
            stacklevel=4,
        )

    def _decide(self, overflows: Any, masters: Sequence[Any]) -> tuple[Any, Any]:
        """Returns whether all gradients of all replicas are finite, and which is not.

        Args:
            overflows: bool tensor: which gradients of this replica are not finite.
            masters: list of the masters that they belong to.

        Returns:
            Scalar bool tensor; scalar int tensor, the position of the first variable
            with a gradient that is not.
        """
        counts = backend.sum_over_replicas(ops.cast(overflows, "float32"))
        positions = ops.convert_to_tensor(
            [keras_internals.variable_index(self.inner_optimizer, m) for m in masters],
            dtype=self._last_overflow.dtype,
        )
        none = len(self._masters)
        first = ops.min(ops.where(ops.equal(counts, 0), none, positions))
        return ops.all(ops.equal(counts, 0)), first

    def check_finite(self, grads: Sequence[Any]) -> Any:
        """Tells whether all gradients of all replicas are finite.

        Args:
            grads: list of tensors, `tf.IndexedSlices` or None, for the variables
                that the optimizer was built with.

        Returns:
            Scalar bool tensor.
        """
        given = zip(grads, self._masters, strict=True)
        masters = [master for gradient, master in given if gradient is not None]
        return self._decide(overflows_of(grads), masters)[0]

    def stateless_apply(
        self, optimizer_variables: Any, grads: Any, trainable_variables: Any
    ) -> Any:
        """Returns what `apply` makes of variables that are given as tensors.

        For the JAX backend, whose `fit` and functions under `jax.jit` call it; that
        of TensorFlow has no stateless optimizers.

        Args:
            optimizer_variables: list of tensors, the values of `variables`.
            grads: list of tensors or None, as for `apply`.
            trainable_variables: list of tensors, the values of the variables that the
                optimizer was built with.

        Returns:
            Two lists of tensors: the new `trainable_variables` and
            `optimizer_variables`.
        """
        return super(keras.optimizers.LossScaleOptimizer, self).stateless_apply(
            optimizer_variables, grads, trainable_variables
        )

    def current_masters(self) -> dict[int, Any]:
        """Returns the FP32 value of every weight that has a master of its own.

        Where someone wrote to a weight after the last step, that is what was
        written; the master itself takes it over in the next step.

        Returns:
            Dict from the `id` of a weight to a float32 tensor.
        """
        return self._own_masters.values()

    @contextlib.contextmanager
    def changing_masters(self) -> Iterator[None]:
        """Has the weights follow what is written to the masters inside.

        For code such as a callback that swaps them for their moving average. On
        entry the masters take over what was written to their weights; on exit, after
        an exception too, the weights become the masters, rounded. A change of the
        weights needs no such care.

        Example:

        >>> weight = keras.Variable([1.0], dtype="float16")
        >>> optimizer = keras_mp.wrap("sgd")
        >>> optimizer.build([weight])
        >>> with optimizer.changing_masters():
        ...     optimizer.master_weights[0].assign([2.0])
        <tf.Tensor: ...>
        >>> float(weight[0])
        2.0
        """
        self._own_masters.pick_up({})
        try:
            yield
        finally:
            self._own_masters.write_back({})

    def finalize_variable_values(self, var_list: Sequence[Any]) -> None:
        """Overwrites weights with their moving average, if the optimizer keeps one.

        Args:
            var_list: list of the weights.
        """
        if not any(leaf.use_ema for leaf in leaves(self.inner_optimizer)):
            return
        masters = [
            self._masters[keras_internals.variable_index(self, v)] for v in var_list
        ]
        with self.changing_masters():
            self.inner_optimizer.finalize_variable_values(masters)
            if keras.backend.backend() == "jax":
                # Keras has made a master and its average one buffer, and the next
                # `fit` cannot donate a buffer twice.
                for master in masters:
                    master.assign(ops.copy(master))

    def get_config(self) -> dict[str, Any]:
        """Returns the constructor's arguments, serialized."""
        return {
            "inner_optimizer": serialize_optimizer(self.inner_optimizer),
            "loss_scale": serialize_scaler(self._scaler),
            "rounding": self.rounding,
            "seed": self._seed_generator.get_config()["seed"],
            "all_reduce_dtype": self.all_reduce_dtype,
            "name": self.name,
        }

    @classmethod
    def from_config(
        cls, config: dict[str, Any], custom_objects: Any = None
    ) -> "FP32MasterOptimizer":
        """Returns the optimizer that `get_config` described.

        Raises:
            TypeError: an argument is missing, unknown or of the wrong type.
            ValueError: as for `wrap`, or a config inside is malformed.
        """
        config = dict(config)
        config["inner_optimizer"] = deserialize(
            "inner_optimizer",
            config.get("inner_optimizer"),
            keras.optimizers.Optimizer,
            "optimizers",
            custom_objects,
        )
        scale = config.get("loss_scale", "dynamic")
        if not isinstance(scale, FP32MasterOptimizer):
            config["loss_scale"] = deserialize_scale(scale, custom_objects)
        return cls(**config)

    def __reduce__(self) -> Any:
        warn_that_a_pickle_does_not_share(self._scaler)
        return super().__reduce__()

    def __repr__(self) -> str:
        inner = type(self.inner_optimizer).__name__
        return (
            f"{type(self).__name__}({inner}, loss_scale={self._scaler.rule!r}, "
            f"rounding={self.rounding!r})"
        )


def _scaler_of(loss_scale: Any) -> LossScaler:
    if isinstance(loss_scale, FP32MasterOptimizer):
        return loss_scale._scaler
    if isinstance(loss_scale, LossScaler):
        return loss_scale
    return LossScaler(as_loss_scale(loss_scale))


def _path(variable: Any) -> str:
    return getattr(variable, "path", variable.name)


def _check_one_to_one(gradients: Sequence[Any], variables: Sequence[Any]) -> None:
    if len(variables) != len(gradients):
        raise ValueError(
            "Gradients must match variables one to one. Received: "
            f"{len(gradients)} gradients, {len(variables)} variables. Pass the "
            "variables that the gradients belong to, in the same order."
        )


def _check_backend() -> None:
    if keras.backend.backend() not in _BACKENDS:
        raise RuntimeError(
            f"FP32MasterOptimizer needs Keras on one of the backends {_BACKENDS}. "
            f"Received: keras.backend.backend()={keras.backend.backend()!r}. Set "
            "KERAS_BACKEND=tensorflow before Keras is imported."
        )
