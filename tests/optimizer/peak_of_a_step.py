"""Prints by how many bytes a parameter two steps of Adam make this process grow.

    python peak_of_a_step.py FORM

Everything counts that has been held at any time: weights, masters, state and gradients,
what their creation and the step need besides, and what the allocator keeps back.
"""

import re
import sys
from pathlib import Path

import keras
import tensorflow as tf

import keras_mp

ALL = keras_mp.Int8State(min_size=1, min_rank=0)
ALL_IN_4_BITS = keras_mp.Int4State(min_size=1, min_rank=0)
FORMS = {
    "bare": None,  # FP32, not wrapped
    "masters": {},
    "remainders": {"masters": "remainders"},
    "int8": {"state": ALL},
    "both": {"masters": "remainders", "state": ALL},
    "both in int8": {"masters": "int8_remainders", "state": ALL},
    "int8 remainders, int4": {"masters": "int8_remainders", "state": ALL_IN_4_BITS},
    "no masters, int8": {"masters": None, "rounding": "stochastic", "state": ALL},
}
COUNT, SIZE = 16, 2**22


def held(name):
    """The bytes that Linux tells of this process."""
    text = Path("/proc/self/status").read_text()
    return int(re.search(rf"{name}:\s+(\d+)", text)[1]) * 1024


def take_two_steps(form, count, size):
    dtype = "float32" if form == "bare" else "float16"
    weights = [keras.Variable(tf.zeros((size,), dtype)) for _ in range(count)]
    optimizer = keras.optimizers.Adam()
    if form != "bare":
        optimizer = keras_mp.wrap(optimizer, loss_scale=1, **FORMS[form])
    optimizer.build(weights)
    gradients = [tf.ones((size,), dtype) for _ in weights]
    for _ in range(2):
        optimizer.apply(gradients, weights)


def main():
    form = sys.argv[1]
    take_two_steps(form, 2, 64)  # what any first step costs
    Path("/proc/self/clear_refs").write_text("5")  # the peak is what is held now
    before = held("VmRSS")
    take_two_steps(form, COUNT, SIZE)
    print((held("VmHWM") - before) / (COUNT * SIZE))


if __name__ == "__main__":
    main()
