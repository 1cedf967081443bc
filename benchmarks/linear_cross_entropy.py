"""How long do a loss of many words and its gradients take, beside PyTorch's?

`python benchmarks/linear_cross_entropy.py` prints a Markdown table: milliseconds of
`keras_mp.ops.linear_cross_entropy` and its gradients for inputs and kernel, and of a
matrix product with TensorFlow's cross entropy in FP32; of our loss without gradients,
which is what computing them in the forward pass could save at most; and the MiB by
which its process grows from the arguments to the peak. `--torch PYTHON` names an
interpreter that has PyTorch 2.13 or newer, in an environment of its own: it adds rows
for `torch.nn.functional.linear_cross_entropy`, and for `linear` with `cross_entropy`;
not in float16, where PyTorch 2.13 takes more than a minute a step on a CPU.
"""

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ.setdefault("KERAS_BACKEND", "tensorflow")

import argparse
import json
import subprocess

import tensorflow as tf
from machine import alone, forget_peak, machine, medians, peak

from keras_mp.ops import linear_cross_entropy

DTYPES = ("float16", "bfloat16", "float32")

TORCH = """
import json, re, statistics, sys, time
import torch
from torch.nn import functional as F

dtype, form, rows, size, words, rounds, threads = sys.argv[1:]
rows, size, words, rounds = map(int, (rows, size, words, rounds))
torch.set_num_threads(int(threads))
dtype = getattr(torch, dtype)
inputs = torch.randn(rows, size).to(dtype).requires_grad_()
kernel = (0.05 * torch.randn(words, size)).to(dtype).requires_grad_()
labels = torch.randint(0, words, (rows,))

def peak():
    status = open("/proc/self/status").read()
    return int(re.search(r"VmHWM:\\s+(\\d+)", status)[1]) / 1024

def step():
    if form == "fused":
        loss = F.linear_cross_entropy(inputs, kernel, labels)
    else:
        loss = F.cross_entropy(F.linear(inputs, kernel).float(), labels)
    loss.backward()
    inputs.grad = kernel.grad = None

before = peak()
step()
step()
times = []
for _ in range(rounds):
    start = time.perf_counter()
    step()
    times.append(1e3 * (time.perf_counter() - start))
print(json.dumps([statistics.median(times), peak() - before]))
"""


def measure(dtype, form, jit, rows, size, words, rounds):
    """Returns the milliseconds of loss and gradients, and the MiB of their peak.

    The form `"loss"` is the fused loss without gradients.
    """
    normal = tf.random.stateless_normal
    inputs = tf.cast(normal((rows, size), (0, 1)), dtype)
    kernel = tf.cast(0.05 * normal((words, size), (0, 2)), dtype)
    labels = tf.random.stateless_uniform((rows,), (0, 3), 0, words, "int32")

    def losses():
        if form in ("fused", "loss"):
            return linear_cross_entropy(inputs, kernel, labels, transpose=True)
        logits = tf.cast(tf.matmul(inputs, kernel, transpose_b=True), "float32")
        return tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)

    @tf.function(jit_compile=jit)
    def step():
        if form == "loss":
            return losses()
        with tf.GradientTape() as tape:
            tape.watch([inputs, kernel])
            loss = tf.reduce_mean(losses())
        return tape.gradient(loss, [inputs, kernel])

    forget_peak()  # that of making the arguments
    before = peak()
    (spent,) = medians([step], rounds)
    return spent, peak() - before


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rows", type=int, default=2048)
    parser.add_argument("--size", type=int, default=256)
    parser.add_argument("--words", type=int, default=65_536)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--torch", metavar="PYTHON", help="an interpreter with PyTorch")
    given = parser.parse_args()
    sizes = (given.rows, given.size, given.words, given.rounds)
    print("# The loss of many words, and its gradients\n")
    print(f"{machine()}\n")
    print(f"{given.rows} rows of {given.size} numbers, {given.words:,} words.\n")
    print("| dtype | computed by | XLA | ms | MiB |")
    print("| --- | --- | --- | ---: | ---: |")
    ours = "keras_mp.ops.linear_cross_entropy"
    names = {"fused": ours, "loss": f"{ours}, no gradients", "plain": "TensorFlow"}
    of_torch = {"fused": "torch linear_cross_entropy", "plain": "torch cross_entropy"}
    for dtype in DTYPES:
        for form, name in names.items():
            for jit in (False, True):
                found = alone(measure, dtype, form, jit, *sizes)
                print_row(dtype, name, "yes" if jit else "no", *found)
        if not given.torch or dtype == "float16":
            continue
        for form, name in of_torch.items():
            threads = os.cpu_count()
            arguments = [str(x) for x in (dtype, form, *sizes, threads)]
            command = [given.torch, "-c", TORCH, *arguments]
            told = subprocess.run(command, check=True, capture_output=True, text=True)
            print_row(dtype, name, "", *json.loads(told.stdout))


def print_row(dtype, name, xla, spent, mebibytes):
    print(f"| {dtype} | {name} | {xla} | {spent:,.0f} | {mebibytes:,.0f} |", flush=True)


if __name__ == "__main__":
    main()
