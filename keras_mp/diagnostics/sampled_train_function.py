"""The train function of a model with counting in it, while it is asked for."""

from typing import Any, Optional

import keras

from keras_mp.diagnostics.gradient_sampler import GradientSampler


class SampledTrainFunction:
    """Calls a new train function of a model, and has a sampler count inside of it.

    `fit` tells no callback that an exception ended it. So the sampler is attached while
    the function is called, and no longer; and each call is announced by the callback.
    One that is not is of another `fit`: it makes the train function again, without
    counting, and calls that.

    Args:
        model: `keras.Model`, compiled. Its `train_function` becomes this object.
        sampler: `GradientSampler`.
    """

    def __init__(self, model: keras.Model, sampler: GradientSampler) -> None:
        model.make_train_function(force=True)
        self._model = model
        self._sampler = sampler
        self._is_announced = False
        self.train_function = model.train_function
        model.train_function = self

    @staticmethod
    def of(model: keras.Model) -> Optional["SampledTrainFunction"]:
        """Returns the one of a model, which another object may call, or None."""
        function = model.train_function
        while function is not None and not isinstance(function, SampledTrainFunction):
            function = getattr(function, "train_function", None)
        return function

    def announce(self) -> None:
        """Says that the next call is to be sampled."""
        self._is_announced = True

    def __call__(self, iterator: Any) -> Any:
        if not self._is_announced:
            self._model.make_train_function(force=True)
            return self._model.train_function(iterator)
        self._is_announced = False
        with self._sampler.attached():
            return self.train_function(iterator)
