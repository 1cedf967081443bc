"""How does the cost of training grow with the model, the batch, the sequence, replicas?

`python benchmarks/growth.py` prints a Markdown table for each, of the time of a step
and its memory, in FP32, in mixed precision as Keras has it, and in ours, each without
XLA and, but for replicas, compiled by it:

- weights: a decoder like GPT-2 whose width doubles, with 256 words in a batch. The
  largest models are counted, not run: weights, gradients and the optimizer's state.
- batch: a small decoder.
- tokens: a layer of attention alone, without a mask, one sequence a batch.
- replicas: the small decoder, where replicas on virtual CPUs share one batch, and the
  cores, also with `shard_state=True`. The time of one replica over theirs is the
  efficiency.

The last table has the law of each: the exponent p of cost ~ size^p, the slope of a
straight line through the logarithms of the three largest sizes that were measured. A
size has a process of its own for its times, where the variants step one after another.
The memory of each variant is what a process of its own grows by at its peak, after a
step of a tiny model.
A ratio of ours to FP32 is bold above its goal: in time 1.0, and for bfloat16 0.65 where
the kernels have instructions for it; in memory 1.0. Names as arguments choose tables.
"""

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ.setdefault("KERAS_BACKEND", "tensorflow")

import argparse
import contextlib
import functools
import math

import keras
import numpy as np
import tensorflow as tf
from keras import layers
from machine import alone, machine, marked, medians, peak
from training_models import gpt2
from variants import SHARDED, compiled, goal, make_step, parts

COMPARED = ("FP32", "Keras, mixed_float16", "ours, float16", "ours, bfloat16")
SHARING = (*COMPARED, SHARDED)
# All replicas together; every number of them divides it.
SHARED_BATCH = 24
# Millions of weights that are not run.
COUNTED = (256, 1000)
# The largest sizes alone, where what does not grow weighs least.
FITTED = 3

OF_A_WAY = [
    "step, ms",
    "time / FP32",
    "time / smallest",
    "peak, MiB",
    "peak / FP32",
    "peak / smallest",
]
COSTS = ("time over {}", "memory over {}", "time over {}, XLA", "memory over {}, XLA")

small_gpt2 = functools.partial(gpt2, tokens=64, blocks=1, width=384, words=512)
tiny_gpt2 = functools.partial(gpt2, tokens=8, batch=1, blocks=1, width=16, words=16)


def wide_gpt2(width):
    return gpt2(tokens=64, batch=4, blocks=2, width=width, words=512)


def attention(tokens, heads=8, size=64):
    inputs = layers.Input((tokens, heads * size))
    attended = layers.MultiHeadAttention(heads, size)(inputs, inputs)
    x = np.random.default_rng(0).normal(size=(1, *inputs.shape[1:]))
    return keras.Model(inputs, attended), keras.optimizers.SGD(0.1), "mse", (x, x)


# The sizes, and what makes model, optimizer, loss and batch of one.
TABLES = {
    "weights": ((192, 384, 768, 1536), wide_gpt2),
    "batch": ((8, 16, 32, 64), lambda batch: small_gpt2(batch=batch)),
    "tokens": ((64, 128, 256, 512, 1024, 2048), attention),
    "replicas": (
        (1, 2, 3, 4),
        lambda replicas: small_gpt2(batch=SHARED_BATCH // replicas),
    ),
}


def compared(table):
    """Returns the variants of a table."""
    return SHARING if table == "replicas" else COMPARED


def ways(table):
    """Returns whether to compile with XLA, which cannot reach several replicas."""
    return (False,) if table == "replicas" else (False, True)


def scope(table, size):
    """Returns the scope of a strategy with so many replicas, or one that does nothing.

    Each replica trains on the whole of what `train_on_batch` is given.
    """
    if table != "replicas":
        return contextlib.nullcontext()
    [processor] = tf.config.list_physical_devices("CPU")
    virtual = [tf.config.LogicalDeviceConfiguration()] * size
    tf.config.set_logical_device_configuration(processor, virtual)
    return tf.distribute.MirroredStrategy([f"CPU:{i}" for i in range(size)]).scope()


def times(table, size, rounds):
    """Returns the milliseconds of a step of each variant, in each way."""
    make_parts = functools.partial(TABLES[table][1], size)
    with scope(table, size):
        steps = [
            make_step(make_parts, variant, xla)
            for variant in compared(table)
            for xla in ways(table)
        ]
    return medians(steps, rounds)


def memory(table, size, variant, xla):
    """Returns the MiB that a model and its first steps add to those of a tiny one."""
    replicas = scope(table, size)
    make_step(tiny_gpt2, variant, xla)()
    before = peak()
    with replicas:
        step = make_step(functools.partial(TABLES[table][1], size), variant, xla)
    for _ in range(3):
        step()
    return peak() - before


def count(width, variant):
    """Returns the weights of a decoder, and the bytes that training holds for each."""
    model, _ = compiled(functools.partial(wide_gpt2, width), variant)
    weights = model.trainable_variables
    model.optimizer.build(weights)
    # A gradient is as large as its weight.
    held = 2 * total_bytes(weights) + total_bytes(model.optimizer.variables)
    return model.count_params(), held / model.count_params()


def total_bytes(variables):
    sizes = (tf.as_dtype(v.dtype).size * math.prod(v.shape) for v in variables)
    return sum(sizes)


def exponent(sizes, costs):
    """Returns p of the law cost ~ size^p that fits the largest sizes best."""
    slope, _ = np.polyfit(np.log(sizes[-FITTED:]), np.log(costs[-FITTED:]), 1)
    return slope


def print_row(*cells):
    print(f"| {' | '.join(cells)} |", flush=True)


def print_head(*columns):
    print_row(*columns)
    print("|" + "---|" * len(columns))


def print_table(table, points, rounds):
    """Prints the costs of the first sizes, and returns sizes and costs by variant.

    The costs are milliseconds and MiB, in each way.
    """
    column = "weights, millions" if table == "weights" else table
    print()
    columns = [f"{'XLA: ' * xla}{name}" for xla in ways(table) for name in OF_A_WAY]
    print_head(column, "variant", *columns)
    found = {variant: [] for variant in compared(table)}
    for size in TABLES[table][0][:points]:
        shown = size
        if table == "weights":
            shown = round(alone(count, size, "FP32")[0] / 1e6, 1)
        milliseconds = iter(alone(times, table, size, rounds))
        for variant, rows in found.items():
            costs = [
                cost
                for xla in ways(table)
                for cost in (
                    next(milliseconds),
                    alone(memory, table, size, variant, xla),
                )
            ]
            rows.append((shown, *costs))
            print_costs(found, variant)
    if table == "weights":
        print_counted()
    return found


def print_costs(found, variant):
    """Prints the last costs of a variant, over those in FP32 and of the first size."""
    size, *costs = found[variant][-1]
    cells = [f"{size}", variant]
    goals = len(costs) // 2 * (goal(variant), 1.0)
    for i, (cost, most) in enumerate(zip(costs, goals, strict=True), 1):
        over_fp32 = cost / found["FP32"][-1][i]
        met = over_fp32 <= most or not parts(variant)[1]
        over_smallest = cost / found[variant][0][i]
        cells += [f"{cost:.1f}", marked(over_fp32, met), f"{over_smallest:.2f}"]
    print_row(*cells)


def print_counted():
    width = TABLES["weights"][0][0]
    each = {variant: alone(count, width, variant)[1] for variant in COMPARED}
    for millions in COUNTED:
        for variant, held in each.items():
            costs = f"{millions * 1e6 * held / 2**20:.0f}", f"{held / each['FP32']:.2f}"
            cells = "counted", "", "", *costs, ""
            print_row(str(millions), variant, *cells, *[""] * len(OF_A_WAY))


def print_laws(costs):
    """Prints the exponents, between marks by which the site finds them."""
    print("\n<!-- --8<-- [start:laws] -->\n")
    print_head("exponent of", *COMPARED)
    for table, found in costs.items():
        for i, what in enumerate(COSTS[: 2 * len(ways(table))], 1):
            laws = []
            for variant in COMPARED:
                columns = list(zip(*found[variant], strict=True))
                laws.append(f"{exponent(columns[0], columns[i]):.2f}")
            print_row(what.format(table), *laws)
    print("\n<!-- --8<-- [end:laws] -->")


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument(
        "tables", nargs="*", default=TABLES, metavar="TABLE", help=", ".join(TABLES)
    )
    parser.add_argument("--rounds", type=int, default=5, help="default 5")
    parser.add_argument("--points", type=int, help="so many of the smallest sizes")
    arguments = parser.parse_args(argv)
    print(f"{machine()}; median of {arguments.rounds} steps")
    costs = {
        table: print_table(table, arguments.points, arguments.rounds)
        for table in arguments.tables
    }
    print_laws(costs)


if __name__ == "__main__":
    main()
