"""Which variables of a step a kernel updates, and which the inner optimizer."""

from collections.abc import Sequence
from typing import Any

from keras import ops

from keras_mp import keras_internals
from keras_mp.optimizer.backend import Runner
from keras_mp.optimizer.master_weights import MasterWeights
from keras_mp.optimizer.update.fused import FusedUpdate, fused_part
from keras_mp.optimizer.update.fused_rules import rule_of
from keras_mp.optimizer.update.unfused import InnerUpdate


def plan(
    optimizer: Any,
    master_weights: MasterWeights,
    gradients: Sequence[Any],
    masters: Sequence[Any],
    scale: Any,
    replicas: int,
    run: Runner,
) -> list[FusedUpdate | InnerUpdate]:
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
    rule = rule_of(optimizer)
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

    parts: list[FusedUpdate | InnerUpdate] = []
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
