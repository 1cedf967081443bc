"""Which variables of a step a kernel updates, and which the inner optimizer."""

from collections.abc import Sequence
from typing import Any

from keras import ops

from keras_mp import keras_internals
from keras_mp.optimizer.backend import Runner, backend
from keras_mp.optimizer.master_weights import MasterWeights
from keras_mp.optimizer.update.fused import FusedUpdate, fused_part
from keras_mp.optimizer.update.fused_rules import (
    AROUND_A_RULE,
    rule_of,
    rule_of_some,
    what_has_no_rule,
)
from keras_mp.optimizer.update.rule_with_options import (
    RuleWithOptions,
    check_what_is_kept,
    clips_rows,
    has_options_around,
)
from keras_mp.optimizer.update.stored import StoredUpdate
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
        return [_of_compressed_state(optimizer, master_weights, *step)]
    rule = rule_of_some(optimizer)
    fused = fused_part(optimizer, rule, master_weights, gradients, masters)
    if len(fused) == sum(gradient is not None for gradient in gradients):
        # This warns of missing gradients, which the inner optimizer would do itself.
        gradients, masters = keras_internals.without_missing_gradients(
            optimizer, gradients, masters
        )
        fused, rest = list(range(len(gradients))), []
    else:
        rest = sorted(set(range(len(gradients))) - set(fused))

    def those(indices: list[int]) -> tuple[list[Any], list[Any]]:
        return [gradients[i] for i in indices], [masters[i] for i in indices]

    parts: list[Update] = []
    if rule is not None and fused:
        divisor = ops.ones(()) if scale is None else scale
        parts.append(
            FusedUpdate(
                optimizer,
                rule,
                master_weights,
                *those(fused),
                divisor,
                counts_the_step=not rest,
            )
        )
    if rest:
        own = master_weights.of(those(rest)[1]) if fused else master_weights
        parts.append(InnerUpdate(optimizer, own, *those(rest), scale, replicas, run))
    return parts


def _of_compressed_state(
    optimizer: Any,
    master_weights: MasterWeights,
    gradients: Sequence[Any],
    masters: Sequence[Any],
    scale: Any,
    replicas: int,
    run: Runner,
) -> FusedUpdate | StoredUpdate | RuleWithOptions:
    """Returns the one update of all variables: by the kernel, if it takes all of them.

    Raises:
        ValueError: an option was set after the optimizer was wrapped that no rule has.
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
    rest = (scale, replicas, run, rule)
    if has_options_around(optimizer) or clips_rows(optimizer, gradients):
        check_what_is_kept(optimizer, master_weights)
        return RuleWithOptions(optimizer, master_weights, gradients, masters, *rest)
    # Of a sparse gradient all rows are needed: the slots of each row decay.
    gradients = [backend.as_dense(gradient) for gradient in gradients]
    fused = fused_part(optimizer, rule, master_weights, gradients, masters)
    if len(fused) < len(masters):
        return StoredUpdate(optimizer, master_weights, gradients, masters, *rest)
    return FusedUpdate(
        optimizer,
        rule,
        master_weights,
        gradients,
        masters,
        ops.ones(()) if scale is None else scale,
        counts_the_step=True,
    )
