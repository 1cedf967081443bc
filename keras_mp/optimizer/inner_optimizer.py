"""What the options of the wrapped optimizer demand: rows, sums, one replica for all.

On several replicas Keras clips each replica's part of the gradient, and it accumulates
gradients, or overwrites weights with their average, in a branch inside the replicas,
which `tf.distribute` refuses. Such an optimizer runs once, on the sum of the gradients,
as one process does on the joint batch (backend_tf.py). That costs a copy of the
gradients from the first replica of a machine to its others, if the optimizer changes
them before it uses them.
"""

import functools
import inspect
from collections.abc import Callable, Sequence, Set
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import keras

from keras_mp import keras_internals
from keras_mp.optimizer.backend import backend, sum_gradients
from keras_mp.optimizer.backend_tf import (
    Runner,
    creating_for_all_replicas,
    run_on_first_replica,
)
from keras_mp.optimizer.masters import Master, needs_master
from keras_mp.optimizer.sharding_tf import Owners
from keras_mp.typing import Gradient, Variable

# Options with which a row whose gradient is zero keeps its value, so that only the rows
# of a sparse gradient need to be copied between weight and master.
_KEEP_ROWS_OF_ALL = {
    "learning_rate",
    "clipnorm",
    "clipvalue",
    "global_clipnorm",
    "ema_momentum",
    "name",
}
_KEEP_ROWS: dict[type, set[str]] = {
    keras.optimizers.Adadelta: {"rho", "epsilon"},
    keras.optimizers.Adagrad: {"initial_accumulator_value", "epsilon"},
    keras.optimizers.RMSprop: {"rho", "epsilon", "centered"},
    keras.optimizers.SGD: {"nesterov"},
}


def leaves(optimizer: keras.Optimizer) -> list[Any]:
    """Returns the optimizer, and those inside it if it is a `MultiOptimizer`."""
    return [optimizer, *getattr(optimizer, "optimizers", [])]


def class_of(optimizer: keras.Optimizer) -> type:
    """Returns the class of an optimizer: for one of Keras's own, the public class.

    On PyTorch, `keras.optimizers.Adam.__new__` makes an object of another class.

    Args:
        optimizer: `keras.optimizers.Optimizer`.
    """
    found = type(optimizer)
    public = vars(keras.optimizers).get(found.__name__)
    is_public = isinstance(public, type) and issubclass(found, public)
    if not is_public or found is public:
        return found
    return public if type(public.__new__(public)) is found else found


def options_in_use(
    optimizer: keras.Optimizer, besides: Set[str], kind: type | None = None
) -> dict[str, Any]:
    """Returns the values of options that differ from their defaults.

    A rule that knows some options uses this to refuse all others, also the options of
    later versions of Keras.

    Args:
        optimizer: `keras.optimizers.Optimizer`.
        besides: set of names of options that are left out.
        kind: class. Its constructor and its bases' constructors have the options: a
            class may hand some to a base as `**kwargs`. Defaults to the class of
            `optimizer`.
    """
    classes = map(vars, reversed((kind or type(optimizer)).__mro__))
    defaults = _defaults(tuple(c["__init__"] for c in classes if "__init__" in c))
    values = {
        name: getattr(optimizer, name, inspect.Parameter.empty)
        for name in defaults.keys() - besides
    }
    return {name: value for name, value in values.items() if value != defaults[name]}


@functools.cache
def _defaults(constructors: tuple[Callable[..., Any], ...]) -> dict[str, Any]:
    """Returns the default of each parameter, by the last constructor that names it."""
    return {
        name: parameter.default
        for constructor in constructors
        for name, parameter in inspect.signature(constructor).parameters.items()
    }


def exclude_masters_from_weight_decay(
    optimizer: keras.Optimizer, masters: Sequence[Master]
) -> None:
    """Excludes the masters of weights that are excluded from weight decay.

    Args:
        optimizer: `keras.optimizers.Optimizer`.
        masters: list of `Master`.
    """
    for leaf in leaves(optimizer):
        for master in masters:
            if not keras_internals.uses_weight_decay(leaf, master.weight):
                keras_internals.add_to_weight_decay_exclusions(leaf, master.reference)


def touched_rows(optimizer: keras.Optimizer, gradient: Gradient, master: Master) -> Any:
    """Returns the rows of `master` that a step of `optimizer` can change.

    Args:
        optimizer: `keras.optimizers.Optimizer`.
        gradient: tensor, `tf.IndexedSlices` or None.
        master: `Master`.

    Returns:
        int tensor of row numbers, or None if any row may change.
    """
    known = _KEEP_ROWS.get(type(optimizer))
    if (
        not backend.is_sparse(gradient)
        or known is None
        or any(options_in_use(optimizer, {*_KEEP_ROWS_OF_ALL, *known}).values())
        or master.constraint is not None
    ):
        return None
    return gradient.indices


# Options of all optimizers with which replicas may run by themselves. With the others,
# those of later versions of Keras included, one replica runs for all of them.
_FOR_EACH_REPLICA = {
    "learning_rate",
    "weight_decay",
    "use_ema",
    "ema_momentum",
    "loss_scale_factor",
    "name",
}


@dataclass
class Replicas:
    """How the update of the masters runs on several replicas.

    Attributes:
        count: int, how many take a step together.
        run: the `Runner` that `backend.cond_on_all_replicas` takes, without owners.
        sums_first: bool, whether gradients are summed before they are unscaled.
        creation: returns a context to create the optimizer's variables in.
        owners: `Owners` of sharded state, or None.
    """

    count: int = 1
    run: Runner = backend.run_on_each_replica
    sums_first: bool = False
    creation: Callable[[], AbstractContextManager[None]] = nullcontext
    owners: Owners | None = None

    def runner(self, masters: Sequence[Master]) -> Runner:
        """Returns the `Runner` of an update of some masters."""
        if self.owners is None:
            return self.run
        references = [master.reference for master in masters]
        return functools.partial(self.owners.run, references)

    def sums(self, unscaled: list[Any]) -> list[Any]:
        """Returns unscaled gradients, summed if owners need the sums.

        On each replica, an optimizer of Keras sums them itself.
        """
        if self.owners is None or self.sums_first:
            return unscaled
        return sum_gradients(unscaled, "float32")

    def device(self, master: Master) -> AbstractContextManager[Any]:
        """Returns a context that computes where the state of a master is."""
        if self.owners is None:
            return nullcontext()
        return self.owners.device(master.reference)

    def check_may_unscale(self, all_reduce_dtype: str) -> None:
        """Checks that gradients may be unscaled before they are summed.

        Raises:
            RuntimeError: they are summed in FP16, in which small ones are lost.
        """
        if self.sums_first and all_reduce_dtype == "float16":
            raise RuntimeError(
                "Gradients that are summed in FP16 must be scaled. Received: a call of "
                '`unscale_gradients` with all_reduce_dtype="float16" on several '
                'replicas. Choose "float32", or do not unscale: clipvalue, clipnorm '
                "and global_clipnorm of the inner optimizer clip the sum."
            )


def replicas_for(
    optimizer: keras.Optimizer,
    variables: Sequence[Variable],
    all_reduce_dtype: str,
    replicas: int,
    is_compressed: bool,
    owners: Owners | None,
) -> Replicas:
    """Decides whether an optimizer runs on each replica or once for all.

    Args:
        optimizer: `keras.optimizers.Optimizer`.
        variables: list of the trainable variables.
        all_reduce_dtype: as for `wrap`.
        replicas: int, how many there are.
        is_compressed: bool, whether state is stored in other forms than in FP32; then
            one replica updates it and the weights.
        owners: `Owners` of sharded state, or None.

    Raises:
        ValueError: it must run on sums of gradients, and some replace their variables.
    """
    wants_sum = all_reduce_dtype == "float16" or needs_the_sum(optimizer)
    sums_first = wants_sum or is_compressed
    if replicas == 1 or not (sums_first or owners):
        return Replicas(replicas)
    if any(keras_internals.is_replaced_by_gradient(optimizer, v) for v in variables):
        raise ValueError(
            "Gradients that replace their variables cannot be summed over "
            "replicas. Received: variables with overwrite_with_gradient=True, and "
            "an optimizer that needs the sum. On several replicas leave out "
            "clipping, gradient_accumulation_steps, ema_overwrite_frequency, "
            "all_reduce_dtype and shard_state, and give MultiOptimizer a map, not a "
            "function."
        )
    if owners is not None:
        return Replicas(
            count=replicas,
            sums_first=sums_first,
            creation=owners.creation,
            owners=owners,
        )
    of_the_model = [v for v in variables if not needs_master(v)]
    assigned = (
        list(variables) if is_compressed else assigned_directly(optimizer, of_the_model)
    )
    return Replicas(
        count=replicas,
        run=functools.partial(run_on_first_replica, assigned),
        sums_first=True,
        creation=creating_for_all_replicas,
    )


def needs_the_sum(optimizer: keras.Optimizer) -> bool:
    """Tells whether `optimizer` must run on the sum of the gradients of all replicas.

    Args:
        optimizer: `keras.optimizers.Optimizer`.
    """
    return _asks_a_function(optimizer) or any(
        any(
            options_in_use(leaf, _FOR_EACH_REPLICA, keras.optimizers.Optimizer).values()
        )
        for leaf in leaves(optimizer)
    )


def assigned_directly(
    optimizer: keras.Optimizer, variables: Sequence[Variable]
) -> list[Any]:
    """Returns the variables that an update may assign to outside `update_step`.

    Args:
        optimizer: `keras.optimizers.Optimizer`.
        variables: list of those that it updates.
    """
    by_steps = all(_assigns_by_steps(leaf) for leaf in leaves(optimizer))
    if _asks_a_function(optimizer) or not by_steps:
        return list(variables)
    return [v for v in variables if getattr(v, "constraint", None) is not None]


def _asks_a_function(optimizer: keras.Optimizer) -> bool:
    """Tells whether it is a `MultiOptimizer` that makes its optimizers in `build`."""
    return getattr(optimizer, "optimizers", None) == []


def _assigns_by_steps(leaf: Any) -> bool:
    """Tells whether it is one of Keras, except Muon, which decays outside of steps."""
    of_keras = getattr(keras.optimizers, type(leaf).__name__, None)
    return type(leaf) is of_keras and type(leaf).__name__ != "Muon"
