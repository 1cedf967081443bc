"""Keras layers with 16-bit matrix products and sums that accumulate in FP32."""

from keras_mp import keras_internals
from keras_mp.layers.activations.activation import Activation
from keras_mp.layers.activations.softmax import Softmax
from keras_mp.layers.attention.additive_attention import AdditiveAttention
from keras_mp.layers.attention.attention import Attention
from keras_mp.layers.attention.grouped_query_attention import (
    GroupedQueryAttention as GroupQueryAttention,
)
from keras_mp.layers.attention.multi_head_attention import MultiHeadAttention
from keras_mp.layers.convolutional.conv import Conv1D, Conv2D, Conv3D
from keras_mp.layers.convolutional.conv_transpose import (
    Conv1DTranspose,
    Conv2DTranspose,
    Conv3DTranspose,
)
from keras_mp.layers.convolutional.depthwise_conv import (
    DepthwiseConv1D,
    DepthwiseConv2D,
)
from keras_mp.layers.convolutional.separable_conv import (
    SeparableConv1D,
    SeparableConv2D,
)
from keras_mp.layers.core.dense import Dense
from keras_mp.layers.core.einsum_dense import EinsumDense
from keras_mp.layers.core.embedding import Embedding
from keras_mp.layers.merging.add_and_average import Add, Average
from keras_mp.layers.merging.dot import Dot
from keras_mp.layers.normalization.batch_normalization import BatchNormalization
from keras_mp.layers.normalization.group_normalization import GroupNormalization
from keras_mp.layers.normalization.layer_normalization import LayerNormalization
from keras_mp.layers.normalization.normalization import Normalization
from keras_mp.layers.normalization.spectral_normalization import SpectralNormalization
from keras_mp.layers.normalization.unit_normalization import UnitNormalization
from keras_mp.layers.pooling.average_pooling import (
    AveragePooling1D,
    AveragePooling2D,
    AveragePooling3D,
)
from keras_mp.layers.pooling.global_average_pooling import (
    GlobalAveragePooling1D,
    GlobalAveragePooling2D,
    GlobalAveragePooling3D,
)
from keras_mp.layers.probe import Probe
from keras_mp.layers.rnn.conv_lstm import ConvLSTM1D, ConvLSTM2D, ConvLSTM3D
from keras_mp.layers.rnn.gru import GRU
from keras_mp.layers.rnn.gru_cell import GRUCell
from keras_mp.layers.rnn.lstm import LSTM
from keras_mp.layers.rnn.lstm_cell import LSTMCell
from keras_mp.layers.rnn.simple_rnn import SimpleRNN
from keras_mp.layers.rnn.simple_rnn_cell import SimpleRNNCell

__all__ = [
    "GRU",
    "LSTM",
    "Activation",
    "Add",
    "AdditiveAttention",
    "Attention",
    "Average",
    "AveragePooling1D",
    "AveragePooling2D",
    "AveragePooling3D",
    "BatchNormalization",
    "Conv1D",
    "Conv1DTranspose",
    "Conv2D",
    "Conv2DTranspose",
    "Conv3D",
    "Conv3DTranspose",
    "ConvLSTM1D",
    "ConvLSTM2D",
    "ConvLSTM3D",
    "Dense",
    "DepthwiseConv1D",
    "DepthwiseConv2D",
    "Dot",
    "EinsumDense",
    "Embedding",
    "GRUCell",
    "GlobalAveragePooling1D",
    "GlobalAveragePooling2D",
    "GlobalAveragePooling3D",
    "GroupNormalization",
    "GroupQueryAttention",
    "LSTMCell",
    "LayerNormalization",
    "MultiHeadAttention",
    "Normalization",
    "Probe",
    "SeparableConv1D",
    "SeparableConv2D",
    "SimpleRNN",
    "SimpleRNNCell",
    "Softmax",
    "SpectralNormalization",
    "UnitNormalization",
]

if keras_internals.has("RMSNormalization"):
    from keras_mp.layers.normalization.rms_normalization import (
        RMSNormalization as RMSNormalization,
    )

    __all__ += ["RMSNormalization"]

if keras_internals.has("ReversibleEmbedding"):
    from keras_mp.layers.core.reversible_embedding import (
        ReversibleEmbedding as ReversibleEmbedding,
    )

    __all__ += ["ReversibleEmbedding"]

if keras_internals.has("AdaptiveAveragePooling1D"):
    from keras_mp.layers.pooling.adaptive_average_pooling import (
        AdaptiveAveragePooling1D as AdaptiveAveragePooling1D,
    )
    from keras_mp.layers.pooling.adaptive_average_pooling import (
        AdaptiveAveragePooling2D as AdaptiveAveragePooling2D,
    )
    from keras_mp.layers.pooling.adaptive_average_pooling import (
        AdaptiveAveragePooling3D as AdaptiveAveragePooling3D,
    )

    __all__ += [f"AdaptiveAveragePooling{rank}D" for rank in (1, 2, 3)]
