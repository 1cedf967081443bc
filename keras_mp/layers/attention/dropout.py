"""The dropout of attention weights. The kernel makes no tensor for it."""

from typing import Any

import keras
import numpy as np
from keras import ops

from keras_mp import keras_internals
from keras_mp.typing import Tensor


def drops_by_position(rate: float) -> bool:
    """Tells whether the kernel has such a rate, which in FP32 is below 1."""
    return bool(np.float32(rate) < 1)


def hashes_positions() -> bool:
    """Tells whether the hash is computed where the weights are.

    On a machine with a GPU, TensorFlow computes with int32 tensors on the CPU.
    """
    if keras.backend.backend() != "tensorflow":
        return False
    from keras_mp.ops.kernels.dispatch import has_accelerator

    return not has_accelerator()


class AttentionDropout(keras.layers.Dropout):
    """Drops weights `[batch, heads, queries, keys]` by a hash of their position.

    So a layer drops the same weights by the kernel, which makes no tensor of them, and
    when it returns them, in 16 bits and in FP32. With another rank, on a GPU, and on
    another backend than TensorFlow, it is Keras's dropout.

    Args: as in `keras.layers.Dropout`.
    """

    @classmethod
    def in_place_of(cls, dropout: keras.layers.Dropout) -> "AttentionDropout":
        """Returns one with the rate, the name and the seeds of Keras's."""
        # Without a rate no seeds are drawn, which other layers would then not get.
        found = cls(0.0, dtype=dropout.dtype_policy, name=dropout.name)
        found.rate, found.seed = dropout.rate, dropout.seed
        if dropout.rate > 0:
            with keras_internals.unlocked(found):
                found.seed_generator = dropout.seed_generator
        return found

    def call(self, inputs: Tensor, training: bool | None = False) -> Tensor:
        is_own = len(inputs.shape) == 4 and drops_by_position(self.rate)
        if not training or not is_own or not hashes_positions():
            return super().call(inputs, training=bool(training))
        from keras_mp.ops.attention_dropout import check_rate, draw, drop

        rate = check_rate(self.rate)
        return drop(inputs, rate, draw(self.seed_generator)) if rate else inputs


def drop_without_heads(weights: Tensor, rate: float, seed: Any) -> Any:
    """Drops weights `[batch, queries, keys]` as for one head.

    Args:
        weights: float tensor.
        rate: float from [0, 1]; 1 drops all.
        seed: `keras.random.SeedGenerator`.
    """
    from keras_mp.ops.attention_dropout import check_rate, draw, drop

    if not drops_by_position(rate):
        return ops.zeros_like(weights)
    of_one_head = ops.expand_dims(weights, 1)
    return ops.squeeze(drop(of_one_head, check_rate(rate), draw(seed)), 1)


class DropsByPosition:
    """Mixin for a Keras attention, which drops weights by an `AttentionDropout`.

    The assignment of Keras's `Dropout` to an attribute is where it is replaced, as in
    `FP32Projections`.
    """

    def __setattr__(self, name: str, value: Any) -> None:
        if type(value) is keras.layers.Dropout:
            value = AttentionDropout.in_place_of(value)
        super().__setattr__(name, value)
