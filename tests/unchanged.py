"""What the tests of diagnostics share: a model is left as it was."""

import contextlib

import keras
import numpy as np

from keras_mp.keras_internals import KERAS

MAP = keras.dtype_policies.DTypePolicyMap


@contextlib.contextmanager
def unchanged(model):
    """Asserts that a `with` block changes nothing of a model."""
    model.optimizer.build(model.trainable_variables)
    variables = [*model.variables, *model.optimizer.variables, *model.metrics_variables]
    values = [variable.numpy().copy() for variable in variables]
    objects = objects_of(model)
    yield
    assert objects_of(model) == objects
    for variable, value in zip(variables, values, strict=True):
        np.testing.assert_array_equal(variable, value, err_msg=variable.path)


def objects_of(model):
    """Returns what its layers are and hold, in what can be compared."""
    return [
        (
            type(each),
            each._remat_mode if KERAS >= (3, 9) else None,
            dict(each.dtype_policy)
            if isinstance(each.dtype_policy, MAP)
            else each.dtype_policy,
            getattr(each, "return_sequences", None),
            sorted(name for name, value in vars(each).items() if callable(value)),
            [variable.regularizer for variable in each.trainable_variables],
            set(each._loss_ids),
            getattr(each, "_dropout_mask", None) is None,
        )
        for each in model._flatten_layers()
    ] + [type(each) for each in getattr(model, "operations", [])]
