"""The weights of a trained model in a given dtype, for inference."""

from typing import Any

import keras
import numpy as np

from keras_mp.dtypes import is_half
from keras_mp.optimizer import FP32MasterOptimizer
from keras_mp.optimizer.compression import round_nearest
from keras_mp.optimizer.sharding import to_numpy
from keras_mp.typing import Tensor


def export_weights(model: keras.Model, dtype: str = "float32") -> list[np.ndarray]:
    """Returns all weights of `model` in `dtype`, the trained ones from the masters.

    A weight with an FP32 master is replaced by the master, rounded to `dtype` (to
    nearest even, saturating). Any other floating-point weight is cast; integers stay
    unchanged. If several processes share an optimizer's state (`shard_state=True`), all
    must call this.

    Args:
        model: `keras.Model`, compiled with a wrapped optimizer or not at all.
        dtype: `"float32"`, `"float16"`, `"bfloat16"` or `"float64"`. Defaults to
            `"float32"`.

    Returns:
        List of arrays in the order of `model.get_weights()`, for the `set_weights`
        of the same model built under another dtype policy.

    Raises:
        ValueError: `dtype` is not one of these.

    Example:

    >>> layer = keras.layers.Dense(1, use_bias=False, dtype="float16")
    >>> model = keras.Sequential([keras.Input((1,)), layer])
    >>> model.compile(optimizer=keras_mp.wrap("sgd"), loss="mse")
    >>> [w.dtype.name for w in keras_mp.export_weights(model, "float32")]
    ['float32']

    Reference: Mixed Precision Training, section 3.1.
    """
    dtypes = ("float32", "float16", "bfloat16", "float64")
    if dtype not in dtypes:
        raise ValueError(f"`dtype` must be one of {dtypes}. Received: dtype={dtype!r}.")
    optimizer = getattr(model, "optimizer", None)
    masters: dict[int, Any] = {}
    if isinstance(optimizer, FP32MasterOptimizer):
        masters = optimizer.current_masters()
    return [
        _convert(masters.get(id(weight), weight), dtype) for weight in model.weights
    ]


def _convert(value: Tensor, dtype: str) -> np.ndarray:
    if not keras.backend.is_float_dtype(value.dtype):
        return np.asarray(value)
    if is_half(dtype):
        value = round_nearest(keras.ops.cast(value, "float32"), dtype)
    # By NumPy, since JAX has float64 only with `jax_enable_x64`.
    return to_numpy(value).astype(dtype, copy=False)
