"""How much longer does training take with the callbacks of keras_mp?

`python benchmarks/callbacks.py` prints a Markdown table for the translator of
examples/translation, preset demo, in mixed precision: a step without a callback, what
a callback adds to it, and what `keras_mp.NumericsCallback` adds to one that is sampled
and written to a log. The cost is that of `every=200`, bold above its goal of 2%;
`keras_mp.LossScaleCallback` writes every step. Two models train in one process, one
with the callback, and take their steps in turn, so that what else the machine does
slows both; a figure is the median of the differences of such pairs.
"""

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ.setdefault("KERAS_BACKEND", "tensorflow")

import argparse
import statistics
import sys
import tempfile
import time
from pathlib import Path

import keras
from machine import machine

import keras_mp

sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))

from experiments.flags import parse
from translation import step_time, train

EVERY = 200  # the default
GOAL = 2.0  # percent
WARM_UP = 5


def make_step(model, batch, callback):
    """Returns a function that does a step as `fit` does, and takes its number."""
    callback.set_model(model)
    callback.on_train_begin()

    def step(number):
        callback.on_train_batch_begin(number)
        model.train_on_batch(*batch)
        callback.on_train_batch_end(number)

    return step


def seconds(step, number):
    start = time.perf_counter()
    step(number)
    return time.perf_counter() - start


def measure(make_callback, steps, every):
    """Returns the times without, and the differences between and in samples, in s.

    Args:
        make_callback: function that takes a folder and returns a callback.
        steps: int, the pairs of steps.
        every: int, the distance of two samples, or 0 where none is taken.
    """
    args = parse(train.HERE, ["--preset=demo", "--precision=mixed"], train.CHOICES)
    [batch], *sizes = step_time.make_batches(args, 1)
    # The policy that train.py sets for this precision.
    keras.config.set_dtype_policy("float16")
    plain, observed = (
        train.make_model(args, keras_mp.wrap(train.make_optimizer(args)), *sizes)
        for _ in range(2)
    )
    times, between, samples = [], [], []
    with tempfile.TemporaryDirectory() as log_dir:
        without = make_step(plain, batch, keras.callbacks.Callback())
        observing = make_step(observed, batch, make_callback(log_dir))
        # The first sample traces what counts weights.
        first = every + WARM_UP
        for number in range(first):
            without(number)
            observing(number)
        for number in range(first, first + steps):
            # In turn the first of a pair.
            both = (without, observing)[:: 1 if number % 2 else -1]
            spent = {step: seconds(step, number) for step in both}
            times.append(spent[without])
            is_sample = every and (number + 1) % every == 0
            difference = spent[observing] - spent[without]
            (samples if is_sample else between).append(difference)
    return times, between, samples


def row(name, times, between, samples):
    """Returns a line of the table."""
    step, more = (1e3 * statistics.median(each) for each in (times, between))
    sample = 1e3 * statistics.median(samples) if samples else more
    cost = 100 * ((EVERY - 1) * more + sample) / (EVERY * step)
    shown = f"{cost:.2f}" if cost <= GOAL else f"**{cost:.2f}**"
    of_sample = f"{sample:.0f}" if samples else "-"
    return f"| {name} | {step:.0f} | {more:.2f} | {of_sample} | {shown} |"


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--steps", type=int, default=120, help="default 120")
    parser.add_argument("--every", type=int, default=12, help="measured; default 12")
    arguments = parser.parse_args()
    every = arguments.every
    callbacks = {
        f"NumericsCallback(every={EVERY})": (
            lambda log_dir: keras_mp.NumericsCallback(every, log_dir=log_dir),
            every,
        ),
        "LossScaleCallback(log_dir)": (
            lambda log_dir: keras_mp.LossScaleCallback(log_dir=log_dir),
            0,
        ),
    }
    print(f"{machine()}; medians of {arguments.steps} pairs of steps", end="")
    print(f", one in {every} sampled\n")
    print("| callback | step, ms | more in a step, ms", end="")
    print(" | more in a sample, ms | cost, % |\n|---|---|---|---|---|")
    for name, (make_callback, every_of_it) in callbacks.items():
        measured = measure(make_callback, arguments.steps, every_of_it)
        print(row(name, *measured), flush=True)


if __name__ == "__main__":
    main()
