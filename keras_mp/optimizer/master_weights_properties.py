"""The master weights of an optimizer, as users and callbacks read and change them."""

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import keras

from keras_mp import keras_internals
from keras_mp.optimizer.inner_optimizer import exclude_masters_from_weight_decay
from keras_mp.optimizer.loss_scale_properties import LossScaleProperties
from keras_mp.optimizer.master_weights import MasterWeights
from keras_mp.optimizer.moving_average import keeps_average, overwrite_with_average
from keras_mp.optimizer.update.all_replicas_finite import find_nonfinite, nonfinite_of


class MasterWeightsProperties(LossScaleProperties):
    """The part of `FP32MasterOptimizer` that gives access to its `MasterWeights`."""

    _master_weights: MasterWeights
    # What `NumericsCallback` has `apply` show its gradients to.
    gradient_sampler: Any = None

    @property
    def iterations(self) -> Any:
        """The variable that counts the steps of the inner optimizer.

        That of the parent counts none before Keras 3.9.
        """
        return self.inner_optimizer.iterations

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
    def changing_masters(self) -> Iterator[None]:
        """Returns a context in which code may change the masters.

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
        self._master_weights.sync_masters_from_weights()
        try:
            yield
        finally:
            self._master_weights.sync_weights_from_masters()

    def finalize_variable_values(self, var_list: Sequence[keras.Variable]) -> None:
        """Overwrites weights with their moving average, if the optimizer keeps one.

        Args:
            var_list: list of the weights.
        """
        if not keeps_average(self.inner_optimizer):
            return
        with self.changing_masters():
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
