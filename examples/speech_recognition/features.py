"""What the network hears of a recording: a spectrogram, or its cepstrum."""

import numpy as np
import tensorflow as tf

SAMPLE_RATE = 16_000
# A frame every 10 milliseconds.
STEP = SAMPLE_RATE // 100
# Before a logarithm, of the power of 16-bit samples: no silence is minus infinity.
FLOOR = 1.0


def spectrogram(samples: np.ndarray) -> np.ndarray:
    """Returns the logarithm of the power of 161 frequencies, in windows of 20 ms.

    Args:
        samples: `[samples]`, float, 16,000 a second.

    Returns:
        float32 array `[frames, 161]`.

    Reference: Deep Speech 2, section 3.4.
    """
    return np.log(_power(samples, window=SAMPLE_RATE // 50, size=320) + FLOOR)


def mfcc(samples: np.ndarray) -> np.ndarray:
    """Returns 13 mel-frequency cepstral coefficients, in windows of 25.6 ms.

    Number and range of the filters are those with which AN4's own were made.

    Args:
        samples: `[samples]`, float, 16,000 a second.

    Returns:
        float32 array `[frames, 13]`.
    """
    power = _power(samples, window=410, size=512)
    filters = tf.signal.linear_to_mel_weight_matrix(
        num_mel_bins=40,
        num_spectrogram_bins=power.shape[1],
        sample_rate=SAMPLE_RATE,
        lower_edge_hertz=130,
        upper_edge_hertz=6800,
    )
    log_mel = tf.math.log(power @ filters.numpy() + FLOOR)
    return tf.signal.mfccs_from_log_mel_spectrograms(log_mel).numpy()[:, :13]


def normalized(features: np.ndarray) -> np.ndarray:
    """Returns features `[frames, n]` with mean 0 and deviation 1 over the utterance.

    What a microphone or a loudness adds to all frames alike is gone.
    """
    deviation = np.maximum(features.std(axis=0), 1e-5)
    return ((features - features.mean(axis=0)) / deviation).astype("float32")


def _power(samples: np.ndarray, window: int, size: int) -> np.ndarray:
    frames = tf.signal.stft(samples.astype("float32"), window, STEP, size)
    return np.abs(frames.numpy()) ** 2
