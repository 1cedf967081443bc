"""Keras's backend, as an optimizer uses it: TensorFlow, or a single program."""

import keras

from keras_mp.optimizer.backend.protocol import Backend, Runner
from keras_mp.optimizer.backend.single_program import SingleProgramBackend
from keras_mp.optimizer.backend.tensorflow import TensorFlowBackend

backend: Backend = (
    TensorFlowBackend()
    if keras.backend.backend() == "tensorflow"
    else SingleProgramBackend()
)

__all__ = ["Backend", "Runner", "backend"]
