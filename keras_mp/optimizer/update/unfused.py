"""The update by the inner optimizer itself, whichever it is."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from keras import ops

from keras_mp import keras_internals
from keras_mp.optimizer.backend import Runner, backend
from keras_mp.optimizer.inner_optimizer import touched_rows
from keras_mp.optimizer.master_weights import MasterWeights, are_distinct, needs_master


@dataclass
class InnerUpdate:
    """The step of any optimizer: it is given un-scaled FP32 gradients and the masters.

    Attributes:
        optimizer: `keras.optimizers.Optimizer`.
        own_masters: `MasterWeights`.
        gradients: list of tensors, `tf.IndexedSlices` or None, of the scaled loss.
        masters: list of their variables.
        scale: scalar float32 tensor that the gradients are divided by.
        replicas: int, how many do this step.
        run: the `Runner` that does it on all of them.
    """

    optimizer: Any
    own_masters: MasterWeights
    gradients: Sequence[Any]
    masters: Sequence[Any]
    scale: Any
    replicas: int
    run: Runner

    @property
    def given(self) -> list[Any]:
        """The masters that have a gradient."""
        pairs = zip(self.gradients, self.masters, strict=True)
        return [master for gradient, master in pairs if gradient is not None]

    def check(self) -> Any:
        """Returns which gradients are not finite: a bool tensor, one for each given."""
        self._unscaled, overflows = unscale(
            self.optimizer, self.gradients, self.masters, self.scale, self.replicas
        )
        return overflows

    def apply(self, finite: Any) -> None:
        """Updates slots, masters and weights if `finite` is true.

        Args:
            finite: scalar bool tensor, the same on every replica.
        """
        backend.cond_on_all_replicas(
            finite,
            self.run,
            self._update,
            self._unscaled,
            [*self.optimizer.variables, *self.own_masters.variables],
        )

    def _update(self, gradients: Sequence[Any]) -> None:
        rows = self._touched_rows(gradients)
        self.own_masters.pick_up(rows)
        self.optimizer.apply(list(gradients), list(self.masters))
        self.own_masters.write_back(rows)

    def _touched_rows(self, gradients: Sequence[Any]) -> dict[int, Any]:
        """Returns, by `id`, the masters of which only some rows can change."""
        follows_rows = self.replicas == 1 and are_distinct(self.masters)
        if not follows_rows or self.own_masters.rounding == "stochastic":
            return {}
        rows = {
            id(master): touched_rows(self.optimizer, gradient, master)
            for gradient, master in zip(gradients, self.masters, strict=True)
        }
        return {key: touched for key, touched in rows.items() if touched is not None}


def unscale(
    optimizer: Any,
    gradients: Sequence[Any],
    variables: Sequence[Any],
    scale: Any,
    replicas: int = 1,
) -> tuple[list[Any], Any]:
    """Divides gradients by the scale, in FP32, and tells which are not finite.

    Args:
        optimizer: the optimizer that knows which variables the gradient replaces.
        gradients: list of tensors, `tf.IndexedSlices` or None.
        variables: list of their variables.
        scale: scalar float32 tensor, or None for gradients that are un-scaled.
        replicas: int, over how many they will be summed: a gradient counts as not
            finite, too, where so many of its size would overflow.

    Returns:
        List like `gradients`, float32; bool tensor, one for each that is not None.
    """
    given = [i for i, gradient in enumerate(gradients) if gradient is not None]
    unscaled = list(gradients)
    if _fit_the_op(optimizer, gradients, variables, scale):
        from keras_mp.ops.kernels import update

        with update.beside(variables):
            values, overflows = update.unscale_gradients(
                [gradients[i] for i in given], scale
            )
        for i, value in zip(given, values, strict=True):
            unscaled[i] = value
        return unscaled, overflows
    for i in given:
        if not keras_internals.is_replaced_by_gradient(optimizer, variables[i]):
            unscaled[i] = _in_fp32(gradients[i], scale)
    return unscaled, overflows_of(unscaled, replicas)


def overflows_of(gradients: Sequence[Any], replicas: int = 1) -> Any:
    """Returns which gradients are not finite: a bool tensor, one for each given.

    Args:
        gradients: list of tensors, `tf.IndexedSlices` or None.
        replicas: as for `unscale`.
    """
    given = [gradient for gradient in gradients if gradient is not None]
    numbers = [g.values if backend.is_sparse(g) else g for g in given]
    if replicas > 1:
        numbers = [g * ops.cast(replicas, g.dtype) for g in numbers]
    return ops.stack([ops.logical_not(ops.all(ops.isfinite(g))) for g in numbers])


def _fit_the_op(
    optimizer: Any, gradients: Sequence[Any], variables: Sequence[Any], scale: Any
) -> bool:
    # Before `build`, gradients may be un-scaled whose variables are not known.
    are_known = all(variable is not None for variable in variables)
    if scale is None or not are_known or not backend.can_update(variables):
        return False
    from keras_mp.ops.kernels import update

    return all(
        gradient is None
        or (
            update.takes(gradient)
            and not keras_internals.is_replaced_by_gradient(optimizer, variable)
        )
        for gradient, variable in zip(gradients, variables, strict=True)
    )


def _in_fp32(gradient: Any, scale: Any) -> Any:
    if needs_master(gradient):
        gradient = ops.cast(gradient, "float32")
    if scale is None:
        return gradient
    return ops.divide(gradient, ops.cast(scale, gradient.dtype))
