"""The kernels of custom_ops/src/cuda, compiled one at a time, by name."""

import functools
from dataclasses import dataclass

from cuda_ptx import compilers
from cuda_ptx.parser import parse


@dataclass(frozen=True)
class Shape:
    """A tile shape of cuda/gemm/shapes.h, and what the host knows of it."""

    name: str
    m: int
    n: int
    k: int
    warp_m: int
    warp_n: int
    stages: int

    @property
    def threads(self):
        """Threads of a block."""
        return self.m // self.warp_m * (self.n // self.warp_n) * 32

    @property
    def is_wmma(self):
        """Whether it is one of sm_70 and sm_75."""
        return self.name.startswith("Wmma")

    def shared_bytes(self, contiguous_k_a, contiguous_k_b):
        """WmmaMemory::kBytes or MmaMemory::kBytes."""
        strips = self.threads // 32 * 16 * (self.warp_n + 8) * 4
        if not self.is_wmma:
            return max(strips, self.stages * (self.m + self.n) * self.k * 2)
        tiles = sum(
            mn * (self.k + 8) if contiguous_k else self.k * (mn + 8)
            for mn, contiguous_k in ((self.m, contiguous_k_a), (self.n, contiguous_k_b))
        )
        return max(strips, 2 * self.stages * tiles)


SHAPES = {
    shape.name: shape
    for shape in (
        Shape("WmmaMedium", 128, 128, 32, 32, 64, 2),
        Shape("WmmaSmall", 64, 64, 32, 32, 32, 1),
        Shape("MmaLarge", 128, 256, 32, 64, 64, 4),
        Shape("MmaMedium", 128, 128, 32, 64, 64, 4),
        Shape("MmaSmall", 64, 64, 64, 32, 32, 4),
        Shape("MmaNarrow", 128, 32, 64, 32, 32, 4),
        Shape("MmaFlat", 32, 128, 64, 32, 32, 4),
    )
}


# By the memory of A and B, transposed or not: whether k is contiguous in each.
LAYOUTS = {
    "nn": (True, False),
    "nt": (True, True),
    "tn": (False, False),
    "tt": (False, True),
}


def products():
    """Every kernel of the product: architecture, shape, element type, layout."""
    for architecture in compilers.ARCHITECTURES:
        for shape in shapes_of(architecture):
            for element in ["Half"] if shape.is_wmma else ["Half", "Bfloat16"]:
                for layout in LAYOUTS:
                    yield architecture, shape.name, element, layout


def shapes_of(architecture):
    """The tile shapes that run on the architecture."""
    wmma = architecture in ("sm_70", "sm_75")
    return [shape for shape in SHAPES.values() if shape.is_wmma == wmma]


def _instance(header, declaration):
    return (
        f'#include "cuda/gemm/{header}"\n#include "cuda/gemm/shapes.h"\n'
        f"namespace keras_mp::cuda {{ template __global__ void {declaration}; }}"
    )


def _header(architecture):
    return "wmma.cuh" if architecture in ("sm_70", "sm_75") else "mma.cuh"


def _cpp(flag):
    return str(bool(flag)).lower()


def product_source(shape, element, contiguous_k_a, contiguous_k_b):
    """MmaKernel or WmmaKernel."""
    layout = f"{shape}, {_cpp(contiguous_k_a)}, {_cpp(contiguous_k_b)}"
    if SHAPES[shape].is_wmma:
        return _instance("wmma.cuh", f"WmmaKernel<{layout}>(const Problem)")
    return _instance("mma.cuh", f"MmaKernel<{element}, {layout}>(const Problem)")


def reduce_source(architecture, element):
    """ReduceKernel."""
    return _instance(_header(architecture), f"ReduceKernel<{element}>(const Problem)")


def round_source(element):
    """RoundKernel."""
    return _instance(
        "round.cuh", f"RoundKernel<{element}>(const float*, Bits16*, Index)"
    )


def relu_source(bits):
    """ReluKernel."""
    return _instance("relu.cuh", f"ReluKernel<{bits}>(const Problem, {bits})")


# The names of the kernels of a rule, as the compiler writes them.
UPDATE, COMPRESSED_UPDATE = "12UpdateKernel", "22CompressedUpdateKernel"


def update_source(rule):
    """UpdateKernel and CompressedUpdateKernel of one rule.

    With them come the other kernels of cuda/update/kernels.cuh, which are no templates.
    """
    rule = f"UpdateRule::k{rule}"
    return (
        '#include "cuda/update/compressed_kernel.cuh"\n'
        "namespace keras_mp::cuda {\n"
        f"template __global__ void UpdateKernel<{rule}>"
        "(const UpdateArguments<UpdateEntry>);\n"
        f"template __global__ void CompressedUpdateKernel<{rule}>"
        "(const UpdateArguments<Parameter>);\n}"
    )


@functools.cache
def ptx_of(source, architecture):
    """The PTX, with the options of cmake/cuda.cmake."""
    options = ["--fmad=false"] if "cuda/update" in source else []
    return compilers.compile_ptx(source, architecture, *options)


@functools.cache
def kernel_of(source, architecture, name):
    """The one kernel whose name has `name` in it, parsed."""
    (kernel,) = (k for n, k in parse(ptx_of(source, architecture)).items() if name in n)
    return kernel
