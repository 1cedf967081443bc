"""Every private attribute of Keras and TensorFlow that keras_mp uses.

A release of the host may change any of them without notice. Each stands behind one
function, which names the attribute and says why no public way exists; nothing else in
the package touches a private attribute (tests/project/test_house_rules.py), and each
function has a test of what it takes for granted (tests/test_keras_internals.py). None
has a default: an attribute that is missing is an AttributeError, not another result.
"""

from collections.abc import Sequence
from typing import Any

import keras

# Optimizers.


def add_to_variables(optimizer: Any, variable: Any) -> None:
    """Appends a variable to `optimizer.variables`, which Keras saves.

    `Optimizer._track_variable`: the public `add_variable` only makes new variables.
    """
    optimizer._track_variable(variable)


def trainable_variables(optimizer: Any) -> list[Any]:
    """Returns the variables that an optimizer was built with, `[]` before that.

    `Optimizer._trainable_variables`: `optimizer.variables` has the state alone.
    """
    return optimizer._trainable_variables


def check_variables_are_known(optimizer: Any, variables: Sequence[Any]) -> None:
    """Raises ValueError if an optimizer was not built with one of the variables.

    `Optimizer._check_variables_are_known`: `apply`, which is public, updates them too.
    """
    optimizer._check_variables_are_known(variables)


def variable_index(optimizer: Any, variable: Any) -> int:
    """Returns the position of a variable among those an optimizer was built with.

    `Optimizer._get_variable_index`: a `tf.Variable` and each replica's copy of it are
    found too, which a search by identity would miss.
    """
    return optimizer._get_variable_index(variable)


def is_replaced_by_gradient(optimizer: Any, variable: Any) -> bool:
    """Tells whether the gradient of a variable is its new value, as in FP8 training.

    `Optimizer._overwrite_variable_with_gradient`: the attribute of the variable is
    public, but an optimizer may override what it makes of it.
    """
    return optimizer._overwrite_variable_with_gradient(variable)


def without_missing_gradients(
    optimizer: Any, gradients: Sequence[Any], variables: Sequence[Any]
) -> tuple[list[Any], list[Any]]:
    """Returns both lists without the gradients that are None, and warns of those.

    `Optimizer._filter_empty_gradients`: `apply`, which is public, also updates.
    """
    return optimizer._filter_empty_gradients(gradients, variables)


def uses_weight_decay(optimizer: Any, variable: Any) -> bool:
    """Tells whether an optimizer would decay a variable, if it decays any.

    `Optimizer._use_weight_decay`: `exclude_from_weight_decay` is public, its result
    can only be read here.
    """
    return optimizer._use_weight_decay(variable)


def add_to_weight_decay_exclusions(optimizer: Any, variable: Any) -> None:
    """Excludes one more variable from an optimizer that excludes some already.

    `Optimizer._exclude_from_weight_decay`, a set of `Optimizer._var_key`: the public
    `exclude_from_weight_decay` forgets what was excluded before.
    """
    optimizer._exclude_from_weight_decay.add(optimizer._var_key(variable))


def slots(optimizer: Any, *names: str) -> list[list[Any]]:
    """Returns lists of the slots of a built optimizer, in the order of its variables.

    `Adam._velocities` for `"velocities"`, and so on: `optimizer.variables` has all of
    them in one list, told apart by their paths alone.
    """
    return [getattr(optimizer, f"_{name}") for name in names]


def nadam_momentum_product(optimizer: keras.optimizers.Nadam) -> Any:
    """Returns the variable that holds the product of Nadam's momentums so far.

    `Nadam._u_product`: as for `slots`.
    """
    return optimizer._u_product


def layout(variable: Any) -> Any:
    """Returns how `keras.distribution` shards a variable, None if it does not.

    `Variable._layout`: the argument `layout` of `keras.Variable` is public, but cannot
    be read. A `tf.Variable` has none.
    """
    return variable._layout if isinstance(variable, keras.Variable) else None


def strategy(optimizer: Any) -> Any:
    """Returns the `tf.distribute.Strategy` that an optimizer was created in.

    `Optimizer._distribution_strategy`, of the TensorFlow backend: Keras itself enters
    this one, which is not always the one in force.
    """
    return optimizer._distribution_strategy


def supports_no_merge_call() -> bool:
    """Tells whether variables of the strategy in force are updated without a merge.

    `tf.__internal__.distribute.strategy_supports_no_merge_call`: Keras's optimizers
    branch on it, and it can be asked nowhere else.
    """
    import tensorflow as tf

    return bool(tf.__internal__.distribute.strategy_supports_no_merge_call())


def graph_around(graph: Any) -> Any:
    """Returns the graph around that of a branch or a loop body, None for any other.

    `outer_graph` of `CondBranchFuncGraph` (`tf.cond`, `tf.switch_case`) and
    `WhileBodyFuncGraph` (`tf.while_loop`): TensorFlow exports neither class, so that
    they are told by their names.
    """
    parts = ("CondBranchFuncGraph", "WhileBodyFuncGraph")
    return graph.outer_graph if type(graph).__name__ in parts else None


# Models and layers.


def flatten_layers(layer: Any) -> list[Any]:
    """Returns a layer or model and all layers inside it, at any depth.

    `Layer._flatten_layers`: `model.layers` has the outermost alone, and a layer that
    is not a model has no list at all.
    """
    return layer._flatten_layers()
