"""Keras layers whose 16-bit products accumulate in FP32."""

from keras_mp.layers.additive_attention import AdditiveAttention
from keras_mp.layers.attention import Attention
from keras_mp.layers.conv1d import Conv1D
from keras_mp.layers.conv2d import Conv2D
from keras_mp.layers.conv2d_transpose import Conv2DTranspose
from keras_mp.layers.conv3d import Conv3D
from keras_mp.layers.convert import convert as convert
from keras_mp.layers.dense import Dense
from keras_mp.layers.depthwise_conv2d import DepthwiseConv2D
from keras_mp.layers.einsum_dense import EinsumDense
from keras_mp.layers.gru import GRU
from keras_mp.layers.gru_cell import GRUCell
from keras_mp.layers.lstm import LSTM
from keras_mp.layers.lstm_cell import LSTMCell
from keras_mp.layers.multi_head_attention import MultiHeadAttention
from keras_mp.layers.separable_conv2d import SeparableConv2D

__all__ = [
    "GRU",
    "LSTM",
    "AdditiveAttention",
    "Attention",
    "Conv1D",
    "Conv2D",
    "Conv2DTranspose",
    "Conv3D",
    "Dense",
    "DepthwiseConv2D",
    "EinsumDense",
    "GRUCell",
    "LSTMCell",
    "MultiHeadAttention",
    "SeparableConv2D",
]
