"""Where does training end with each form of optimizer state?

    python benchmarks/state_learning.py [--seeds 5] [--rates 1e-3 1e-5]

A network of 50,826 parameters learns scikit-learn's digits by Adam, in FP32 and in
FP16 with each form of masters and state. A seed gives all of them the same initial
weights and batches, so that their differences are paired. The table has the mean of the
loss on held-out digits, its difference from FP32 with a 95% interval over the seeds
(Student's t), and the mean error rate. No time is measured.

scikit-learn is installed by the extra `examples`.
"""

import argparse
import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ.setdefault("KERAS_BACKEND", "tensorflow")

import keras
import numpy as np
from scipy import stats
from sklearn.datasets import load_digits

import keras_mp

ALL = keras_mp.Int8State(min_size=1, min_rank=0)
ALL_IN_4_BITS = keras_mp.Int4State(min_size=1, min_rank=0)
FORMS = {
    "FP32 masters": {},
    "remainders, 8-bit state": {"masters": "remainders", "state": ALL},
    "8-bit remainders, 8-bit state": {"masters": "int8_remainders", "state": ALL},
    "8-bit remainders, 4-bit state": {
        "masters": "int8_remainders",
        "state": ALL_IN_4_BITS,
    },
    "no masters, 8-bit state": {
        "masters": None,
        "rounding": "stochastic",
        "state": ALL,
    },
}
# Epochs of 19 steps, by the rate.
EPOCHS = {1e-3: 20, 1e-5: 40}
TRAINED = 1216


def digits():
    """The inputs and labels of the digits, in an order that is always the same."""
    data = load_digits()
    order = np.random.default_rng(0).permutation(len(data.target))
    return (data.data[order] / 16).astype("float32"), data.target[order]


def train(seed, rate, forms):
    """Trains, and returns the loss and error rate on held-out digits.

    Args:
        seed: int, of weights, batches and stochastic rounding.
        rate: float, the learning rate.
        forms: arguments of `wrap`, or None for FP32.
    """
    policy = "float32" if forms is None else "float16"
    model = keras.Sequential(
        [
            keras.Input((64,)),
            keras.layers.Dense(256, "relu", dtype=policy),
            keras.layers.Dense(128, "relu", dtype=policy),
            keras.layers.Dense(10, dtype="float32"),
        ]
    )
    # Of FP16 numbers, as initializers draw others in other dtypes.
    random = np.random.default_rng(seed)
    for weight in model.weights:
        bound = (6 / sum(weight.shape)) ** 0.5 if len(weight.shape) > 1 else 0
        weight.assign(random.uniform(-bound, bound, weight.shape).astype("float16"))
    inner = keras.optimizers.Adam(rate)
    optimizer = inner if forms is None else keras_mp.wrap(inner, seed=seed, **forms)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer, loss, steps_per_execution=19, jit_compile=False)
    x, y = digits()
    order = [random.permutation(TRAINED) for _ in range(EPOCHS[rate])]
    order = np.concatenate(order)
    model.fit(x[order], y[order], 64, shuffle=False, verbose=0)
    logits = model(x[TRAINED:]).numpy().astype("float64")
    logits -= logits.max(axis=1, keepdims=True)
    likelihoods = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
    labels = y[TRAINED:]
    errors = np.mean(logits.argmax(axis=1) != labels)
    return -np.mean(likelihoods[np.arange(len(labels)), labels]), errors


def interval(differences):
    """The mean, and half the length of its 95% interval."""
    count = len(differences)
    deviation = np.std(differences, ddof=1) / count**0.5
    return np.mean(differences), stats.t.ppf(0.975, count - 1) * deviation


def main():
    """Reads the arguments and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--rates", type=float, nargs="+", default=list(EPOCHS))
    args = parser.parse_args()
    print("| rate | form | loss | minus FP32's, 95% interval | error rate |")
    print("|---|---|---|---|---|")
    for rate in args.rates:
        fp32 = None
        for name, forms in {"FP32": None, **FORMS}.items():
            found = [train(seed, rate, forms) for seed in range(args.seeds)]
            losses, errors = np.transpose(found)
            fp32 = losses if fp32 is None else fp32
            mean, half = interval(losses - fp32)
            apart = "" if forms is None else f"{mean:+.5f} +- {half:.5f}"
            row = [f"{rate:g}", name, f"{losses.mean():.5f}", apart]
            print("| " + " | ".join([*row, f"{errors.mean():.4f}"]) + " |", flush=True)


if __name__ == "__main__":
    main()
