"""bigLSTM: a language model of LSTMs with a projection, and a sampled softmax.

The dtype policy of Keras decides how weights, activations and gradients are stored.
FP32 in every precision are the sums of all products, the gates of the LSTM, the logits
and the cross entropy.
"""

import keras
from keras import layers
from language_model.lstm import ProjectedLSTM
from language_model.sampled_softmax import SampledSoftmax


def build(
    *,
    words: int,
    width: int,
    units: int,
    num_layers: int,
    dropout: float,
    sampled: int,
    batch: int,
    carry: int,
    seed: int,
) -> keras.Model:
    """Returns the model: from (word ids, ids of the next words) to the cross entropy.

    Ids and cross entropies are `[batch, time]`. A training batch goes on where the
    batch before it ended, but for one in every `carry`; that and one to predict begin
    with states of zero. One to predict may have any number of texts.

    Args:
        words: Integer. The size of the vocabulary.
        width: Integer. The width of the embedding and of the projections.
        units: Integer. The number of cells of an LSTM.
        num_layers: Integer. The number of LSTMs.
        dropout: Float. The share that is dropped before and after each LSTM.
        sampled: Integer. The number of words that the softmax draws in training.
        batch: Integer. The number of texts that training reads side by side.
        carry: Integer. The number of training batches between states of zero.
        seed: Integer. The seed of what the softmax draws.
    """
    ids = keras.Input((None,), dtype="int32", name="words")
    targets = keras.Input((None,), dtype="int32", name="targets")
    x = layers.Embedding(words, width, name="embedding")(ids)
    x = layers.Dropout(dropout)(x)
    for number in range(1, num_layers + 1):
        x = ProjectedLSTM(units, width, batch, carry, name=f"lstm_{number}")(x)
        x = layers.Dropout(dropout)(x)
    entropy = SampledSoftmax(words, sampled, seed, name="softmax")([x, targets])
    return keras.Model([ids, targets], entropy, name="big_lstm")


def count_weights(
    *, words: int, width: int, units: int, num_layers: int
) -> dict[str, int]:
    """Returns the number of weights of each part of the model, without building it.

    Example:
    >>> count_weights(words=793471, width=1024, units=8192, num_layers=2)
    {'embedding': 812514304, 'lstm': 151060480, 'softmax': 813307775}
    """
    cell = 2 * width * 4 * units + 4 * units + units * width
    return {
        "embedding": words * width,
        "lstm": num_layers * cell,
        "softmax": words * width + words,
    }
