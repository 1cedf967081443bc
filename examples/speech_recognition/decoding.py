"""From the logits of characters to text."""

import keras
import tensorflow as tf
from speech_recognition.batches import text
from speech_recognition.model import BLANK


def transcribe(model: keras.Model, batches: tf.data.Dataset) -> list[str]:
    """Returns what the network hears in each utterance: its best path, greedily."""
    texts: list[str] = []
    for inputs, _ in batches:
        logits = model.predict_on_batch(inputs)
        # Padding is blank, so that the logits of a batch may be read to their end.
        utterances, frames, _ = logits.shape
        paths, _ = keras.ops.ctc_decode(
            logits, [frames] * utterances, strategy="greedy", mask_index=BLANK
        )
        texts += [text(labels) for labels in keras.ops.convert_to_numpy(paths[0])]
    return texts
