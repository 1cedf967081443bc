"""Whether the variables of a checkpoint are those that are to be restored, by path."""

import re
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import keras

from keras_mp.optimizer.inner_optimizer import leaves

# Keras numbers names, also those of the weights inside the name of a slot.
_NUMBER = re.compile(r"_\d+(?=[_/]|$)")
_CLASSES = {name.lower() for name in dir(keras.optimizers)}
_SEED = "seed_generator/seed_generator_state"


def optimizer_names(objects: Sequence[Any]) -> set[str]:
    """Returns the names of all optimizers among objects, in models and in wrappers."""
    optimizers = [getattr(each, "optimizer", each) for each in objects]
    inner = [getattr(each, "inner_optimizer", each) for each in optimizers]
    every = [*optimizers, *(leaf for each in inner for leaf in leaves(each))]
    return {o.name for o in every if isinstance(o, keras.optimizers.Optimizer)}


def first_other_path(
    saved: Sequence[str], wanted: Sequence[str], optimizers: set[str]
) -> int | None:
    """Returns the position of the first variable that was saved for another one.

    The numbers that Keras appends to names depend on what else the process has made:
    `dense` may have been `dense_3`. If the same numbered names come in another order,
    nobody counted, and they are compared with their numbers. The names of two
    optimizers are compared where both are those that Keras makes of its classes.

    Args:
        saved: list of the paths in the checkpoint.
        wanted: list of paths, as many, in the same order.
        optimizers: set of str, the names of the optimizers to be restored.
    """
    pairs = [
        _without_optimizer(*paths, optimizers)
        for paths in zip(saved, wanted, strict=True)
    ]
    numbered = defaultdict(list)
    for i, (found, path) in enumerate(pairs):
        label = _NUMBER.sub("", path)
        if _NUMBER.sub("", found) != label:
            return i
        if label != _SEED:  # of a model and an optimizer, in whichever order made
            numbered[label].append(i)
    swapped = [
        i
        for indices in numbered.values()
        if sorted(pairs[i][0] for i in indices) == sorted(pairs[i][1] for i in indices)
        for i in indices
        if pairs[i][0] != pairs[i][1]
    ]
    return min(swapped, default=None)


def _without_optimizer(saved: str, wanted: str, names: set[str]) -> tuple[str, str]:
    """Returns two paths without the names of optimizers, if those may differ."""
    name, _, rest = wanted.partition("/")
    old_name, _, old_rest = saved.partition("/")
    both = {_class_of(name), _class_of(old_name)}
    if name not in names or (len(both) == 2 and both <= _CLASSES):
        return saved, wanted
    return old_rest, rest


def _class_of(name: str) -> str:
    """Returns the name of a class, in small letters, for the name that Keras makes."""
    return _NUMBER.sub("", name).replace("_", "").lower()
