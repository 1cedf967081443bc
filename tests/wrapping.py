"""The optimizer of a test, as the training scripts of the examples wrap it."""

import keras_mp


def optimizer_for(precision, optimizer):
    """Wraps an optimizer as a `Precision` or `Run` asks."""
    if precision.wrap_options is None:
        return optimizer
    return keras_mp.wrap(optimizer, **precision.wrap_options)
