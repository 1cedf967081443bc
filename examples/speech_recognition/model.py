"""DeepSpeech 2 (Amodei et al., 2015), from the layers of keras_mp.

An utterance is padded to the length of the longest of its batch. A mask goes through
the network beside it, `[batch, time]` and true where there is speech, so that padding
changes nothing of what the network hears in an utterance.
"""

from collections.abc import Sequence
from typing import Any

import keras
from keras import ops

import keras_mp

# The clipped rectifier of DeepSpeech 2: min(max(x, 0), 20).
CLIP = 20.0
# Index of CTC's blank, as in keras.losses.CTC; the characters follow it.
BLANK = 0
# A logit that no other one comes near, and whose softmax is exactly 0.
NEVER = -1e9


def deep_speech_2(
    features: int,
    classes: int,
    *,
    convolutions: Sequence[Sequence[int]],
    units: int,
    layers: int,
    context: int,
) -> keras.Model:
    """Returns DeepSpeech 2: from features and lengths to the logits of characters.

    Args:
        features: Integer. The number of features of a frame.
        classes: Integer. The number of characters, and one for the blank.
        convolutions: Of each its number of filters, the size of a kernel and its stride
            in time, the size of a kernel and its stride in frequency.
        units: Integer. The width of a GRU in one direction.
        layers: Integer. The number of bidirectional GRUs.
        context: Integer. The number of frames that the row convolution looks ahead.

    Returns:
        `keras.Model` of `{"features": [batch, time, features], "lengths": [batch]}`,
        with FP32 logits `[batch, time / product of the strides, classes]`.
    """
    inputs = {
        "features": keras.Input((None, features), name="features"),
        "lengths": keras.Input((), dtype="int32", name="lengths"),
    }
    speech = SpeechMask(name="speech")(inputs["features"], inputs["lengths"])
    x = keras.layers.Reshape((-1, features, 1), name="image")(inputs["features"])
    for i, (filters, *sizes) in enumerate(convolutions):
        x, speech = Convolution(filters, *sizes, name=f"convolution_{i}")(x, speech)
    x = keras.layers.Reshape((-1, x.shape[2] * x.shape[3]), name="frames")(x)
    for i in range(layers):
        normalize = keras_mp.layers.BatchNormalization(name=f"normalization_{i}")
        gru = keras_mp.layers.GRU(units, return_sequences=True)
        both = keras.layers.Bidirectional(gru, merge_mode="sum", name=f"gru_{i}")
        x = both(normalize(x, mask=speech), mask=speech)
    x = RowConvolution(context, name="row_convolution")(x, speech)
    x = keras_mp.layers.Dense(classes, name="characters")(x)
    logits = BlankAfterSpeech(dtype="float32", name="logits")(x, speech)
    return keras.Model(inputs, logits, name="deep_speech_2")


class SpeechMask(keras.layers.Layer):
    """Returns which frames `[batch, time]` are speech, and not padding."""

    def call(self, features: Any, lengths: Any) -> Any:
        frames = ops.arange(ops.shape(features)[1], dtype="int32")
        return frames < ops.expand_dims(lengths, 1)


class Convolution(keras.layers.Layer):
    """Convolution over time and frequency, batch normalization, clipped rectifier.

    Zeros are added on all sides alike. Keras's `padding="same"` adds as many as the
    length of the batch asks for: in a longer batch the network would see other frames
    of the same utterance.

    Args:
        filters: Integer. The number of filters.
        time: Integer, odd. The size of a kernel in time.
        time_stride: Integer.
        frequency: Integer, odd. The size of a kernel in frequency.
        frequency_stride: Integer.
    """

    def __init__(
        self,
        filters: int,
        time: int,
        time_stride: int,
        frequency: int,
        frequency_stride: int,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        self.sizes = (filters, time, time_stride, frequency, frequency_stride)
        self.pad = keras.layers.ZeroPadding2D((time // 2, frequency // 2))
        self.convolve = keras_mp.layers.Conv2D(
            filters,
            (time, frequency),
            strides=(time_stride, frequency_stride),
            use_bias=False,
        )
        self.normalize = keras_mp.layers.BatchNormalization()
        self.rectify = keras.layers.ReLU(CLIP)

    def call(self, image: Any, speech: Any, training: bool = False) -> Any:
        x = self.convolve(self.pad(image))
        speech = speech[:, :: self.sizes[2]]
        mask = ops.broadcast_to(ops.expand_dims(speech, 2), ops.shape(x)[:3])
        x = self.rectify(self.normalize(x, training=training, mask=mask))
        return ops.where(ops.expand_dims(mask, 3), x, ops.zeros_like(x)), speech


class RowConvolution(keras.layers.Layer):
    """Mixes each frame with those that follow: r[t] = sum over j of w[j] * h[t + j].

    Each feature has weights w of its own, for j from 0 to `context`; after the end of
    speech h is 0.

    Args:
        context: Integer. The number of frames to look ahead.
    """

    def __init__(self, context: int, **options: Any) -> None:
        super().__init__(**options)
        self.context = context
        self.convolve = keras_mp.layers.DepthwiseConv1D(context + 1, use_bias=False)

    def call(self, frames: Any, speech: Any) -> Any:
        h = ops.where(ops.expand_dims(speech, 2), frames, ops.zeros_like(frames))
        return self.convolve(ops.pad(h, [[0, 0], [0, self.context], [0, 0]]))

    def compute_mask(self, frames: Any, previous_mask: Any) -> None:
        """Takes the mask that the GRU gave to its outputs off them."""


class BlankAfterSpeech(keras.layers.Layer):
    """Returns logits in FP32, by which padding is blank with probability 1.

    The CTC loss of an utterance that goes on in blanks is that of the utterance, and so
    are its gradients: the loss and the decoder need not be told the lengths.
    """

    def call(self, logits: Any, speech: Any) -> Any:
        blank = ops.arange(logits.shape[-1]) == BLANK
        padding = ops.where(blank, 0.0, NEVER)
        return ops.where(ops.expand_dims(speech, 2), logits, padding)
