"""Every private attribute of Keras and TensorFlow that keras_mp uses.

A release of the host may change any of them without notice. Each stands behind one
function, which names the attribute and says why no public way exists; nothing else in
the package touches a private attribute (tests/project/test_house_rules.py), and each
function has a test of what it takes for granted (tests/test_keras_internals.py).

No other module knows versions of Keras, either. A function for a host that has changed
branches on `KERAS`, names the version, and has a test on both sides of it. None guesses
with a default: an attribute that is missing is an AttributeError, not another result.

What Keras plans: backends become packages (keras-team/keras, issue 23523; pull requests
23397 and 23642), and what is below `keras.src.backend` moves. Nothing here is imported
from there. What depends on the backend, and may need another function there, are
`strategy`, `replicas_scope`, `layout_argument`, `other_layouts`, and the iterators of
`train_function`; `attach_logits` has a name that losses of Keras read, whatever the
backend. Keras 3.16.0.dev2026102704 has all names of this module, and one moved:
`uses_weight_decay`.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from itertools import islice
from types import SimpleNamespace
from typing import Any

import keras

# The version of Keras, from 3.8 on; 3.12 is the last for Python 3.10.
KERAS = tuple(int(part) for part in keras.version().split(".")[:2])

# The version of Keras that brought a layer, where that is not
# the first one that is supported.
ADDED = {
    "AdaptiveAveragePooling1D": (3, 13),
    "AdaptiveAveragePooling2D": (3, 13),
    "AdaptiveAveragePooling3D": (3, 13),
    "RMSNormalization": (3, 9),
    "ReversibleEmbedding": (3, 12),
}


def has(name: str) -> bool:
    """Tells whether the installed Keras has a layer.

    Args:
        name: the name of the class in `keras.layers`.
    """
    return ADDED.get(name, (3, 8)) <= KERAS


def view(x: Any, dtype: str) -> Any:
    """Returns the bits of a tensor as another dtype of the same size.

    `keras.ops.view` is public; before Keras 3.12, where keras_mp runs only on
    TensorFlow, there is none.
    """
    if KERAS < (3, 12):
        import tensorflow as tf

        return tf.bitcast(x, dtype)
    return keras.ops.view(x, dtype)


# Optimizers.


def add_to_variables(optimizer: keras.Optimizer, variable: Any) -> None:
    """Appends a variable to `optimizer.variables`, which Keras saves.

    `Optimizer._track_variable`: the public `add_variable` only makes new variables.
    """
    optimizer._track_variable(variable)


def remove_from_variables(optimizer: keras.Optimizer, variable: Any) -> None:
    """Removes a variable from `optimizer.variables`, and so from files.

    `Optimizer._variables` and `_tracker`: a new list, since TensorFlow saves no
    checkpoint of an object that a list has lost an element of.
    """
    tracker = optimizer._tracker
    rest = [each for each in optimizer._variables if each is not variable]
    with untracked(optimizer):
        optimizer._variables = rest
    is_variable, _ = tracker.config["variables"]
    tracker.config["variables"] = (is_variable, optimizer._variables)
    tracker.stored_ids["variables"].discard(id(variable))


def exchange_variable(optimizer: keras.Optimizer, old: Any, new: Any) -> None:
    """Has a built optimizer update another variable, with the slots of a known one.

    The exclusion from weight decay moves along, also where `old` has no slots. Nothing
    else is done if `old` is not known.
    `Optimizer._trainable_variables` and what `build` makes of it,
    `_trainable_variables_indices` and `_var_to_optimizer_idx` of a `MultiOptimizer`:
    `build`, which is public, makes new slots.
    """
    if not uses_weight_decay(optimizer, old):
        add_to_weight_decay_exclusions(optimizer, new)
    old_key, new_key = optimizer._var_key(old), optimizer._var_key(new)
    if old_key not in optimizer._trainable_variables_indices:
        return
    indices = optimizer._trainable_variables_indices
    indices[new_key] = indices.pop(old_key)
    if "_var_to_optimizer_idx" in vars(optimizer):
        owners = optimizer._var_to_optimizer_idx
        owners[new_key] = owners.pop(old_key)
    variables = list(optimizer._trainable_variables)
    variables[variable_index(optimizer, new)] = new
    with untracked(optimizer):
        optimizer._trainable_variables = variables


@contextmanager
def untracked(optimizer: keras.Optimizer) -> Iterator[None]:
    """Has Keras not take what an attribute is set to for state, in a `with` block.

    `Optimizer._tracker`.
    """
    tracker = vars(optimizer).pop("_tracker")
    try:
        yield
    finally:
        vars(optimizer)["_tracker"] = tracker


def trainable_variables(optimizer: keras.Optimizer) -> list[Any]:
    """Returns the variables that an optimizer was built with, `[]` before that.

    `Optimizer._trainable_variables`: `optimizer.variables` has only the state.
    """
    return optimizer._trainable_variables


def hide_trainable_variables(optimizer: keras.Optimizer) -> None:
    """Has `tf.train.Checkpoint` not reach variables through a built optimizer.

    `Optimizer._trainable_variables`: what is set as an attribute is saved. A variable
    of the model there is the same object as in a layer, and restored once.
    """
    variables = list(optimizer._trainable_variables)
    del optimizer._trainable_variables
    vars(optimizer)["_trainable_variables"] = variables


def check_variables_are_known(
    optimizer: keras.Optimizer, variables: Sequence[Any]
) -> None:
    """Raises ValueError if an optimizer was not built with one of the variables.

    `Optimizer._check_variables_are_known`: `apply`, which is public, updates them too.
    """
    optimizer._check_variables_are_known(variables)


def variable_index(optimizer: keras.Optimizer, variable: Any) -> int:
    """Returns the position of a variable among those an optimizer was built with.

    `Optimizer._get_variable_index`: a `tf.Variable` and each replica's copy of it are
    found too, which a search by identity would miss.
    """
    return optimizer._get_variable_index(variable)


def is_replaced_by_gradient(optimizer: keras.Optimizer, variable: Any) -> bool:
    """Tells whether the gradient of a variable is its new value, as in FP8 training.

    `Optimizer._overwrite_variable_with_gradient`: the attribute of the variable is
    public, but an optimizer may override what it makes of it from Keras 3.10 on.
    """
    if KERAS < (3, 10):
        return isinstance(variable, keras.Variable) and variable.overwrite_with_gradient
    return optimizer._overwrite_variable_with_gradient(variable)


def without_missing_gradients(
    optimizer: keras.Optimizer, gradients: Sequence[Any], variables: Sequence[Any]
) -> tuple[list[Any], list[Any]]:
    """Returns both lists without the gradients that are None, and warns of those.

    `Optimizer._filter_empty_gradients`: `apply`, which is public, also updates.
    """
    return optimizer._filter_empty_gradients(gradients, variables)


def uses_weight_decay(optimizer: keras.Optimizer, variable: Any) -> bool:
    """Tells whether an optimizer would decay a variable, if it decays any.

    `Optimizer._use_weight_decay`: `exclude_from_weight_decay` is public, its result can
    only be read here. From Keras 3.16 on only a built optimizer is asked for that, and
    `_is_excluded_from_weight_decay` before.
    """
    if KERAS >= (3, 16):
        return not optimizer._is_excluded_from_weight_decay(variable)
    return optimizer._use_weight_decay(variable)


def add_to_weight_decay_exclusions(optimizer: keras.Optimizer, variable: Any) -> None:
    """Excludes one more variable from an optimizer that excludes some already.

    `Optimizer._exclude_from_weight_decay`, a set of `Optimizer._var_key`: the public
    `exclude_from_weight_decay` forgets what was excluded before.
    """
    optimizer._exclude_from_weight_decay.add(optimizer._var_key(variable))


def applied_steps(optimizer: keras.Optimizer) -> Any:
    """Returns the variable that counts the calls of `apply`.

    `iterations` leaves out those that only accumulate gradients.
    """
    return optimizer._iterations


def moving_averages(optimizer: keras.Optimizer) -> list[Any]:
    """Returns the moving averages of a built optimizer, in the order of its variables.

    `Optimizer._model_variables_moving_average`, which `use_ema` makes: the public
    `finalize_variable_values` only overwrites variables with them.
    """
    return optimizer._model_variables_moving_average


def accumulated_gradients(optimizer: keras.Optimizer) -> list[Any]:
    """Returns the sums of gradients of a built optimizer, by the order of variables.

    `Optimizer._accumulated_gradients`, which `gradient_accumulation_steps` makes:
    `optimizer.variables` has them among all others.
    """
    return optimizer._accumulated_gradients


def clip_by_norm(optimizer: keras.Optimizer, gradient: Any) -> Any:
    """Returns a gradient clipped to the norm `optimizer.clipnorm`.

    `Optimizer._clip_by_norm`: Keras has no public function for it.
    """
    return optimizer._clip_by_norm(gradient)


def slots(optimizer: keras.Optimizer, *names: str) -> list[list[Any]]:
    """Returns lists of the slots of a built optimizer, in the order of its variables.

    `SGD.momentums` for `"momentums"`, `Adam._velocities` for `"velocities"`, and so on:
    `optimizer.variables` has all of them in one list, told apart only by their paths.
    """
    own = vars(optimizer)
    return [getattr(optimizer, n if n in own else f"_{n}") for n in names]


def nadam_momentum_product(optimizer: keras.optimizers.Nadam) -> Any:
    """Returns the variable that holds the product of Nadam's momentums so far.

    `Nadam._u_product`: as for `slots`.
    """
    return optimizer._u_product


def layout_argument(variable: Any) -> dict[str, Any]:
    """Returns what makes `keras.Variable` shard a new variable as another one.

    `Variable._layout`: the argument `layout` is public, but cannot be read. A
    `tf.Variable` has none, and before Keras 3.15 only variables of JAX have the
    attribute and take the argument.
    """
    has_layouts = KERAS >= (3, 15) or keras.backend.backend() == "jax"
    if not (has_layouts and isinstance(variable, keras.Variable)):
        return {}
    return {"layout": variable._layout}


@contextmanager
def other_layouts(variables: Sequence[Any], layouts: Sequence[Any]) -> Iterator[None]:
    """Has variables show other layouts, in a `with` block: none is moved by that.

    `Variable._layout`, which `Optimizer.add_variable_from_reference` gives to what it
    makes: it takes no layout itself.

    Args:
        variables: list of `keras.Variable`, which are not assigned to in the block.
        layouts: list of a `keras.distribution.TensorLayout` or None for each.
    """
    before = [variable._layout for variable in variables]
    try:
        for variable, layout in zip(variables, layouts, strict=True):
            variable._layout = layout
        yield
    finally:
        for variable, layout in zip(variables, before, strict=True):
            variable._layout = layout


def strategy(optimizer: keras.Optimizer) -> Any:
    """Returns the `tf.distribute.Strategy` that an optimizer was created in.

    `Optimizer._distribution_strategy`, of the TensorFlow backend: Keras itself enters
    this one, which is not always the one in force.
    """
    return optimizer._distribution_strategy


def place_of_one_copy(device: str) -> Any:
    """Returns what puts the only copy of a mirrored variable on a device.

    `_devices` of the argument `colocate_with` of a variable creator. Publicly it is a
    variable, and a new one has as many copies.

    Args:
        device: str, its name.
    """
    return SimpleNamespace(_devices=(device,))


def supports_no_merge_call() -> bool:
    """Tells whether variables of the strategy in force are updated without a merge.

    `tf.__internal__.distribute.strategy_supports_no_merge_call`: Keras's optimizers
    branch on it, and it can be asked nowhere else.
    """
    import tensorflow as tf

    return bool(tf.__internal__.distribute.strategy_supports_no_merge_call())


def graph_around(graph: Any) -> Any:
    """Returns the graph around the graph of a branch or a loop body, else None.

    `outer_graph` of `CondBranchFuncGraph` (`tf.cond`, `tf.switch_case`) and
    `WhileBodyFuncGraph` (`tf.while_loop`): TensorFlow exports neither class, so that
    they are told by their names.
    """
    parts = ("CondBranchFuncGraph", "WhileBodyFuncGraph")
    return graph.outer_graph if type(graph).__name__ in parts else None


def graphs_inside(operation: Any) -> dict[str, Any]:
    """Returns the graphs of the functions that an operation of a graph calls.

    By the name of the operation's attribute, such as the `"body"` of a loop; branches
    that are a list have a number behind it. `Graph._get_function`: TensorFlow has no
    public way from the name of a function to its graph.
    """
    found = {}
    for attribute in operation.op_def.attr:
        value = operation.get_attr(attribute.name)
        if attribute.type == "func":
            found[attribute.name] = value.name
        elif attribute.type == "list(func)":
            found |= {f"{attribute.name}{i}": f.name for i, f in enumerate(value)}
    functions = {k: operation.graph._get_function(name) for k, name in found.items()}
    return {k: function.graph for k, function in functions.items()}


def traced_assignments(variables: Sequence[Any], start: int) -> list[int]:
    """Returns how often the graph being traced assigns to each variable.

    By `get_operations` and `capture` of `FuncGraph`, a class that TensorFlow does not
    export. Branches, loop bodies and functions that are called have graphs of their
    own, which are not looked at.

    Args:
        variables: list of `tf.Variable`.
        start: int, how many of the graph's operations are left out, from the first.
    """
    import tensorflow as tf

    graph = tf.compat.v1.get_default_graph()
    assigned = Counter(
        operation.inputs[0].ref()
        for operation in graph.get_operations()[start:]
        if operation.type in _ASSIGNMENTS
    )
    return [assigned[graph.capture(variable.handle).ref()] for variable in variables]


_ASSIGNMENTS = {"AssignVariableOp", "AssignAddVariableOp", "AssignSubVariableOp"}


# Models and layers.


def flatten_layers(layer: keras.Layer) -> list[Any]:
    """Returns a layer or model and all layers inside it, at any depth.

    `Layer._flatten_layers`: `model.layers` has only the outermost, and a layer that
    is not a model has no list at all.
    """
    return layer._flatten_layers()


def forget_losses(layer: keras.Layer) -> None:
    """Forgets what a layer gave to `add_loss` in a `keras.StatelessScope`.

    `Layer._loss_ids`: losses of later scopes are taken for losses of the layer if they
    have one of these ids, which Python gives again.
    """
    layer._loss_ids.clear()


@contextmanager
def computing_once(operations: Sequence[keras.Operation]) -> Iterator[None]:
    """Has no operation compute again in the backward pass inside a `with` block.

    `Operation._remat_mode`: what `keras.RematScope` was when the operation was made;
    nothing public takes it out of its scope. Before Keras 3.15 only layers have one;
    before 3.9 there is no such scope.
    """
    if KERAS < (3, 9):
        yield
        return
    if KERAS < (3, 15):
        operations = [each for each in operations if isinstance(each, keras.Layer)]
    modes = [operation._remat_mode for operation in operations]
    try:
        for operation in operations:
            operation._remat_mode = None
        yield
    finally:
        for operation, mode in zip(operations, modes, strict=True):
            operation._remat_mode = mode


class IteratorKeeper:
    """A train function that knows the iterator it was called with.

    Attributes:
        train_function: the one of the model, which it calls.
        iterator: the iterator of the last call, or None.
    """

    def __init__(self, train_function: Any) -> None:
        self.train_function = train_function
        self.iterator: Any = None

    def __call__(self, iterator: Any) -> Any:
        self.iterator = iterator
        try:
            return self.train_function(iterator)
        except BaseException:
            self.iterator = None  # it is not to outlive an interrupted `fit`
            raise


def keep_iterator(model: keras.Model) -> None:
    """Has a model know the iterator over the batches that `fit` runs on.

    `Model.train_function`, on TensorFlow: the attribute is public; that `fit` reads it
    for every execution, and passes it only the iterator, is not documented.
    """
    function = model.train_function
    # There is none yet in a loop that calls `train_on_batch` and callbacks by itself.
    if function is not None and not isinstance(function, IteratorKeeper):
        model.train_function = IteratorKeeper(function)


def kept_iterator(model: keras.Model) -> Any:
    """Returns that iterator, or None if it is not known.

    As for `keep_iterator`.
    """
    function = model.train_function
    return function.iterator if isinstance(function, IteratorKeeper) else None


def forget_iterator(model: keras.Model) -> None:
    """Undoes `keep_iterator`.

    As for `keep_iterator`.
    """
    if isinstance(model.train_function, IteratorKeeper):
        model.train_function = model.train_function.train_function


class NextBatches:
    """A train function that shows the next batch before it trains on it, once.

    Args:
        model: `keras.Model`. Its `train_function` becomes this object.
        look: function of the batch, which may make the train function again.
    """

    def __init__(self, model: keras.Model, look: Any) -> None:
        self.model, self.look = model, look
        self.train_function = model.train_function
        model.train_function = self

    def __call__(self, iterator: Any) -> Any:
        self.model.train_function = self.train_function
        batches = list(islice(iterator, self.model.steps_per_execution))
        if batches:
            self.look(batches[0])
        return self.model.train_function(batches or iterator)


def look_at_next_batch(model: keras.Model, look: Any) -> None:
    """Has a function called with the next batch of `fit`, before the step.

    `Model.train_function`, on TensorFlow: as for `keep_iterator`; and that it takes a
    list of batches as well, as many as an execution has steps, is not said either.
    """
    NextBatches(model, look)


# Layers.

# The private methods of Keras's layers that those of keras_mp override. Keras calls
# them in `call`; to override that instead would mean to copy what it does before and
# after them: masks, projections, broadcasts of the inputs.
OVERRIDDEN_HOOKS = {
    "Add": ("_merge_function",),
    "AdditiveAttention": ("_calculate_scores", "_apply_scores"),
    "Attention": ("_calculate_scores", "_apply_scores"),
    "Average": ("_merge_function",),
    "Dot": ("_merge_function",),
    "GroupQueryAttention": ("_compute_attention_mask", "_compute_attention"),
    "MultiHeadAttention": ("_compute_attention_mask", "_compute_attention"),
}


def uses_flash_attention(layer: keras.Layer) -> bool:
    """Tells whether a multi-head or grouped-query attention runs flash attention.

    `MultiHeadAttention._flash_attention`: the constructor argument, or else the global
    setting when the layer was made (None if there was none), which may have changed.
    """
    return bool(layer._flash_attention)


def scores_equation(layer: keras.Layer) -> str:
    """Returns the einsum by which an attention multiplies queries and keys.

    `MultiHeadAttention._dot_product_equation`: it depends on the attention axes, and a
    subclass may set another.
    """
    return layer._dot_product_equation


def outputs_equation(layer: keras.Layer) -> str:
    """Returns the einsum by which an attention multiplies weights and values.

    `MultiHeadAttention._combine_equation`: as for `scores_equation`.
    """
    return layer._combine_equation


def scores_scale(layer: keras.layers.MultiHeadAttention) -> float:
    """Returns the factor of the scores, `1 / sqrt(key_dim)`.

    `MultiHeadAttention._inverse_sqrt_key_dim`: a subclass may set another.
    """
    return layer._inverse_sqrt_key_dim


def grouped_query_scores_scale(layer: keras.layers.GroupQueryAttention) -> float:
    """Returns the factor of the scores, `1 / sqrt(head_dim)`.

    `GroupQueryAttention._inverse_sqrt_head_dim`: a subclass may set another.
    """
    return layer._inverse_sqrt_head_dim


def drop_attention_weights(
    layer: keras.Layer, weights: Any, training: bool | None
) -> Any:
    """Applies the dropout of a multi-head or grouped-query attention.

    `MultiHeadAttention._dropout_layer`: its seed generator is part of the state that is
    saved, and no public attribute holds it.
    """
    return layer._dropout_layer(weights, training=training)


def attention_seeds(layer: keras.Layer) -> keras.random.SeedGenerator:
    """Returns the seeds of that dropout; there are some where its rate is above 0."""
    return layer._dropout_layer.seed_generator


def attends_otherwise(cls: Any, base: Any) -> bool:
    """Tells whether a class overrides what the `call` of an `Attention` calls.

    `Attention._validate_inputs`, `_calculate_score_mask`, `_calculate_scores` and
    `_apply_scores`: a subclass may override them, as Keras's own `AdditiveAttention`
    does.

    Args:
        cls: a subclass of `base`, or `base`.
        base: a subclass of `keras.layers.Attention`.
    """
    return (
        cls._validate_inputs is not base._validate_inputs
        or cls._calculate_score_mask is not base._calculate_score_mask
        or cls._calculate_scores is not base._calculate_scores
        or cls._apply_scores is not base._apply_scores
    )


def takes_masks_otherwise(cls: Any, base: Any) -> bool:
    """Tells whether a class overrides what makes the mask of an attention, or takes it.

    `MultiHeadAttention._compute_attention_mask`, `_compute_causal_mask` and
    `_compute_attention`, which `call` calls, or that itself: a subclass may override
    them.

    Args:
        cls: a subclass of `base`, or `base`.
        base: a subclass of `keras.layers.MultiHeadAttention` or `GroupQueryAttention`.
    """
    return (
        cls.call is not base.call
        or cls._compute_attention_mask is not base._compute_attention_mask
        or cls._compute_causal_mask is not base._compute_causal_mask
        or cls._compute_attention is not base._compute_attention
    )


def causal_mask(layer: keras.layers.MultiHeadAttention, query: Any, value: Any) -> Any:
    """Returns the mask that hides later positions, as the layer computes it.

    `MultiHeadAttention._compute_causal_mask`: a subclass may compute another.
    """
    return layer._compute_causal_mask(query, value)


def returns_attention_scores(layer: keras.layers.GroupQueryAttention) -> bool:
    """Tells whether the call in progress returns the attention scores.

    `GroupQueryAttention._return_attention_scores`: `call` hands the argument on only in
    this attribute.
    """
    return layer._return_attention_scores


def uses_renorm(layer: keras.layers.BatchNormalization) -> bool:
    """Tells whether a layer does batch renormalization.

    `BatchNormalization.renorm` is public; before Keras 3.14 there is none.
    """
    return KERAS >= (3, 14) and layer.renorm


def renorm_correction(
    layer: keras.layers.BatchNormalization, mean: Any, variance: Any
) -> tuple[Any, Any]:
    """Returns the clipped factors r and d of batch renormalization.

    `BatchNormalization._renorm_correction_and_moments`: the formula has no public
    function, and a subclass may have another.
    """
    r, d, _, _ = layer._renorm_correction_and_moments(mean, variance)
    return r, d


def attach_logits(probabilities: Any, logits: Any) -> None:
    """Has Keras's losses start from the logits instead of their softmax.

    The attribute `_keras_logits` of a tensor, which Keras's own softmax sets: a loss
    finds the logits in no other way, unless it is told `from_logits=True`.
    """
    probabilities._keras_logits = logits


def mask_of(tensor: Any) -> Any:
    """Returns the mask that a layer gave its output, or None.

    The attribute `_keras_mask` of a tensor, which Keras's losses and metrics read, and
    which only the outputs of layers have.
    """
    try:
        return tensor._keras_mask
    except AttributeError:
        return None


def in_scratch_graph() -> bool:
    """Tells whether Keras calls this code only for the shapes of its results.

    On TensorFlow it does so in a `FuncGraph` named `scratch_graph`, with placeholders
    that no layer made: before `fit` with a strategy, of losses and metrics.
    """
    import tensorflow as tf

    try:
        name = tf.compat.v1.get_default_graph().name
    except AttributeError:  # only the graph of a function has one
        return False
    return str(name).startswith("scratch_graph")


def attach_mask(tensor: Any, mask: Any) -> None:
    """Has Keras's losses leave out what a mask leaves out.

    The attribute `_keras_mask` of a tensor.
    """
    tensor._keras_mask = mask


# Layers whose class `convert` changes.


def direct_sublayers(layer: keras.Layer) -> list[Any]:
    """Returns the layers directly inside a layer, in the order they were added.

    `Layer._flatten_layers`: `layers` is public, but only a model has it.
    """
    return list(layer._flatten_layers(include_self=False, recursive=False))


def set_policy(layer: keras.Layer, policy: Any) -> None:
    """Gives a layer a dtype policy, and takes its `DTypePolicyMap` from it, if any.

    `Layer._dtype_policy`: the public `dtype_policy` writes into that map instead, which
    other layers share.
    """
    layer._dtype_policy = policy


def set_input_dtype(layer: keras.layers.InputLayer, dtype: str) -> None:
    """Sets the dtype to which a functional or Sequential model casts an input.

    `InputLayer._dtype` and `KerasTensor._dtype`: they are set when the model is made.
    """
    layer._dtype = layer.output._dtype = dtype


def receivers(layer: keras.layers.InputLayer) -> list[Any]:
    """Returns the operations that are given the output of an InputLayer, in any graph.

    `Operation._outbound_nodes`: a functional model lists its operations, and not which
    of them is given what.
    """
    return [node.operation for node in layer._outbound_nodes]


def own_variables(layer: keras.Layer) -> list[tuple[Any, bool]]:
    """Returns the variables of a layer itself, each with True if listed as trainable.

    `Layer._trainable_variables` and `Layer._non_trainable_variables`: the public lists
    also hold the variables of sublayers, and a frozen weight among the non-trainable
    ones.
    """
    trainable, others = layer._trainable_variables, layer._non_trainable_variables
    return [(v, True) for v in trainable] + [(v, False) for v in others]


@contextmanager
def unlocked(layer: keras.Layer) -> Iterator[None]:
    """Lets the state of a built layer be replaced or extended inside a `with` block.

    `Layer._tracker`: `build` locks it, and nothing public unlocks it.
    """
    was_locked = layer._tracker.locked
    layer._tracker.unlock()
    try:
        yield
    finally:
        if was_locked:
            layer._tracker.lock()


def add_variable(layer: keras.Layer, variable: Any) -> None:
    """Appends a variable to the variables of a layer.

    `Layer._track_variable`: setting an attribute would, but under one name each.
    """
    layer._track_variable(variable)


def remove_variable(layer: keras.Layer, variable: Any) -> None:
    """Removes a variable from the variables of a layer.

    `Layer._untrack_variable`: deleting the attribute would, but loses the attribute.
    """
    layer._untrack_variable(variable)


def autocasts(variable: keras.Variable) -> bool:
    """Tells whether Keras casts a variable to the compute dtype where it is read.

    `Variable._autocast`: the constructor argument is public, but cannot be read.
    """
    return variable._autocast


def replicas_scope(variable: keras.Variable) -> Any:
    """Returns a context in which variables have as many copies as this one.

    `DistributedVariable.distribute_strategy`: TensorFlow exports `DistributedValues`,
    the class above it, which has no public way to its strategy.
    """
    import tensorflow as tf

    if not isinstance(variable.value, tf.distribute.DistributedValues):
        return nullcontext()
    return variable.value.distribute_strategy.scope()


def synchronization_argument(variable: keras.Variable) -> dict[str, Any]:
    """Returns what makes `keras.Variable` synchronize a new variable as another one.

    `Variable.synchronization` is public; before Keras 3.10 there is neither attribute
    nor argument.
    """
    if KERAS < (3, 10):
        return {}
    return {"synchronization": variable.synchronization}
