"""ZeRO stage 1 on TensorFlow: the state of each weight on one replica, its owner.

`tf.distribute.MirroredStrategy` copies each variable to all replicas. The state of a
weight is a mirrored variable with one copy: Keras's optimizers and checkpoints take it
as any other, and `strategy.extended.update` runs on the device where it is. Gradients
are summed for all replicas, as without owners. The owner updates its state with its
copy of the sum, rounds the master, and sends the weight to all replicas.

An update computes across replicas, where a mirrored variable is read on the current
device, if that has a copy, and assigned on all devices that have one.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from keras_mp import keras_internals
from keras_mp.optimizer.backend_tf import context_for_update, native
from keras_mp.typing import Gradient, Strategy, Variable


class Owners:
    """Which replica owns the state of each weight.

    Args:
        strategy: `tf.distribute.MirroredStrategy`.
        weights: list of the trainable variables.
        sizes: list of the size of the state of each.
        uses_keras: bool, whether an optimizer of Keras updates the state.
    """

    def __init__(
        self,
        strategy: Strategy,
        weights: Sequence[Variable],
        sizes: Sequence[float],
        uses_keras: bool,
    ) -> None:
        self._devices = strategy.extended.worker_devices
        owners = balanced(sizes, len(self._devices))
        pairs = zip(weights, owners, strict=True)
        self._owner = {id(native(weight)): owner for weight, owner in pairs}
        self._uses_keras = uses_keras

    def creation(self) -> AbstractContextManager[None]:
        """Returns a context that creates variables with one copy.

        By `strategy.extended.colocate_vars_with` Keras and keras_mp say which weight a
        variable belongs to: its owner has the copy. The first device has the others.
        """
        import tensorflow as tf

        def create(next_creator: Callable[..., Any], **arguments: Any) -> Any:
            owner = self._owner.get(id(arguments.get("colocate_with")), 0)
            place = keras_internals.place_of_one_copy(self._devices[owner])
            arguments["colocate_with"] = place
            arguments["aggregation"] = tf.VariableAggregation.ONLY_FIRST_REPLICA
            made = next_creator(**arguments)
            self._owner[id(made)] = owner
            return made

        return tf.variable_creator_scope(create)

    def device(self, variable: Variable) -> AbstractContextManager[Any]:
        """Returns a context that computes where the state of a variable is.

        Args:
            variable: `keras.Variable` or `tf.Variable`: a weight, or state of it.
        """
        import tensorflow as tf

        return tf.device(self._devices[self._owner[id(native(variable))]])

    def run(
        self,
        variables: Sequence[Variable],
        strategy: Strategy,
        act: Callable[[list[Gradient]], None],
        grads: list[Gradient],
    ) -> None:
        """Calls `act` once, with the copies of the gradients that owners have.

        A `Runner`, but for its first argument, and called across replicas like one.

        Args:
            variables: list of a weight, or of state of it, for each gradient.
            strategy: the `tf.distribute.MirroredStrategy`.
            act: the update: a function of a list of gradients.
            grads: list of the copies that the replicas have of each sum, or of None.
        """
        import tensorflow as tf

        copies = strategy.experimental_local_results
        own = [
            None if each is None else copies(each)[self._owner[id(native(variable))]]
            for each, variable in zip(grads, variables, strict=True)
        ]
        context = context_for_update(strategy) if self._uses_keras else nullcontext()
        with tf.device(self._devices[0]), context:
            act(own)


def balanced(sizes: Sequence[float], owners: int) -> list[int]:
    """Returns the owner of each size: the largest first, to the least loaded.

    No owner has more than the mean of all and the largest size.

    Args:
        sizes: list of numbers >= 0.
        owners: int, how many there are.

    Example:

    >>> balanced([1, 4, 2, 1], 2)
    [1, 0, 1, 1]
    """
    loads, found = [0.0] * owners, [0] * len(sizes)
    for i in sorted(range(len(sizes)), key=lambda i: -sizes[i]):
        found[i] = loads.index(min(loads))
        loads[found[i]] += sizes[i]
    return found
