"""How do the blocks of `fp16_gemm` on a CPU compare with other sizes of them?

`python benchmarks/gemm_blocking.py` prints a Markdown table for each instruction set of
this CPU; `--instructions avx2` and `--members steps` choose. The columns are values of
a member of `Blocking` (custom_ops/src/cpu/gemm/gemm_kernel.h). A figure is the speed
with that value over the speed with the value that the instruction set has today, as
the geometric mean over products and layouts; the smallest follows. 1.03 and more are
bold: there another value would be faster.

The products run in the C++ benchmark gemm_cpu, which needs CMake, and in which the
values take turns.
"""

import argparse
import math
import subprocess
from pathlib import Path

from machine import processor

from keras_mp.ops.kernels import native

ROOT = Path(__file__).parents[1]
BUILD = ROOT / "build" / "cpp-blocking"

SQUARE = ["512,512,512", "1024,1024,1024", "2048,2048,2048"]
LARGE = [*SQUARE, "128,4096,2048", "1760,128,1760", "5124,700,2048"]
FEW_ROWS = [f"{m},4096,1024" for m in (2, 4, 8, 12, 16, 24, 32, 48)]
# Of each member: the values to try, and the products and layouts on which it acts.
MEMBERS = {
    "steps": ([128, 192, 256, 320, 384, 512], LARGE, "NN NT TN"),
    "max_rows": ([192, 256, 384, 512], LARGE, "NN NT TN"),
    "max_columns": ([96, 128, 192, 256], LARGE, "NN NT TN"),
    "skinny_rows_row_major_b": ([0, 4, 8, 16, 32], FEW_ROWS, "NN TN"),
    "skinny_rows_column_major_b": ([0, 8, 16, 32, 48], FEW_ROWS, "NT"),
}
NOTABLE = 1.03  # smaller differences come and go


def build():
    """Builds the C++ benchmark and returns its path."""
    configure = ["cmake", "-S", ROOT / "custom_ops", "-B", BUILD]
    options = ["-DKERAS_MP_TENSORFLOW=OFF", "-DKERAS_MP_CUDA=OFF"]
    subprocess.run([*configure, *options], check=True, stdout=subprocess.DEVNULL)
    make = ["cmake", "--build", BUILD, "--target", "gemm_cpu"]
    subprocess.run(make, check=True, stdout=subprocess.DEVNULL)
    return BUILD / "gemm_cpu"


def speeds(program, instructions, dtype, member):
    """Returns GFLOP/s as rows of products, columns of today's value and the others."""
    values, products, layouts = MEMBERS[member]
    option = f"{member}={','.join(map(str, values))}"
    printed = subprocess.run(
        [program, instructions, dtype, "same", option, *products],
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    rows = [line.split() for line in printed.splitlines()[1:]]
    return [
        [float(figure) for figure in figures]
        for _, _, _, layout, *figures in rows
        if layout in layouts.split()
    ]


def compared(rows):
    """Returns the geometric mean and the smallest of the ratios of each value."""
    today, *columns = zip(*rows, strict=True)
    for column in columns:
        ratios = [new / old for new, old in zip(column, today, strict=True)]
        yield math.exp(sum(map(math.log, ratios)) / len(ratios)), min(ratios)


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument(
        "--instructions", nargs="+", default=native.supported_cpu_instructions()
    )
    parser.add_argument("--members", nargs="+", default=[*MEMBERS], choices=MEMBERS)
    args = parser.parse_args()
    program = build()
    print(f"{processor()}; speed with a value over that with today's (smallest).")
    for instructions in args.instructions:
        for member in args.members:
            values = MEMBERS[member][0]
            print(
                f"\n| {instructions}, {member} | " + " | ".join(map(str, values)) + " |"
            )
            print("|---" * (len(values) + 1) + "|")
            for dtype in ("half", "bfloat16"):
                cells = [
                    f"**{mean:.2f}** ({least:.2f})"
                    if mean >= NOTABLE
                    else f"{mean:.2f} ({least:.2f})"
                    for mean, least in compared(
                        speeds(program, instructions, dtype, member)
                    )
                ]
                print(f"| {dtype} | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
