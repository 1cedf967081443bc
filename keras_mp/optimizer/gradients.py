"""The gradients of a step: the scale that they have, and what a check finds in them.

Between `scale_loss` and `apply` an optimizer remembers what multiplied the loss, and
whether `unscale_gradients` has divided by it.
"""

import threading
from collections.abc import Iterable, Sequence, Set
from typing import Any, NamedTuple

import keras
from keras import ops

from keras_mp import keras_internals
from keras_mp.arguments import check_tensorflow
from keras_mp.optimizer.backend import backend, sum_gradients
from keras_mp.optimizer.masters import needs_master
from keras_mp.typing import Gradient, Strategy, Tensor, Variable


class ScalingState:
    """The scale that multiplied the loss, and whether gradients are unscaled.

    It holds only in the function in which it was recorded and in branches and loop
    bodies of that function: another function may be traced once and run many times.

    The scale of a loss holds for several `apply`, of different variables: the first has
    moved the current scale when the second divides. A second `apply` of the same
    variables is of another loss, scaled in some other function.

    Attributes:
        scale: scalar tensor, or None when none was recorded.
        check: `GradientCheck` of `unscale_gradients`, or None if it was not called.
    """

    scale: Any = None
    check: Any = None
    _used: bool = False
    _applied: frozenset[int] = frozenset()
    _function: Any = None
    _is_own: bool = False

    @property
    def unscaled(self) -> bool:
        """Whether `unscale_gradients` was called."""
        return self.check is not None

    def record(self, scale: Tensor, check: Any = None) -> None:
        """Records what holds in the current function, and drops earlier records."""
        self.scale, self.check = scale, check
        self._function = backend.current_function()
        self._used, self._is_own = False, True
        self._applied = frozenset()

    def record_shared(self, scale: Tensor) -> None:
        """Records the scale of a loss that another optimizer has scaled.

        The loss may be for both; an optimizer that scaled its own keeps that scale.
        """
        if not (self._is_own and not self._applied and self._is_here()):
            self.record(scale)
            self._is_own = False

    def scale_of_loss(self, current: Any) -> Any:
        """Returns the scale that the loss of this step was multiplied by.

        Not always the current one: another optimizer that shares the scale may have
        changed it since.

        Args:
            current: the variable that holds the current scale. If no loss was scaled, a
                copy of it is returned, which nobody can change.
        """
        return self.scale if self._is_here() else ops.copy(current)

    def divisor(self, current: Any, indices: Set[int]) -> Any:
        """Returns the scale that `apply` must divide by, None if that has been done.

        Args:
            current: as for `scale_of_loss`.
            indices: set of int, the positions of the variables in the optimizer.

        Raises:
            RuntimeError: gradients were unscaled in another function.
        """
        if self.unscaled and self._is_here():
            return None
        if not self._awaits_apply:
            if self._applied & indices:
                self._clear()
            return self.scale_of_loss(current)
        self._clear()
        raise RuntimeError(
            "`unscale_gradients` and `apply` must be called in the same function, or "
            "`apply` cannot know that the gradients are unscaled. Received: calls in "
            "two functions, and at least one is a tf.function. Move both into it; "
            "`apply` may be in a branch or loop after `unscale_gradients`."
        )

    def check_not_unscaled(self) -> None:
        """Checks that gradients of this step have not been unscaled yet.

        Raises:
            RuntimeError: they have.
        """
        if self._awaits_apply and self._is_here():
            raise RuntimeError(
                "The gradients of a step must be unscaled once. Received: a second "
                "call of `unscale_gradients` before `apply`. Call it once, on all "
                "gradients; to add up gradients of several batches set "
                "`gradient_accumulation_steps` on the inner optimizer."
            )

    def mark_applied(self, indices: Set[int]) -> None:
        """Records an `apply`. What a branch used, another branch may also use.

        Args:
            indices: as for `divisor`.
        """
        if not self._is_here():
            self._clear()
        elif self._function != backend.current_function():
            self._used = True
        else:
            self.check, self._applied = None, self._applied | indices

    def _is_here(self) -> bool:
        """Tells whether the record was made in the current function."""
        return self.scale is not None and backend.is_inside(self._function)

    @property
    def _awaits_apply(self) -> bool:
        """Whether gradients have been unscaled and not applied."""
        return self.unscaled and not self._used

    def _clear(self) -> None:
        self.scale, self.check, self._used = None, None, False
        self._function, self._is_own, self._applied = None, False, frozenset()


class ThreadScalingState(threading.local, ScalingState):
    """A state for each thread: in TensorFlow a replica is a thread."""


def scaling_state() -> ScalingState:
    """Returns a state, of a class that the backend's compiler takes."""
    # `torch.compile` cannot trace a `threading.local`.
    return (
        ThreadScalingState()
        if keras.backend.backend() == "tensorflow"
        else ScalingState()
    )


class CheckOptions(NamedTuple):
    """What a check is to compute in addition to `nonfinite`.

    Attributes:
        largest: bool.
        sum_of_squares: bool.
    """

    largest: bool = False
    sum_of_squares: bool = False


class GradientCheck(NamedTuple):
    """What a check of unscaled gradients has found.

    Attributes:
        nonfinite: bool tensor, one for each gradient: whether it is not finite.
        largest: scalar float32 tensor, the largest absolute element of all of them, if
            they are finite; or None.
        sum_of_squares: scalar float32 tensor, of all their elements; or None.
    """

    nonfinite: Any
    largest: Any = None
    sum_of_squares: Any = None


def merge_checks(checks: Iterable[GradientCheck]) -> GradientCheck:
    """Returns the check of all gradients, given checks of parts of them."""
    nonfinite, largest, sums = zip(*checks, strict=True)
    return GradientCheck(
        ops.concatenate(nonfinite),
        None if None in largest else ops.max(ops.stack(largest)),
        None if None in sums else ops.sum(ops.stack(sums)),
    )


def check_of_kernel(
    largest: Tensor, sum_of_squares: Tensor, options: CheckOptions
) -> GradientCheck:
    """Returns the `GradientCheck` for what a native op has found.

    Args:
        largest: float32 tensor, the largest magnitude of each gradient.
        sum_of_squares: scalar float32 tensor.
        options: `CheckOptions`.
    """
    return GradientCheck(
        ops.logical_not(ops.isfinite(largest)),
        ops.max(largest) if options.largest else None,
        sum_of_squares if options.sum_of_squares else None,
    )


def largest_of(gradients: Sequence[Gradient]) -> Tensor:
    """Returns the largest absolute element of finite gradients, a scalar float32.

    Args:
        gradients: list of tensors or `tf.IndexedSlices`.
    """
    of_each = [ops.max(ops.abs(x), initial=0) for x in _values(gradients)]
    return ops.max(ops.stack([ops.zeros(()), *of_each]))


def sum_of_squares_of(gradients: Sequence[Gradient]) -> Tensor:
    """Returns the sum of the squares of all elements, a scalar float32.

    Args:
        gradients: as for `largest_of`.
    """
    of_each = [ops.sum(ops.square(x)) for x in _values(gradients)]
    return ops.sum(ops.stack([ops.zeros(()), *of_each]))


def _values(gradients: Sequence[Gradient]) -> list[Any]:
    values = [g.values if backend.is_sparse(g) else g for g in gradients]
    return [ops.cast(x, "float32") for x in values]


def nonfinite_of(gradients: Sequence[Gradient], replicas: int = 1) -> Tensor:
    """Tells which gradients are not finite: a bool tensor, one for each not None.

    Args:
        gradients: list of tensors, `tf.IndexedSlices` or None.
        replicas: as for `unscale`.
    """
    given = [gradient for gradient in gradients if gradient is not None]
    values = [g.values if backend.is_sparse(g) else g for g in given]
    if replicas > 1:
        values = [x * ops.cast(replicas, x.dtype) for x in values]
    return ops.stack([ops.logical_not(ops.all(ops.isfinite(x))) for x in values])


def find_nonfinite(nonfinite: Tensor, positions: Sequence[int]) -> tuple[Any, Any]:
    """Tells whether all gradients of all replicas are finite, and which is not.

    Args:
        nonfinite: bool tensor: which gradients of this replica are not finite.
        positions: list of the positions of their variables in the optimizer.

    Returns:
        Scalar bool tensor; scalar int tensor, the position of the first variable with
        a gradient that is not finite, or one that no variable has.
    """
    replicas = backend.sum_over_replicas(ops.cast(nonfinite, "float32"))
    is_finite = ops.equal(replicas, 0)
    none = max(positions) + 1
    first = ops.min(ops.where(is_finite, none, ops.convert_to_tensor(positions, "int")))
    return ops.all(is_finite), first


def unscale(
    optimizer: keras.Optimizer,
    gradients: Sequence[Gradient],
    variables: Sequence[Variable],
    scale: Tensor,
    options: CheckOptions,
    replicas: int = 1,
) -> tuple[list[Any], GradientCheck]:
    """Divides gradients by the scale, in FP32, and checks them.

    Args:
        optimizer: the optimizer that tells which variables their gradient replaces.
        gradients: list of tensors, `tf.IndexedSlices` or None.
        variables: list of their variables.
        scale: scalar float32 tensor, or None for gradients that are unscaled already.
        options: `CheckOptions`.
        replicas: int, over how many the gradients will be summed. A gradient also
            counts as not finite if the sum of so many of its size would overflow.

    Returns:
        List like `gradients`, float32; `GradientCheck` of those that are not None. Its
        `largest` and `sum_of_squares` leave out gradients that replace their variables.
    """
    given = [i for i, gradient in enumerate(gradients) if gradient is not None]
    unscaled = list(gradients)
    if _fit_the_kernel(optimizer, gradients, variables, scale):
        from keras_mp.ops.kernels import update

        with update.device_of(variables):
            values, largest, sum_of_squares = update.unscale_gradients(
                [gradients[i] for i in given], scale, options.sum_of_squares
            )
        for i, value in zip(given, values, strict=True):
            unscaled[i] = value
        return unscaled, check_of_kernel(largest, sum_of_squares, options)
    scaled = [
        i
        for i in given
        if not keras_internals.is_replaced_by_gradient(optimizer, variables[i])
    ]
    for i in scaled:
        unscaled[i] = _in_fp32(gradients[i], scale)
    values = [unscaled[i] for i in scaled]
    return unscaled, GradientCheck(
        nonfinite_of(unscaled, replicas),
        largest_of(values) if options.largest else None,
        sum_of_squares_of(values) if options.sum_of_squares else None,
    )


def _fit_the_kernel(
    optimizer: keras.Optimizer,
    gradients: Sequence[Gradient],
    variables: Sequence[Variable],
    scale: Tensor,
) -> bool:
    # Gradients may be unscaled before `build`, when their variables are not known.
    are_known = all(variable is not None for variable in variables)
    if scale is None or not are_known or not backend.can_update(variables):
        return False
    from keras_mp.ops.kernels import update

    return all(
        gradient is None
        or (
            update.supports(gradient)
            and not keras_internals.is_replaced_by_gradient(optimizer, variable)
        )
        for gradient, variable in zip(gradients, variables, strict=True)
    )


def _in_fp32(gradient: Gradient, scale: Tensor) -> Any:
    if needs_master(gradient):
        gradient = ops.cast(gradient, "float32")
    if scale is None:
        return gradient
    return ops.divide(gradient, ops.cast(scale, gradient.dtype))


def check_can_keep_norm() -> None:
    """Checks that the norm of the gradients can be kept.

    Raises:
        RuntimeError: Keras's backend is not TensorFlow.
    """
    check_tensorflow(
        "Keeping the norm of the gradients, as `LossScaleCallback(log_dir=...)` does,",
        "Leave out `log_dir`",
    )


class GradientNorm:
    """Keeps the norm of the unscaled gradients of the last step, once asked to.

    Its variable is none of the optimizer's, so files do not change.

    Attributes:
        variable: scalar float32 variable, or None before `keep`.
    """

    variable: Any = None

    def keep(self, strategy: Strategy) -> None:
        """Creates the variable.

        Args:
            strategy: the strategy that the optimizer was created in.

        Raises:
            RuntimeError: as for `check_can_keep_norm`.
        """
        check_can_keep_norm()
        with backend.scope_of(strategy):
            self.variable = keras.Variable(
                0.0,
                trainable=False,
                dtype="float32",
                aggregation="only_first_replica",
                name="gradient_norm",
            )

    def assign(
        self, check: GradientCheck, parts: Sequence[Any] | None, scale: Tensor
    ) -> None:
        """Sets the norm to the norm of a step, if it is kept.

        Args:
            check: `GradientCheck` of the gradients.
            parts: list of this replica's gradients or of None, if they are not summed
                over the replicas yet; or None.
            scale: scalar float32 tensor that the parts are divided by, or None.
        """
        if self.variable is None:
            return
        if parts is None:
            self.variable.assign(ops.sqrt(check.sum_of_squares))
            return
        sums = [g for g in sum_gradients(parts, "float32") if g is not None]
        norm = ops.sqrt(sum_of_squares_of(sums))
        self.variable.assign(norm if scale is None else norm / scale)
