"""`suggest_loss_scale`: a constant loss scale from the gradients of some batches."""

import itertools
import math
from collections.abc import Iterable
from typing import Any

import keras
import numpy as np

from keras_mp.arguments import positive_number, whole_number
from keras_mp.diagnostics.division_by_zero import advice_on, find_divisor
from keras_mp.diagnostics.numerics import scale_below_overflow
from keras_mp.loss_scale import ConstantLossScale
from keras_mp.precision.batch import as_batch, check_model, master_values
from keras_mp.precision.run import run_batch


def suggest_loss_scale(
    model: keras.Model,
    dataset: Iterable[Any],
    batches: int = 10,
    margin: float = 2.0,
) -> ConstantLossScale:
    """Chooses a constant loss scale by the rule of the paper.

    The largest power of two that, times `margin` and the largest magnitude of an
    activation or weight gradient, computed in FP32, is below 65,504; from 2**-14 to
    2**24. Nothing of the model is changed.

    Args:
        model: `keras.Model`, built and compiled. Its optimizer need not be wrapped.
        dataset: `tf.data.Dataset` or another iterable of batches, each a tuple
            `(x, y)` or `(x, y, sample_weight)`.
        batches: int, how many of them are run. Defaults to 10.
        margin: positive float, by how much the gradients of other batches may be
            larger. Gradients are often largest at the beginning of training, but need
            not be. Defaults to 2.

    Returns:
        `ConstantLossScale`, for `keras_mp.wrap(optimizer, loss_scale=...)`.

    Raises:
        TypeError, ValueError, RuntimeError: as for `inspect`; and if the dataset is
            empty, a layer divides by zero, or all gradients are zero.

    Example:

    >>> model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    >>> model.compile(optimizer="sgd", loss=lambda y, p: 2.0**-20 * p[:, 0])
    >>> data = [(np.ones((2, 4)), np.ones((2, 1)))]
    >>> keras_mp.suggest_loss_scale(model, data)
    ConstantLossScale(value=16777216.0)

    Reference: Mixed Precision Training, section 3.2.
    """
    check_model(model)
    batches = whole_number("batches", batches, "Try 10.")
    margin = positive_number("margin", margin, "Try 2.")
    masters = master_values(model)
    largest, count = 0.0, 0
    for batch in itertools.islice(dataset, batches):
        batch = as_batch(*keras.utils.unpack_x_y_sample_weight(batch))
        found = run_batch(model, batch, dtype="float32", masters=masters)
        divisor = find_divisor(found.calls)
        if divisor is not None:
            raise ValueError(
                "A loss scale follows from gradients of bounded size. Received: a "
                f"division by zero in batch {count}. {advice_on(divisor)}"
            )
        gradients = [*found.activation_gradients, *found.weight_gradients]
        for path, gradient in gradients:
            size = float(np.max(np.abs(gradient), initial=0.0))
            if not math.isfinite(size):
                raise ValueError(
                    "Gradients in FP32 must be finite. Received: a largest magnitude "
                    f"of {size} for {path!r} in batch {count}. "
                    "keras_mp.find_overflow(model, x, y) tells where it comes from."
                )
            largest = max(largest, size)
        count += 1
    if not count:
        raise ValueError(
            "`dataset` must have at least one batch. Received: none. An iterator may "
            "be exhausted; pass the dataset itself."
        )
    if not largest:
        raise ValueError(
            "A loss scale follows from gradients that are not zero. Received: zeros "
            f"only, in {count} batches. Does the loss depend on the weights?"
        )
    return ConstantLossScale(scale_below_overflow(largest * margin))
