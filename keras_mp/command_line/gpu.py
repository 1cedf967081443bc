"""`keras-mp gpu`: does it work on this GPU, and how fast?"""

import argparse
import itertools
import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from keras_mp.command_line.benchmark import quiet_tensorflow
from keras_mp.command_line.errors import check_new
from keras_mp.command_line.gpu_measurements import (
    error_over_bound,
    peak_bytes,
    product_ms,
)
from keras_mp.command_line.info import facts
from keras_mp.command_line.training_steps import BLOCKS, RECIPES, Size, time_recipes
from keras_mp.ops.kernels import dispatch, native
from keras_mp.ops.kernels.selftest import apart, gpus
from keras_mp.ops.kernels.selftest_ops import (
    convolution_problem,
    product_problem,
    reduction_problem,
)
from keras_mp.ops.kernels.selftest_update import update_problem

TRAINED = ("float32", "mixed_float16 of Keras", "float16 of keras_mp")
DTYPES = ("float16", "bfloat16")
# Where Linux says what the driver is.
DRIVER = Path("/proc/driver/nvidia/version")


@dataclass(frozen=True)
class Sizes:
    """How large the problems are.

    Attributes:
        product: int, M, K and N.
        products: int, how many are timed at once.
        models: `Size` of each model.
        steps: int, how many steps of each model are timed.
    """

    product: int
    products: int
    models: dict[str, Size]
    steps: int


ON_GPU = Sizes(
    4096,
    20,
    {
        "dense": Size(batch=1024, width=4096),
        "convolution": Size(batch=64, width=128, length=56),
        "Transformer": Size(batch=16, width=1024, length=512),
    },
    20,
)
ON_CPU = Sizes(
    512,
    2,
    {
        "dense": Size(batch=64, width=512),
        "convolution": Size(batch=8, width=32, length=32),
        "Transformer": Size(batch=4, width=128, length=64),
    },
    5,
)
QUICK = Sizes(64, 1, dict.fromkeys(ON_CPU.models, Size(4, 16, 8)), 3)


@dataclass
class Report:
    """Lines, printed one by one and kept for the file, and what is wrong in them."""

    lines: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)

    def write(self, text: str = "") -> None:
        """Adds a line."""
        self.lines.append(text)
        print(text, flush=True)

    def value(self, name: str, value: str, aim: str = "") -> None:
        """Adds a line with a value, and what it should be, which decides nothing."""
        self.write(f"{name:<42} {value:<11} {aim and f'aim: {aim}'}".rstrip())

    def check(self, name: str, value: str, is_right: bool, rule: str = "") -> None:
        """Adds a line with a value, whether it is right, and by which rule."""
        if not is_right:
            self.wrong.append(name)
        verdict = "right" if is_right else "WRONG"
        self.write(f"{name:<42} {value:<11} {verdict}{rule and f': {rule}'}")


def run(options: argparse.Namespace) -> bool:
    """Prints the report, and writes it.

    Returns:
        bool, whether there is a GPU, and the kernels are right on it.

    Raises:
        CommandError: the file for the report exists, or its folder does not.
    """
    import tensorflow as tf

    check_new(options.out)
    devices = gpus()
    sizes = QUICK if options.quick else ON_GPU if devices else ON_CPU
    report = Report()
    sections: dict[str, Callable[[Report, Sizes], None]] = {
        "Installed": installed,
        "Kernels": kernels,
        "Products": products,
        "Training steps": training_steps,
        "Memory": memory,
    }
    if not devices:
        report.write("NO GPU: all of this ran on the CPU, and says nothing of a GPU.")
    with quiet_tensorflow():
        for title, section in sections.items():
            report.write(f"\n{title}\n{'-' * len(title)}")
            try:
                section(report, sizes)
            except tf.errors.OpError as error:  # the other sections still say something
                report.write(f"FAILED: {error.message}")
                report.wrong.append(f"{title} failed")
    report.write(f"\nverdict: {verdict(report, list(devices.values()))}")
    options.out.write_text("\n".join(report.lines) + "\n", encoding="utf-8")
    print(f"\nwrote {options.out}: please attach it to an issue, also if all is well")
    return bool(devices) and not report.wrong


def verdict(report: Report, kinds: Sequence[str]) -> str:
    """Returns what a report says of GPUs of some kinds, in one line."""
    if not kinds:
        return "no GPU: nothing above says how it is on one"
    on = ", ".join(dict.fromkeys(kinds))
    if report.wrong:
        return f"WRONG on {on}: {'; '.join(report.wrong)}"
    return f"the kernels are right on {on}"


def installed(report: Report, sizes: Sizes) -> None:
    """What is there, and what is missing."""
    import tensorflow as tf

    found = facts() | {
        "TF for CUDA": str(tf.sysconfig.get_build_info().get("cuda_version", "none")),
        "driver": driver(),
        "switches": " ".join(
            f"{name}={value}"
            for name, value in sorted(os.environ.items())
            if name.startswith("KERAS_MP_")
        ),
    }
    for name, value in found.items():
        report.write(f"{name + ':':14}{value or 'none'}")
    for gpu in tf.config.list_physical_devices("GPU"):
        details = tf.config.experimental.get_device_details(gpu)
        capability = details.get("compute_capability", (0, 0))
        report.value(
            f"compute capability of {gpu.name[-5:]}",
            ".".join(map(str, capability)),
            "7.0 or more: FP16 tensor cores; 8.0: also bfloat16 tensor cores",
        )


def driver() -> str:
    """Returns the version of NVIDIA's driver, such as `"580.65.06"`; empty for none."""
    if not DRIVER.is_file():
        return ""
    first_line, _, _ = DRIVER.read_text(encoding="utf-8").partition("\n")
    found = re.search(r"\d+\.[\d.]+", first_line)
    return found[0] if found else "unknown"


def kernels(report: Report, sizes: Sizes) -> None:
    """The kernels of keras_mp on known problems."""
    size = sizes.product
    for dtype, *transposes in itertools.product(DTYPES, (False, True), (False, True)):
        layout = "".join("T" if t else "N" for t in transposes)
        error = error_over_bound(dtype, size, *transposes)
        report.check(
            f"{dtype} product of {size}, {layout}, error",
            f"{error:.3f}",
            error <= 1,  # which NaN is not
            "at most 1 of the bound, against float64",
        )
    devices = gpus()
    if native.library() is None or (devices and native.cuda_problem()):
        report.write("no kernels for this device: plain TensorFlow computed these")
        report.wrong.append("no kernels for this device")
        return
    for device in devices or ["/device:CPU:0"]:
        problems = {
            f"first use of {dtype} products": apart(product_problem, device, dtype)
            for dtype in DTYPES
        }
        problems["update step"] = apart(update_problem, device)
        problems["convolution of a SavedModel"] = apart(convolution_problem, device)
        if not devices or dispatch.gpu_reductions_are_on():
            found = apart(reduction_problem, device)
            problems["softmax, normalization, sums"] = found
        for name, problem in problems.items():
            report.check(f"{name}, {device[-5:]}", "", not problem, problem)


def products(report: Report, sizes: Sizes) -> None:
    """The time of products, and TensorFlow's."""
    for dtype in DTYPES:
        times = product_ms(dtype, sizes.product, sizes.products)
        ours = times["fp16_gemm"]
        for name, milliseconds in times.items():
            rate = 2 * sizes.product**3 / milliseconds / 1e9
            report.write(
                f"{dtype:<9} {name:<24} {milliseconds:9.3f} ms {rate:8.2f} TFLOP/s"
            )
        report.value(
            f"{dtype} fp16_gemm / tf.matmul",
            f"{ours / times['tf.matmul']:.2f}",
            "at most 1.1",
        )
        report.value(
            f"{dtype} fp16_gemm / tf.matmul in float32",
            f"{ours / times['tf.matmul in float32']:.2f}",
            "at most 0.5 if tensor cores work; 0.7 if float32 uses TF32",
        )


def training_steps(report: Report, sizes: Sizes) -> None:
    """The time of a training step of each model, without XLA and with it."""
    for name, size in sizes.models.items():
        timings = time_recipes(
            BLOCKS[name], size, sizes.steps, seconds=40, recipes=_recipes()
        )
        for timing in timings:
            ratio = timing.fastest_ms / timings[0].fastest_ms
            report.value(
                f"{name}, {timing.recipe.name}",
                f"{timing.step_ms:.1f} ms, with XLA {timing.xla_step_ms:.1f} ms",
                ""
                if timing is timings[0]
                else f"below 1 of float32; it is {ratio:.2f}",
            )


def memory(report: Report, sizes: Sizes) -> None:
    """The most memory that training takes."""
    if not gpus():
        report.write("TensorFlow counts it on a GPU only")
        return
    for name, size in sizes.models.items():
        peaks = peak_bytes(BLOCKS[name], size, _recipes(), "GPU:0")
        for recipe, peak in zip(TRAINED, peaks, strict=True):
            report.value(
                f"{name}, {recipe}",
                f"{peak / 2**20:.0f} MiB",
                ""
                if recipe == TRAINED[0]
                else f"below 1 of float32; it is {peak / peaks[0]:.2f}",
            )


def _recipes() -> list[Any]:
    return [recipe for recipe in RECIPES if recipe.name in TRAINED]
