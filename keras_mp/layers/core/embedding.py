"""Embedding: ids that 16 bits have rounded are refused."""

from typing import Any

import keras

from keras_mp.typing import Tensor

# The largest number up to which each has every whole number.
_EXACT = {"float16": 2048, "bfloat16": 256}


@keras.saving.register_keras_serializable(package="keras_mp")
class Embedding(keras.layers.Embedding):
    """`keras.layers.Embedding`, which refuses ids that 16 bits may have rounded.

    FP16 has every whole number up to 2,048 and bfloat16 up to 256; above them, another
    row of the table would be read and trained. Ids come in 16 bits from a `Sequential`
    model without `keras.Input`, which casts integers too, and from a subclassed model
    or layer, if it is called with float ids, which are cast.

    Args: as in `keras.layers.Embedding`.

    Raises:
        ValueError: when called, `input_dim` is larger than that, and ids have 16 bits.

    Example:

    >>> layer = keras_mp.layers.Embedding(3000, 2, "ones", dtype="mixed_float16")
    >>> layer(np.array([2049])).numpy()
    array([[1., 1.]], dtype=float16)
    >>> layer(np.array([2049], "float16"))
    Traceback (most recent call last):
    ValueError: ...An Embedding must get ids that are not rounded. Received: ...

    Reference: Mixed Precision Training, section 3.
    """

    delegated_methods = frozenset({"call", "quantized_call"})

    def call(self, inputs: Tensor) -> Tensor:
        refuse_rounded_ids(self, inputs)
        return super().call(inputs)

    def quantized_call(self, inputs: Tensor, *args: Any, **options: Any) -> Any:
        refuse_rounded_ids(self, inputs)
        return super().quantized_call(inputs, *args, **options)


def refuse_rounded_ids(layer: keras.layers.Embedding, ids: Any) -> None:
    """Raises where an embedding has more words than the dtype of its ids tells apart.

    Args:
        layer: the embedding.
        ids: tensor.

    Raises:
        ValueError: it has.
    """
    dtype = keras.backend.standardize_dtype(ids.dtype)
    if layer.input_dim > _EXACT.get(dtype, layer.input_dim):
        raise ValueError(
            "An Embedding must get ids that are not rounded. Received: "
            f"{layer.name!r}, of input_dim={layer.input_dim}, with ids in {dtype}, "
            f"which has not every whole number above {_EXACT[dtype]}. Pass integers, "
            "to a model with keras.Input(shape, dtype='int32') or after "
            "keras_mp.convert(model); a subclassed model or layer that takes float ids "
            "needs dtype='float32'."
        )
