"""Counts of CUTLASS's kernels with the tiles of ours, from the same compiler.

PYTHONPATH=tests python -m cuda_ptx.cutlass_counts FOLDER prints the rows that stand
beside ours in docs/performance/cuda_kernels.md. FOLDER is `include` of a copy of
NVIDIA's CUTLASS, which is no part of this project.
"""

import sys

from cuda_ptx import kernels
from cuda_ptx.assembly import count
from cuda_ptx.compilers import ARCHITECTURES, HOST_HEADERS, assemble, compile_ptx
from cuda_ptx.table_of_counts import print_table

# The instruction that each architecture multiplies with.
INSTRUCTIONS = {"sm_70": "8, 8, 4", "sm_75": "16, 8, 8", "sm_80": "16, 8, 16"}
SOURCE = """
#include <cassert>
#include "cutlass/cutlass.h"
#include "cutlass/epilogue/thread/linear_combination.h"
#include "cutlass/gemm/kernel/default_gemm.h"
#include "cutlass/gemm/threadblock/threadblock_swizzle.h"
using Half = cutlass::half_t;
using cutlass::gemm::GemmShape;
using RowMajor = cutlass::layout::RowMajor;
using ColumnMajor = cutlass::layout::ColumnMajor;
using Epilogue = cutlass::epilogue::thread::LinearCombination<Half, 8, float, float>;
using Gemm = cutlass::gemm::kernel::DefaultGemm<
    Half, LAYOUTS, 8, Half, RowMajor, float, cutlass::arch::OpClassTensorOp,
    cutlass::arch::ARCHITECTURE, GemmShape<BLOCK>, GemmShape<WARP>,
    GemmShape<INSTRUCTION>, Epilogue,
    cutlass::gemm::threadblock::GemmIdentityThreadblockSwizzle<1>, STAGES, false,
    cutlass::arch::OpMultiplyAdd>::GemmKernel;
extern "C" __global__ void __launch_bounds__(Gemm::kThreadCount, 1)
    Kernel(Gemm::Params params) {
  extern __shared__ int memory[];
  Gemm()(params, *reinterpret_cast<Gemm::SharedStorage*>(memory));
}
"""
# Those that NVRTC has not, in addition to those that our kernels need.
EMPTY = ("assert.h", "cassert", "cstdlib", "iosfwd", "stdlib.h", "stdio.h")
INTEGERS = "".join(
    f"using cuda::std::{sign}int{bits}_t;"
    for bits in (8, 16, 32, 64)
    for sign in ("", "u")
)
HEADERS = dict.fromkeys(EMPTY, "#undef assert\n#define assert(x)\n") | {
    name: f"#include <cuda/std/{name}>\nnamespace std {{ using namespace cuda::std; }}"
    for name in ("array", "cmath", "complex", "cstddef", "limits", "tuple")
}
HEADERS["stdint.h"] = f"#include <cuda/std/cstdint>\n{INTEGERS}"
HEADERS["cstdint"] = f"#include <stdint.h>\n{HOST_HEADERS['cstdint']}"


def source_of(architecture, shape, contiguous_k_a, contiguous_k_b):
    """CUTLASS's kernel with the tile of one of ours."""
    like = min(architecture, "sm_80")  # those of Ampere run on Hopper, too
    # Our warps take a step in parts of 16; CUTLASS's take all of it.
    replaced = {
        "LAYOUTS": "{}Major, 8, Half, {}Major".format(
            "Row" if contiguous_k_a else "Column", "Column" if contiguous_k_b else "Row"
        ),
        "ARCHITECTURE": like.replace("sm_", "Sm"),
        "BLOCK": f"{shape.m}, {shape.n}, {shape.k}",
        "WARP": f"{shape.warp_m}, {shape.warp_n}, {shape.k}",
        "INSTRUCTION": INSTRUCTIONS[like],
        "STAGES": str(2 if shape.is_wmma else shape.stages),
    }
    source = SOURCE
    for name, text in replaced.items():
        source = source.replace(name, text)
    return source


def counts_of(folder):
    """Yields architecture, name of the shape and counts, for each layout."""
    for architecture in ARCHITECTURES:
        for shape in kernels.shapes_of(architecture):
            for contiguous_k in kernels.LAYOUTS.values():
                ptx = compile_ptx(
                    source_of(architecture, shape, *contiguous_k),
                    architecture,
                    f"--include-path={folder}",
                    headers=HEADERS,
                )
                cubin, log = assemble(ptx, architecture)
                yield architecture, shape.name, count(cubin, log, architecture)


if __name__ == "__main__":
    print_table(counts_of(sys.argv[1]))
