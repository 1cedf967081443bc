"""What does each form of optimizer state take: how much time and how many bytes?

    python benchmarks/optimizer_state.py [--lists 16x1M ...] [--optimizers Adam ...]

In one process and in turns, outside of XLA: the bare optimizer on FP32 variables, and
`keras_mp.wrap` on FP16 variables and gradients with each form of masters and state. The
ratio is the time over that of the bare optimizer. Bytes are those for each parameter,
with the gradient, read from the variables.
"""

import argparse
import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ.setdefault("KERAS_BACKEND", "tensorflow")

from machine import machine, marked, medians
from update_step import LISTS, OPTIMIZERS, SCALE, make_optimizer, make_step

import keras_mp

ALL = keras_mp.Int8State(min_size=1, min_rank=0)
ALL_IN_4_BITS = keras_mp.Int4State(min_size=1, min_rank=0)
ALONE = {"masters": None, "rounding": "stochastic"}
FORMS = {
    "FP32 masters": {},
    "remainders": {"masters": "remainders"},
    "FP32 masters, 8-bit state": {"state": ALL},
    "remainders, 8-bit state": {"masters": "remainders", "state": ALL},
    "8-bit remainders, 8-bit state": {"masters": "int8_remainders", "state": ALL},
    "8-bit remainders, 4-bit state": {
        "masters": "int8_remainders",
        "state": ALL_IN_4_BITS,
    },
    "no masters": ALONE,
    "no masters, 8-bit state": {**ALONE, "state": ALL},
}
# Of the bare optimizer's time, what an update with remainders and 8 bits may take.
GOALS = {"Adam": 0.6, "SGD": 1.0}
COMPRESSED = "remainders, 8-bit state"


def forms_of(name):
    """The forms that an optimizer can have: SGD without momentum has no state."""
    _, _, slots = OPTIMIZERS[name]
    return {
        form: given for form, given in FORMS.items() if slots or "state" not in given
    }


def compare(list_name, name, rounds):
    """Prints the rows of one optimizer."""
    shapes = LISTS[list_name]
    wrapped = {
        form: keras_mp.wrap(make_optimizer(name), loss_scale=SCALE, **given)
        for form, given in forms_of(name).items()
    }
    steps = [make_step(make_optimizer(name), shapes, "float32", 1.0, False, False)]
    steps += [
        make_step(optimizer, shapes, "float16", SCALE, False, False)
        for optimizer in wrapped.values()
    ]
    bare, *times = medians(steps, rounds)
    _, _, slots = OPTIMIZERS[name]
    print(f"| {list_name} | {name} | bare, FP32 | {8 + 4 * slots:g} | {bare:.2f} | 1 |")
    for (form, optimizer), spent in zip(wrapped.items(), times, strict=True):
        total = optimizer.bytes_per_parameter()["total"]
        is_judged = form == COMPRESSED or (name == "SGD" and form == "remainders")
        goal = GOALS.get(name, 1.0) if is_judged else float("inf")
        ratio = marked(spent / bare, spent / bare <= goal)
        row = [list_name, name, form, f"{total:.4g}", f"{spent:.2f}", ratio]
        print("| " + " | ".join(row) + " |", flush=True)


def main():
    """Reads the arguments and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--lists", nargs="+", choices=LISTS, default=["16x1M"])
    parser.add_argument(
        "--optimizers",
        nargs="+",
        choices=OPTIMIZERS,
        default=["SGD", "momentum", "Adam", "AdamW", "Lion", "RMSprop", "Adagrad"],
    )
    parser.add_argument("--rounds", type=int, default=21)
    args = parser.parse_args()
    print(f"`python benchmarks/optimizer_state.py` on {machine()}.")
    print(f"Medians of {args.rounds} updates, outside of XLA. Bold: misses its goal.\n")
    print("| variables | optimizer | form | bytes a parameter | ms | over bare |")
    print("|---|---|---|---|---|---|")
    for list_name in args.lists:
        for name in args.optimizers:
            compare(list_name, name, args.rounds)


if __name__ == "__main__":
    main()
