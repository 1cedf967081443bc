"""Which of two computations runs: that for XLA, or that for TensorFlow's kernels."""

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from keras_mp.ops import native


def choose(under_xla: Callable[[], Any], elsewhere: Callable[[], Any]) -> Any:
    """Returns what `under_xla` computes where XLA compiles, else what `elsewhere` does.

    Both return tensors of the same number and dtypes. While a function is traced,
    nobody knows whether XLA will compile it: an op of the native library tells when
    the graph runs. Without the library, a graph takes `under_xla`.
    """
    if tf.executing_eagerly():
        return elsewhere()
    ops = native.library()
    if ops is None:
        return under_xla()
    return tf.switch_case(ops.keras_mp_in_xla(), [elsewhere, under_xla])


def has_accelerator() -> bool:
    """Tells whether TensorFlow sees a GPU or TPU."""
    kinds = ("GPU", "TPU")
    return any(tf.config.list_logical_devices(kind) for kind in kinds)
