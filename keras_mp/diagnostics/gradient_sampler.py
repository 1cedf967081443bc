"""`GradientSampler`: counts gradients inside of a training step, at some steps."""

import contextlib
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import keras
import numpy as np

from keras_mp import keras_internals
from keras_mp.diagnostics.counting import LENGTH, counts_of
from keras_mp.diagnostics.statistics import TensorStatistics, total
from keras_mp.optimizer import FP32MasterOptimizer
from keras_mp.optimizer.masters import path_of
from keras_mp.precision.model_index import numbered


class GradientSampler:
    """Has the gradients of every n-th step counted inside of the step.

    A branch counts the unscaled gradients and leaves the counts in variables, which
    nobody saves. On several replicas each counts its own gradients, before they are
    summed, in variables of its own, since a branch inside of a replica cannot wait for
    the others; the counts are added where they are read.

    Args:
        optimizer: `FP32MasterOptimizer`, built.
        probes: list of `keras_mp.layers.Probe`. Their inputs and gradients are counted
            in the same steps.
        every: int, in steps. The first step has the number 1.
    """

    def __init__(
        self, optimizer: FP32MasterOptimizer, probes: Sequence[Any], every: int
    ) -> None:
        self._optimizer = optimizer
        self._every = every
        self._weights = keras_internals.trainable_variables(optimizer)
        self._probes = list(probes)
        self._strategy = keras_internals.strategy(optimizer)
        with self._strategy.scope():
            self._step = _one_of_each_replica(())
            self._sampled_step = _one_of_each_replica(())
            self._scale = _one_of_each_replica((), "float32")
            self._gradients = _one_of_each_replica((len(self._weights), LENGTH))
            self._activations, self._activation_gradients = (
                [_one_of_each_replica((LENGTH,)) for _ in probes]
                for probes in (self._probes, self._probes)
            )

    def begin(self, step: int) -> None:
        """Begins to count steps.

        Args:
            step: int, how many were made before.
        """
        for copy in self._copies(self._step):
            copy.assign(step)

    @contextlib.contextmanager
    def attached(self) -> Iterator[None]:
        """Has steps that are traced, or executed eagerly, inside a block count."""
        self._optimizer.gradient_sampler = self
        for index, probe in enumerate(self._probes):
            probe.observe = self._observer(index)
        try:
            yield
        finally:
            self._optimizer.gradient_sampler = None
            for probe in self._probes:
                probe.observe = None

    def sample(
        self, gradients: Sequence[Any], variables: Sequence[Any], scale: Any
    ) -> None:
        """Counts the gradients of a step, if it is one of those. `apply` calls it.

        Args:
            gradients: list of tensors, `tf.IndexedSlices` or None, of this replica.
            variables: list of their variables.
            scale: scalar float32 tensor that they are to be divided by, or None.
        """
        import tensorflow as tf

        def count() -> None:
            counts = [tf.zeros(LENGTH, tf.int64)] * len(self._weights)
            for gradient, variable in zip(gradients, variables, strict=True):
                if gradient is not None:
                    index = keras_internals.variable_index(self._optimizer, variable)
                    counts[index] = counts_of(_unscaled(gradient, scale))
            self._gradients.assign(tf.stack(counts))
            self._scale.assign(self._optimizer.loss_scale)
            self._sampled_step.assign(self._step + 1)

        self._if_sampled(count)
        self._step.assign_add(1)

    @property
    def step(self) -> int:
        """How many steps were made. Waits for the device."""
        return int(self._copies(self._step)[0].numpy())

    @property
    def sampled_step(self) -> int:
        """The number of the last step that was sampled, or 0. Waits for the device."""
        return int(self._copies(self._sampled_step)[0].numpy())

    @property
    def loss_scale(self) -> float:
        """The loss scale of that step."""
        return float(self._copies(self._scale)[0].numpy())

    def weight_gradients(self) -> list[TensorStatistics | None]:
        """Returns the counts of each trainable weight, None if it had no gradient."""
        return self._read(self._gradients)

    def activations(
        self,
    ) -> Iterator[tuple[str, TensorStatistics | None, TensorStatistics | None]]:
        """Yields the path of each Probe, and what is known of its input and gradient.

        None if it was not called, or if no gradient reached it.
        """
        paths = numbered([probe.path or probe.name for probe in self._probes])
        variables = (self._activations, self._activation_gradients)
        for path, *both in zip(paths, *variables, strict=True):
            (activation,), (gradient,) = (self._read(variable) for variable in both)
            yield path, activation, gradient

    def weight_paths(self) -> list[str]:
        """Returns the paths of the trainable weights, each another one."""
        return numbered([path_of(weight) for weight in self._weights])

    def _observer(self, index: int) -> Callable[[Any], Any]:
        """Returns an identity that counts its input and its gradient."""
        import tensorflow as tf

        @tf.custom_gradient
        def observe(x: Any) -> Any:
            forward, backward = (
                variables[index]
                for variables in (self._activations, self._activation_gradients)
            )
            self._if_sampled(lambda: forward.assign(counts_of(x)))

            def gradient(upstream: Any) -> Any:
                def count() -> None:
                    scale = keras.ops.copy(self._optimizer.loss_scale)
                    backward.assign(counts_of(_unscaled(upstream, scale)))

                self._if_sampled(count)
                return upstream

            return tf.identity(x), gradient

        def observe_outside_of_loops(x: Any) -> Any:
            graph = tf.compat.v1.get_default_graph()
            if tf.executing_eagerly() or not keras_internals.graph_around(graph):
                return observe(x)
            # TensorFlow cannot differentiate a loop whose gradient writes a variable.
            path = self._probes[index].path or self._probes[index].name
            warnings.warn(
                "NumericsCallback samples a Probe outside of loops and branches. "
                f"Received: {path!r} inside of one, as in a cell of a recurrent layer. "
                "It is left out; put it behind the layer.",
                stacklevel=2,
            )
            return x

        return observe_outside_of_loops

    def _if_sampled(self, act: Callable[[], Any]) -> None:
        import tensorflow as tf

        def acts() -> Any:
            act()
            return tf.no_op()

        is_sampled = tf.equal((self._step + 1) % self._every, 0)
        tf.cond(is_sampled, acts, tf.no_op)

    def _copies(self, variable: Any) -> tuple[Any, ...]:
        return self._strategy.experimental_local_results(variable)

    def _read(self, variable: Any) -> list[TensorStatistics | None]:
        """Returns the statistics of each row of a variable, added over replicas."""
        copies = [copy.numpy().reshape(-1, LENGTH) for copy in self._copies(variable)]
        sums = [
            total(TensorStatistics.from_counts(row) for row in rows)
            for rows in zip(*copies, strict=True)
        ]
        return [each if each and each.elements else None for each in sums]


def _one_of_each_replica(shape: tuple[int, ...], dtype: str = "int64") -> Any:
    """Returns a variable with a copy for each replica that the others never see."""
    import tensorflow as tf

    return tf.Variable(
        np.zeros(shape, dtype),
        trainable=False,
        synchronization=tf.VariableSynchronization.ON_READ,
        aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA,
    )


def _unscaled(gradient: Any, scale: Any) -> Any:
    import tensorflow as tf

    dense = tf.cast(tf.convert_to_tensor(gradient), tf.float32)
    return dense if scale is None else dense / tf.cast(scale, tf.float32)
