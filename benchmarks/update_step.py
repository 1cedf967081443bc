"""How long the update of all variables takes, from gradients to weights.

    python benchmarks/update_step.py [--curve] [--lists 16x1M ...] [--xla no yes]

In one process and in turns: the bare optimizer in FP32; Keras's LossScaleOptimizer
around it; keras_mp.wrap around it with FP32 variables, as under the policy
mixed_float16; and with FP16 variables and gradients, as under the policy float16.
Beside them stands the time that the bytes of the bare update take at the bandwidth that
a copy reaches here: gradient, slots and weights read once, slots and weights written
once.
"""

import argparse
import threading
import time

import keras
import numpy as np
import tensorflow as tf
from machine import machine, medians

import keras_mp


def resnet50():
    """Shapes of the variables that ResNet-50 trains: kernels, gammas, betas, a head."""
    shapes = [(7, 7, 3, 64), (64,), (64,)]
    inputs = 64
    for units, blocks in ((64, 3), (128, 4), (256, 6), (512, 3)):
        for block in range(blocks):
            kernels = [(1, 1, inputs, units), (3, 3, units, units)]
            kernels.append((1, 1, units, 4 * units))
            if block == 0:
                kernels.append((1, 1, inputs, 4 * units))
            for kernel in kernels:
                shapes += [kernel, kernel[-1:], kernel[-1:]]
            inputs = 4 * units
    return [*shapes, (2048, 1000), (1000,)]


def transformer(layers=12, width=512):
    """Shapes of an encoder of 12 layers with 512 features."""
    attention = 4 * [(width, width), (width,)]
    dense = [(width, 4 * width), (4 * width,), (4 * width, width), (width,)]
    return layers * (attention + dense + 4 * [(width,)])


LISTS = {
    "16x1M": 16 * [(1_000_000,)],
    "400x10K": 400 * [(10_000,)],
    "ResNet-50": resnet50(),
    "Transformer": transformer(),
    "1Mx1": [(1_000_000, 1)],
    "100Kx17": [(100_000, 17)],
    "embedding": [(100_000, 512)],
}
TOUCHED_ROWS = 2_000
# Their class, options and slots: all that Keras 3.15 has but `MultiOptimizer`, which
# only calls others.
OPTIMIZERS = {
    "SGD": ("SGD", {}, 0),
    "momentum": ("SGD", {"momentum": 0.9}, 1),
    "Adagrad": ("Adagrad", {}, 1),
    "RMSprop": ("RMSprop", {}, 1),
    "RMSprop-centered": ("RMSprop", {"momentum": 0.9, "centered": True}, 3),
    "Lion": ("Lion", {}, 1),
    "Adam": ("Adam", {}, 2),
    "AMSGrad": ("Adam", {"amsgrad": True}, 3),
    "AdamW": ("AdamW", {}, 2),
    "Nadam": ("Nadam", {}, 2),
    "Adamax": ("Adamax", {}, 2),
    "Adadelta": ("Adadelta", {}, 2),
    "Ftrl": ("Ftrl", {}, 2),
    "Adafactor": ("Adafactor", {}, 1),
    "Lamb": ("Lamb", {}, 2),
    "Muon": ("Muon", {}, 2),
    "ScheduleFreeAdamW": ("ScheduleFreeAdamW", {}, 2),
}
# What an update may take of the time of the bare one, and of LossScaleOptimizer's.
GOALS = 1.1, 0.7
SCALE = 1024.0


def copy_bandwidth(threads=2, size=1 << 27):
    """GB/s that copying reaches: bytes read and written, the best of 10 times."""
    halves = [(np.ones(size // threads // 4, "float32"),) * 2 for _ in range(threads)]
    pairs = [(source.copy(), target.copy()) for source, target in halves]
    best = 0.0
    for _ in range(10):
        workers = [
            threading.Thread(target=np.copyto, args=(target, source))
            for source, target in pairs
        ]
        start = time.perf_counter()
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        best = max(best, 2 * size / (time.perf_counter() - start) / 1e9)
    return best


def make_gradients(shapes, dtype, scale, is_sparse):
    """Gradients of the loss times `scale`; for an embedding, of some rows."""
    rng = np.random.default_rng(0)
    if is_sparse:
        ((rows, width),) = shapes
        indices = rng.choice(rows, TOUCHED_ROWS, replace=False)
        values = rng.normal(0, 1e-3 * scale, (TOUCHED_ROWS, width))
        return [
            tf.IndexedSlices(
                tf.constant(values, dtype),
                tf.constant(indices, "int32"),
                tf.constant([rows, width], "int32"),
            )
        ]
    return [tf.constant(rng.normal(0, 1e-3 * scale, s), dtype) for s in shapes]


def make_step(optimizer, shapes, dtype, scale, jit, is_sparse):
    """A function of no argument that updates variables of these shapes once."""
    variables = [keras.Variable(np.ones(s), dtype=dtype) for s in shapes]
    gradients = make_gradients(shapes, dtype, scale, is_sparse)
    optimizer.build(variables)
    optimizer.scale_loss(0.0)

    @tf.function(jit_compile=jit)
    def step():
        optimizer.apply(gradients, variables)
        # Something to wait for.
        return optimizer.iterations + 0

    return lambda: step().numpy()


def make_optimizer(name):
    """A bare optimizer, with the rate of Adam."""
    cls, options, _ = OPTIMIZERS[name]
    return getattr(keras.optimizers, cls)(1e-3, **options)


def bytes_of(name):
    """Bytes that the bare update moves for a number.

    Its gradient and weight are read, its weight is written, and each slot is read and
    written.
    """
    return 12 + 8 * OPTIMIZERS[name][2]


def marked(ratio, goal):
    """A ratio as text, with a mark where it misses the goal."""
    return f"{ratio:.2f}" + (" (!)" if ratio > goal else "")


def make_steps(name, shapes, jit, is_sparse):
    """The four steps that are compared."""

    def make():
        return make_optimizer(name)

    built_in = keras.optimizers.LossScaleOptimizer(make(), initial_scale=SCALE)
    fp32, fp16 = (keras_mp.wrap(make(), loss_scale=SCALE) for _ in range(2))
    cases = [(make(), "float32", 1.0), (built_in, "float32", SCALE)]
    cases += [(fp32, "float32", SCALE), (fp16, "float16", SCALE)]
    return [
        make_step(optimizer, shapes, dtype, scale, jit, is_sparse)
        for optimizer, dtype, scale in cases
    ]


def compare(lists, optimizers, routes, rounds):
    """Prints the table."""
    bandwidth = copy_bandwidth()
    print(f"Copy: {bandwidth:.1f} GB/s. Medians of {rounds} updates, in ms.")
    print(f"(!): more than {GOALS[0]} of bare, or {GOALS[1]} of LossScaleOptimizer.\n")
    print(
        "| variables | optimizer | XLA | limit | bare FP32 | LossScaleOptimizer ",
        end="",
    )
    print("| wrap, FP32 | wrap, FP16 | wrap FP32 / bare | wrap FP32 / built-in |")
    print("|---|---|---|---|---|---|---|---|---|---|")
    for list_name in lists:
        shapes = LISTS[list_name]
        is_sparse = list_name == "embedding"
        count = sum(int(np.prod(shape)) for shape in shapes)
        if is_sparse:
            count = TOUCHED_ROWS * shapes[0][1]
        for name in optimizers:
            limit = bytes_of(name) * count / bandwidth / 1e6
            for jit in (route == "yes" for route in routes):
                if jit and is_sparse:
                    continue  # XLA makes a sparse gradient dense
                steps = make_steps(name, shapes, jit, is_sparse)
                bare, built_in, fp32, fp16 = medians(steps, rounds)
                times = [limit, bare, built_in, fp32, fp16]
                cells = [f"{t:.2f}" for t in times]
                cells += [marked(fp32 / bare, GOALS[0])]
                cells += [marked(fp32 / built_in, GOALS[1])]
                row = [list_name, name, "yes" if jit else "no", *cells]
                print("| " + " | ".join(row) + " |", flush=True)


def curve(rounds):
    """Prints how the time grows with variables and with parameters."""
    many = {f"{n} x 10K": n * [(10_000,)] for n in (10, 100, 1000, 10_000)}
    large = {
        f"16 x {n}": 16 * [(n,)] for n in (10_000, 10**5, 10**6, 10**7, 31_250_000)
    }
    print("\n| variables | million parameters | ms | ns a parameter |")
    print("|---|---|---|---|")
    for title, shapes in (many | large).items():
        optimizer = keras_mp.wrap(make_optimizer("Adam"), loss_scale=SCALE)
        step = make_step(optimizer, shapes, "float32", SCALE, False, False)
        (spent,) = medians([step], rounds)
        count = sum(int(np.prod(shape)) for shape in shapes)
        row = [title, f"{count / 1e6:g}", f"{spent:.2f}", f"{1e6 * spent / count:.2f}"]
        print("| " + " | ".join(row) + " |", flush=True)


def main():
    """Reads the arguments and prints what they ask for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--lists", nargs="+", choices=LISTS, default=list(LISTS))
    parser.add_argument(
        "--optimizers", nargs="+", choices=OPTIMIZERS, default=list(OPTIMIZERS)
    )
    parser.add_argument(
        "--xla",
        nargs="+",
        choices=["no", "yes"],
        default=["no", "yes"],
        help="XLA compiles a step of 400 variables for minutes",
    )
    parser.add_argument("--rounds", type=int, default=21)
    parser.add_argument("--curve", action="store_true", help="print the growth, too")
    args = parser.parse_args()
    print(f"`python benchmarks/update_step.py` on {machine()}.")
    compare(args.lists, args.optimizers, args.xla, args.rounds)
    if args.curve:
        curve(args.rounds)


if __name__ == "__main__":
    main()
