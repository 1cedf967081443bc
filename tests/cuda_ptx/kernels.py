"""The kernels of custom_ops/src/cuda, compiled one at a time, by name."""

import functools
import re
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
def kernels_in(source, architecture):
    """The kernels of a source, parsed, by name."""
    return parse(ptx_of(source, architecture))


@functools.cache
def kernel_of(source, architecture, name):
    """The one kernel whose name has `name` in it, parsed."""
    found = kernels_in(source, architecture)
    (kernel,) = (kernel for known, kernel in found.items() if name in known)
    return kernel


def instance_of(source, architecture, name, *arguments):
    """The one kernel of a template with these arguments, as strings, parsed.

    Those that are not given may be any: of SoftmaxKernel, the second format.
    """
    given = ".*".join(map(_mangled, arguments))
    pattern = re.compile(rf"\D{len(name)}{name}(I(NS0_)?{given}|E)")
    found = kernels_in(source, architecture)
    (kernel,) = (kernel for known, kernel in found.items() if pattern.search(known))
    return kernel


def _mangled(argument):
    """A class, a number or a bool as the compiler writes it."""
    if argument in ("true", "false"):
        return f"Lb{int(argument == 'true')}E"
    return f"Li{argument}E" if argument.isdigit() else f"{len(argument)}{argument}E"


# By the size of a row: the team of threads, and whether its registers hold the row.
TEAMS = (("32", "true"), ("256", "true"), ("256", "false"))


def _instances(header, declarations):
    lines = "\n".join(f"template __global__ void {d};" for d in declarations)
    return f'#include "cuda/{header}"\nnamespace keras_mp::cuda {{\n{lines}\n}}'


def row_norm_source(element):
    """The kernels of cuda/norm/row_norm.cuh, of every team."""
    return _instances(
        "norm/row_norm.cuh",
        [
            f"{name}<{element}, {', '.join(team)}>(const {arguments})"
            for team in TEAMS
            for name, arguments in (
                ("RowNormKernel", "RowNorm"),
                ("RowNormGradientKernel", "RowNormGradientArguments"),
            )
        ],
    )


def softmax_source(element):
    """The kernels of cuda/norm/softmax.cuh, of every team."""
    return _instances(
        "norm/softmax.cuh",
        [
            f"{name}{element}, {', '.join(team)}>(const {arguments})"
            for team in TEAMS
            for name, arguments in (
                (f"SoftmaxKernel<{element}, ", "Softmax"),
                ("SoftmaxKernel<Float, ", "Softmax"),
                ("SoftmaxGradientKernel<", "SoftmaxGradient"),
                ("FloatSoftmaxGradientKernel<", "FloatSoftmaxGradient"),
            )
        ],
    )


# The terms of the sums, with the places of their scales.
TERMS = (
    ("PlainTerm", "NoScales"),
    ("SquareTerm", "ChannelScales"),
    ("GradientTerm", "ChannelScales"),
    ("GradientTerm", "RowScales"),
)
MAPS = ("NormalizeMap", "GradientMap")


def channel_source(element):
    """The kernels of cuda/norm/channel_sums.cuh and channel_map.cuh."""
    declarations = []
    for term, scales in TERMS:
        kinds = f"{element}, {term}, {scales}"
        arguments = f"SumsArguments<{scales}>"
        declarations.append(f"ColumnSumsKernel<{kinds}>(const Column{arguments})")
        if scales != "RowScales":
            for team in (32, 256):
                declarations.append(
                    f"RowSumsKernel<{kinds}, {team}>(const Row{arguments})"
                )
    for kind in MAPS:
        arguments = f"MapArguments<{kind}>"
        declarations.append(
            f"ColumnMapKernel<{element}, {kind}>(const Column{arguments})"
        )
        for team in (32, 256):
            declarations.append(
                f"RowMapKernel<{element}, {kind}, {team}>(const Row{arguments})"
            )
    return _instances("norm/channel_map.cuh", declarations)


FINISH = '#include "cuda/norm/channel_sums.cuh"'  # FinishKernel is no template


def conv_source(element):
    """The kernels of cuda/conv/depthwise_conv.cuh."""
    return _instances(
        "conv/depthwise_conv.cuh",
        [
            f"DepthwiseConv{name}<{element}>(const DepthwiseConv{arguments})"
            for name, arguments in (
                ("Kernel", "Arguments"),
                ("GradXKernel", "Arguments"),
                ("GradKernelKernel", "GradKernelArguments"),
            )
        ],
    )
