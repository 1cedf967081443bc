"""The master weights of an optimizer, as users and callbacks read and change them."""

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import keras

from keras_mp import keras_internals
from keras_mp.optimizer.gradients import find_nonfinite, nonfinite_of
from keras_mp.optimizer.inner_optimizer import exclude_masters_from_weight_decay
from keras_mp.optimizer.loss_scale_properties import LossScaleProperties
from keras_mp.optimizer.master_weights import (
    MasterWeights,
    OutsideWrites,
    keeps_average,
    overwrite_with_average,
)
from keras_mp.optimizer.masters import needs_master, path_of


class MasterWeightsProperties(LossScaleProperties):
    """The part of `FP32MasterOptimizer` that gives access to its `MasterWeights`."""

    _master_weights: MasterWeights
    _outside_writes: OutsideWrites
    # What `NumericsCallback` has `apply` show its gradients to.
    gradient_sampler: Any = None

    @property
    def iterations(self) -> Any:
        """The variable that counts the steps of the inner optimizer.

        That of the parent counts none before Keras 3.9.
        """
        return self.inner_optimizer.iterations

    @property
    def optimizers(self) -> list[keras.Optimizer]:
        """The optimizers in a wrapped `MultiOptimizer`, each with a learning rate.

        Another optimizer has no such attribute, as Keras's callbacks expect.
        """
        return self.inner_optimizer.optimizers

    @property
    def master_weights(self) -> list[keras.Variable]:
        """The FP32 variables that are updated, in the order of the weights.

        Each has the name and path of its weight; a weight stored in FP32 is listed
        itself. Empty before `build`.
        """
        return list(self._masters)

    @property
    def _masters(self) -> list[Any]:
        # A property, since Keras would save the variables in a list that is an
        # attribute, and some of these are the model's.
        return self._master_weights.all

    def _masters_of(self, weights: Sequence[Any]) -> list[Any]:
        return [self._masters[keras_internals.variable_index(self, w)] for w in weights]

    def current_masters(self) -> dict[int, Any]:
        """Returns the FP32 value of every weight that has a master of its own.

        A weight that was written to after the last step counts with the value that was
        written; its master takes it over in the next step.

        Returns:
            Dict from the `id` of a weight to a float32 tensor.
        """
        return self._master_weights.values()

    @contextlib.contextmanager
    def fp32_weights(
        self, variables: keras.Layer | Sequence[keras.Variable] | None = None
    ) -> Iterator[list[Any]]:
        """Returns a context in which weights are read and written in FP32.

        For code that changes weights by less than 16 bits hold, or averages them:
        sharpness-aware minimization, averages and target networks of your own. On
        entry the masters take over what was written to their weights. On exit, after
        an exception too, each weight stored in 16 bits becomes its FP32 value, rounded.
        Compute with the model before or after, not inside.

        With `masters=None` there are no FP32 values: what is read is the weight, and
        what is written is rounded to it at once.

        Args:
            variables: model or other layer, for its `weights`; or list of variables.
                Defaults to those that the optimizer was built with.

        Yields:
            List with the FP32 variable of each, in their order: the master of a weight
            stored in 16 bits, and other variables themselves.

        Raises:
            RuntimeError: the optimizer is not built.
            ValueError: a variable is stored in 16 bits, and is none of the optimizer's.

        Example:

        >>> weight = keras.Variable([1.0], dtype="float16")
        >>> optimizer = keras_mp.wrap("sgd")
        >>> optimizer.build([weight])
        >>> for _ in range(1000):
        ...     with optimizer.fp32_weights([weight]) as [fp32]:
        ...         _ = fp32.assign_sub([1e-4])
        >>> print(f"{weight.numpy()[0]:.4f}")
        0.8999
        """
        fp32 = self._fp32_of(variables)
        self._master_weights.sync_masters_from_weights()
        try:
            yield fp32
        finally:
            self._master_weights.sync_weights_from_masters()
            self._outside_writes.take_note()

    def _fp32_of(
        self, variables: keras.Layer | Sequence[keras.Variable] | None
    ) -> list[Any]:
        if not self.built:
            raise RuntimeError(
                "`fp32_weights` reads the masters, which an optimizer has once it is "
                "built. Received: an optimizer that is not built. Call "
                "optimizer.build(model.trainable_variables)."
            )
        known = keras_internals.trainable_variables(self)
        if variables is None:
            variables = known
        elif isinstance(variables, keras.Layer):
            variables = variables.weights
        masters = {id(w): m for w, m in zip(known, self._masters, strict=True)}
        for variable in variables:
            if id(variable) not in masters and needs_master(variable):
                raise ValueError(
                    "A variable stored in 16 bits has an FP32 value only in the "
                    "optimizer that trains it. Received: "
                    f"{path_of(variable)!r}, {variable.dtype}, which this optimizer "
                    "was not built with. Store it in FP32, for a second network by "
                    "the policy 'mixed_float16' or 'mixed_bfloat16', and for the "
                    "statistics of a normalization by keras_mp.convert(model); or "
                    "pass model.trainable_variables."
                )
        return [masters.get(id(variable), variable) for variable in variables]

    def finalize_variable_values(self, var_list: Sequence[keras.Variable]) -> None:
        """Overwrites weights with their moving average, if the optimizer keeps one.

        Args:
            var_list: list of the weights.
        """
        if not keeps_average(self.inner_optimizer):
            return
        with self.fp32_weights():
            overwrite_with_average(
                self.inner_optimizer, self._master_weights, self._masters_of(var_list)
            )

    def exclude_from_weight_decay(
        self,
        var_list: Sequence[keras.Variable] | None = None,
        var_names: Sequence[str] | None = None,
    ) -> None:
        """Excludes variables from the inner optimizer's weight decay.

        Args:
            var_list: list of weights.
            var_names: list of str, patterns searched for in the names.
        """
        self.inner_optimizer.exclude_from_weight_decay(var_list, var_names)
        exclude_masters_from_weight_decay(
            self.inner_optimizer, self._master_weights.references
        )

    def check_finite(self, grads: Sequence[Any]) -> Any:
        """Tells whether all gradients of all replicas are finite.

        Args:
            grads: list of tensors, `tf.IndexedSlices` or None, for the variables
                that the optimizer was built with.

        Returns:
            Scalar bool tensor.
        """
        given = zip(grads, self._masters, strict=True)
        positions = [i for i, (gradient, _) in enumerate(given) if gradient is not None]
        return find_nonfinite(nonfinite_of(grads), positions)[0]
