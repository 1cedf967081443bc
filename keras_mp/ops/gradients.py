"""When the operations of a gradient run."""

import functools
from collections.abc import Callable
from typing import Any

import tensorflow as tf


def late(gradient: Callable[..., Any]) -> Callable[..., Any]:
    """Has the operations of a gradient function wait for what it is called with.

    A graph runs each operation as soon as it has its inputs, and once what is written
    twice: what a gradient computes of the inputs alone, their FP32 copies above all,
    would be computed in the forward pass and held.
    """

    @functools.wraps(gradient)
    def waiting(*upstream: tf.Tensor) -> Any:
        with tf.control_dependencies(upstream):
            return gradient(*upstream)

    return waiting
