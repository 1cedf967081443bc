"""Which variables of a step a kernel updates, and which the inner optimizer."""

from collections.abc import Callable, Sequence
from typing import Any

from keras import ops

from keras_mp import keras_internals
from keras_mp.optimizer.backend_tf import Runner
from keras_mp.optimizer.master_weights import Kept, MasterWeights
from keras_mp.optimizer.masters import reference_of
from keras_mp.optimizer.rules import (
    AROUND_A_RULE,
    FusedRule,
    rule_of,
    rule_of_some,
    what_has_no_rule,
)
from keras_mp.optimizer.update.fused import FusedUpdate, chosen, fused_part
from keras_mp.optimizer.update.rule_with_options import (
    RuleWithOptions,
    check_what_is_kept,
    clips_rows,
    has_options_around,
)
from keras_mp.optimizer.update.stored import StoredUpdate, with_dense_rows
from keras_mp.optimizer.update.unfused import InnerUpdate

Update = FusedUpdate | InnerUpdate | RuleWithOptions | StoredUpdate


def plan(
    optimizer: Any,
    master_weights: MasterWeights,
    gradients: Sequence[Any],
    masters: Sequence[Any],
    scale: Any,
    replicas: int,
    run: Runner,
) -> list[Update]:
    """Divides a step into the variables for a kernel and those for the optimizer.

    Args:
        optimizer: the inner `keras.optimizers.Optimizer`.
        master_weights: `MasterWeights`.
        gradients: list of tensors, `tf.IndexedSlices` or None, of the scaled loss.
        masters: list of their variables.
        scale: scalar float32 tensor that the gradients are divided by, or None.
        replicas: int, how many take this step.
        run: the `Runner` that calls an update of the optimizer on them.

    Returns:
        List of one or two parts, with the methods `check` and `apply`.
    """
    if master_weights.are_compressed:
        step = (gradients, masters, scale, replicas, run)
        return _of_compressed_state(optimizer, master_weights, *step)
    if replicas == 1 and has_options_around(optimizer):
        update = _with_options(
            optimizer, master_weights, gradients, masters, scale, run
        )
        if update is not None:
            return [update]
    rule = rule_of_some(optimizer)
    fused = fused_part(optimizer, rule, master_weights, gradients, masters)
    if len(fused) == sum(gradient is not None for gradient in gradients):
        # This warns of missing gradients, which the inner optimizer would do itself.
        gradients, masters = keras_internals.without_missing_gradients(
            optimizer, gradients, masters
        )
        fused = list(range(len(gradients)))

    def by_the_optimizer(gradients: list[Any], masters: list[Any]) -> InnerUpdate:
        weights = master_weights.of(masters) if fused else master_weights
        return InnerUpdate(optimizer, weights, gradients, masters, scale, replicas, run)

    whole = (optimizer, rule, master_weights, gradients, masters, scale)
    return _divided(*whole, fused, by_the_optimizer)


def _with_options(
    optimizer: Any,
    master_weights: MasterWeights,
    gradients: Sequence[Any],
    masters: Sequence[Any],
    scale: Any,
    run: Runner,
) -> RuleWithOptions | None:
    """Returns the update of FP32 masters by the kernel, with options around its rule.

    None if the kernel does not take all variables: Keras updates them then.
    """
    rule = rule_of(optimizer, AROUND_A_RULE)
    fused = fused_part(optimizer, rule, master_weights, gradients, masters)
    if rule is None or len(fused) < sum(gradient is not None for gradient in gradients):
        return None
    kept = Kept.of(optimizer)
    if any(variable is None for variable in kept.variables):
        return None
    gradients, masters = keras_internals.without_missing_gradients(
        optimizer, gradients, masters
    )
    return RuleWithOptions(
        optimizer, master_weights, gradients, masters, scale, 1, run, rule, kept
    )


def _of_compressed_state(
    optimizer: Any,
    master_weights: MasterWeights,
    gradients: Sequence[Any],
    masters: Sequence[Any],
    scale: Any,
    replicas: int,
    run: Runner,
) -> list[Update]:
    """Returns the updates of all variables: by the kernel, of those that it takes.

    Raises:
        ValueError: an option was set after the optimizer was wrapped that no rule has;
            or the gradient of a variable replaces it.
    """
    rule = rule_of(optimizer, AROUND_A_RULE)
    if rule is None:
        missing = what_has_no_rule(optimizer, AROUND_A_RULE)
        raise ValueError(
            "Compressed optimizer state needs an optimizer that the kernel of the "
            f"update implements. Received: {missing}. Leave the "
            "option as it was when the optimizer was wrapped."
        )
    gradients, masters = keras_internals.without_missing_gradients(
        optimizer, gradients, masters
    )
    for master in masters:
        if keras_internals.is_replaced_by_gradient(optimizer, reference_of(master)):
            raise ValueError(
                "Compressed optimizer state is for variables that an optimizer moves. "
                f"Received: {reference_of(master).path}, which its gradient replaces "
                "(`overwrite_with_gradient`, as in FP8 training). Choose "
                'masters="float32" and state="float32".'
            )
    rest = (scale, replicas, run, rule)
    if has_options_around(optimizer) or clips_rows(optimizer, gradients):
        kept = master_weights.kept
        check_what_is_kept(optimizer, kept)
        return [
            RuleWithOptions(
                optimizer, master_weights, gradients, masters, *rest, kept=kept
            )
        ]
    gradients = with_dense_rows(optimizer, rule, gradients)

    def in_plain_operations(gradients: list[Any], masters: list[Any]) -> StoredUpdate:
        return StoredUpdate(optimizer, master_weights, gradients, masters, *rest)

    fused = fused_part(optimizer, rule, master_weights, gradients, masters)
    whole = (optimizer, rule, master_weights, gradients, masters, scale)
    return _divided(*whole, fused, in_plain_operations)


def _divided(
    optimizer: Any,
    rule: FusedRule | None,
    master_weights: MasterWeights,
    gradients: Sequence[Any],
    masters: Sequence[Any],
    scale: Any,
    fused: Sequence[int],
    update_of_others: Callable[[list[Any], list[Any]], Update],
) -> list[Update]:
    """Returns the update of the variables of the indices `fused`, and of the others."""
    others = sorted(set(range(len(masters))) - set(fused))
    parts: list[Update] = []
    if rule is not None and fused:
        own_gradients, own_masters = chosen(fused, gradients, masters)
        parts.append(
            FusedUpdate(
                optimizer,
                rule,
                master_weights,
                own_gradients,
                own_masters,
                ops.ones(()) if scale is None else scale,
                counts_the_step=not others,
            )
        )
    if others:
        parts.append(update_of_others(*chosen(others, gradients, masters)))
    return parts
