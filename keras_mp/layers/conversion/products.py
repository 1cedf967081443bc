"""The layers that can multiply FP16 numbers with FP32 results."""

from typing import Any

from keras_mp import keras_internals
from keras_mp.layers.attention.additive_attention import AdditiveAttention
from keras_mp.layers.attention.attention import Attention
from keras_mp.layers.attention.grouped_query_attention import GroupedQueryAttention
from keras_mp.layers.attention.multi_head_attention import MultiHeadAttention
from keras_mp.layers.conversion.counterparts import converted_class
from keras_mp.layers.core.dense import Dense
from keras_mp.layers.core.einsum_dense import EinsumDense
from keras_mp.layers.merging.dot import Dot

# The layers that do as `Float16MatmulPolicy` says.
WITH_PRODUCTS: tuple[type, ...] = (
    AdditiveAttention,
    Attention,
    Dense,
    Dot,
    EinsumDense,
    GroupedQueryAttention,
    MultiHeadAttention,
)
if keras_internals.has("ReversibleEmbedding"):
    from keras_mp.layers.core.reversible_embedding import ReversibleEmbedding

    WITH_PRODUCTS += (ReversibleEmbedding,)


def computes_products(layer: Any) -> bool:
    """Tells whether a layer, once converted, multiplies in FP16 with FP32 results."""
    return issubclass(converted_class(layer), WITH_PRODUCTS)
