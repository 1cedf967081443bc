"""The forms in which optimizer state is stored, and the rules that they are for."""

from keras import optimizers

import keras_mp

ALL = keras_mp.Int8State(min_size=1, min_rank=0, exclude=())
ALL_IN_4_BITS = keras_mp.Int4State(min_size=1, min_rank=0, exclude=())
FORMS = {
    "remainders": {"masters": "remainders"},
    "int8 remainders": {"masters": "int8_remainders"},
    "int8": {"state": ALL},
    "both": {"masters": "remainders", "state": ALL},
    "both in int8": {"masters": "int8_remainders", "state": ALL},
    "int4": {"state": ALL_IN_4_BITS},
    "int8 remainders, int4": {"masters": "int8_remainders", "state": ALL_IN_4_BITS},
    "no masters": {"masters": None, "rounding": "stochastic"},
    "no masters, int8": {"masters": None, "rounding": "stochastic", "state": ALL},
}
# Every rule of the kernel.
RULES = {
    "sgd": lambda: optimizers.SGD(0.1),
    "momentum": lambda: optimizers.SGD(0.1, momentum=0.9),
    "nesterov": lambda: optimizers.SGD(0.1, momentum=0.9, nesterov=True),
    "adam": lambda: optimizers.Adam(0.1),
    "adamw": lambda: optimizers.AdamW(0.1, weight_decay=0.1),
    "nadam": lambda: optimizers.Nadam(0.1),
    "adamax": lambda: optimizers.Adamax(0.1),
    "lion": lambda: optimizers.Lion(0.1),
    "adagrad": lambda: optimizers.Adagrad(0.1, initial_accumulator_value=0.125),
    "adadelta": lambda: optimizers.Adadelta(0.1),
    "rmsprop": lambda: optimizers.RMSprop(0.1),
    "rmsprop_momentum": lambda: optimizers.RMSprop(0.1, momentum=0.9),
    "clipvalue": lambda: optimizers.Adam(0.1, clipvalue=0.25),
    "global_clipnorm": lambda: optimizers.Adam(0.1, global_clipnorm=0.5),
    "amsgrad": lambda: optimizers.Adam(0.1, amsgrad=True),
    "centered": lambda: optimizers.RMSprop(0.1, centered=True, momentum=0.5),
    "ftrl": lambda: optimizers.Ftrl(0.1),
    "lamb": lambda: optimizers.Lamb(0.1, weight_decay=0.1),
    "adafactor": lambda: optimizers.Adafactor(0.1, weight_decay=0.1),
}
NOT_IN_8_BITS = ("amsgrad", "centered", "ftrl", "lamb", "adafactor")
SHAPES = (("kernel", (7, 11)), ("bias", (3,)), ("empty", (0,)))


def wrap(inner, **kwargs):
    """Wraps, with a scale that never changes, as if the loss were scaled."""
    optimizer = keras_mp.wrap(inner, **{"loss_scale": 1024.0, **kwargs})
    optimizer.scale_loss(0.0)
    return optimizer
