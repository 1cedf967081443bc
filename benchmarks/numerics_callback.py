"""How much longer does training take with `keras_mp.NumericsCallback`?

`python benchmarks/numerics_callback.py` prints a Markdown table for the translator of
examples/translation, preset demo, in mixed precision: a step without the callback, what
is added to one between two samples, and to one that is sampled and written to a log,
and the cost at `every=200` that follows, bold above its goal of 2%. Two models train in
one process, one with the callback, and take their steps in turn, so that what else the
machine does slows both; a cost is the median of the differences of such pairs.
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


def measure(steps, every, log_dir):
    """Returns the times without, and the differences between and in samples, in s."""
    args = parse(train.HERE, ["--preset=demo", "--precision=mixed"], train.CHOICES)
    [batch], *sizes = step_time.make_batches(args, 1)
    # The policy that train.py sets for this precision.
    keras.config.set_dtype_policy("float16")
    plain, sampled = (
        train.make_model(args, keras_mp.wrap(train.make_optimizer(args)), *sizes)
        for _ in range(2)
    )
    without = make_step(plain, batch, keras.callbacks.Callback())
    sampling = make_step(
        sampled, batch, keras_mp.NumericsCallback(every, log_dir=log_dir)
    )
    # The first sample traces what counts weights.
    for number in range(every + WARM_UP):
        without(number)
        sampling(number)
    times, between, samples = [], [], []
    for number in range(every + WARM_UP, every + WARM_UP + steps):
        # In turn the first of a pair.
        both = (without, sampling)[:: 1 if number % 2 else -1]
        spent = {step: seconds(step, number) for step in both}
        times.append(spent[without])
        difference = spent[sampling] - spent[without]
        (samples if (number + 1) % every == 0 else between).append(difference)
    return times, between, samples


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--steps", type=int, default=120, help="default 120")
    parser.add_argument("--every", type=int, default=12, help="measured; default 12")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as log_dir:
        measured = measure(arguments.steps, arguments.every, log_dir)
    without, between, sample = (1e3 * statistics.median(each) for each in measured)
    cost = 100 * ((EVERY - 1) * between + sample) / (EVERY * without)
    shown = f"{cost:.2f}" if cost <= GOAL else f"**{cost:.2f}**"
    print(f"{machine()}; medians of {arguments.steps} pairs of steps,", end=" ")
    print(f"{len(measured[2])} of them sampled\n")
    print("| step, ms | more between samples, ms | more in a sample, ms |", end="")
    print(f" cost at every={EVERY}, % |\n|---|---|---|---|")
    print(f"| {without:.0f} | {between:.2f} | {sample:.0f} | {shown} |")


if __name__ == "__main__":
    main()
