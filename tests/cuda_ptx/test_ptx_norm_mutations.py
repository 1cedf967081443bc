"""A mistake in the PTX of the kernels of cuda/norm and cuda/conv is noticed.

Each row names the subject, the pattern of an instruction, which of its occurrences is
meant, what takes its place, and what notices it: a fault, or a result that is wrong.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass

import pytest
from cuda_ptx import kernels
from cuda_ptx.channels import batch_norm_excess, sum_excess
from cuda_ptx.convolutions import Convolution, Window
from cuda_ptx.mutations import WRONG, mutate, what_notices
from cuda_ptx.parser import parse
from cuda_ptx.rows import RowNormProblem, Rows, SoftmaxProblem

ARCHITECTURE, ELEMENT = "sm_80", "Half"
ROW_NORM = kernels.row_norm_source(ELEMENT)
SOFTMAX = kernels.softmax_source(ELEMENT)
CHANNELS = kernels.channel_source(ELEMENT)
CONV = kernels.conv_source(ELEMENT)
WINDOWS = Window(5, stride=2), Window(6)


@dataclass(frozen=True)
class Subject:
    """A kernel: its source, a part of its name, its largest error over the bound."""

    source: str
    name: str
    excess: Callable

    @property
    def text(self):
        """The PTX of the kernel, and of what all of the source declare."""
        ptx = kernels.ptx_of(self.source, ARCHITECTURE)
        declared = re.findall(r"\.extern \.shared [^;]*;", ptx)
        (entry,) = re.findall(rf"\.entry \w*{self.name}\w*\(.*?\n}}", ptx, re.DOTALL)
        return "\n".join([*declared, entry])

    def is_right(self, ptx):
        """Whether PTX computes what the contract says."""
        (kernel,) = parse(ptx).values()
        return self.excess(kernel) <= 1


def of_rows(problem, rows, **options):
    """The excess of a row problem whose kernel is replaced."""

    def excess(kernel):
        made = problem(rows, ELEMENT, ARCHITECTURE, kernel=kernel, **options)
        return made.forward()

    return excess


def of_softmax_gradient(kernel):
    rows = Rows(1, 1032)
    return SoftmaxProblem(rows, ELEMENT, ARCHITECTURE, kernel=kernel).backward()


def of_row_gradient(kernel):
    rows = Rows(2, 40)
    return max(RowNormProblem(rows, ELEMENT, ARCHITECTURE, kernel=kernel).backward())


def of_sum(name, *shape):
    return lambda kernel: sum_excess(
        shape, ELEMENT, ARCHITECTURE, mutants={name: kernel}
    )


def of_map(result, shape, *instance):
    """A result of batch normalization, which the instance of a kernel computes."""

    def excess(kernel):
        found = batch_norm_excess(
            shape, ELEMENT, ARCHITECTURE, mutants={instance: kernel}
        )
        return found[result]

    return excess


def of_conv(name, method):
    def excess(kernel):
        mutants = {name: kernel}
        made = Convolution(2, 3, WINDOWS, ELEMENT, ARCHITECTURE, mutants=mutants)
        return getattr(made, method)()

    return excess


SUBJECTS = {
    "row-norm": Subject(
        ROW_NORM,
        "13RowNormKernelINS0_4HalfELi256ELb1E",
        of_rows(RowNormProblem, Rows(2, 1032)),
    ),
    "row-gradient": Subject(
        ROW_NORM, "21RowNormGradientKernelINS0_4HalfELi32ELb1E", of_row_gradient
    ),
    "softmax": Subject(
        SOFTMAX,
        "13SoftmaxKernelINS0_4HalfES2_Li32ELb1E",
        of_rows(SoftmaxProblem, Rows(9, 40), spread=30),
    ),
    "softmax-gradient": Subject(
        SOFTMAX, "21SoftmaxGradientKernelINS0_4HalfELi256ELb1E", of_softmax_gradient
    ),
    "column-sums": Subject(
        CHANNELS,
        "16ColumnSumsKernelINS0_4HalfENS0_9PlainTermENS0_8NoScales",
        of_sum("ColumnSumsKernel", 2, 70, 66),
    ),
    "row-sums": Subject(
        CHANNELS,
        "13RowSumsKernelINS0_4HalfENS0_9PlainTermENS0_8NoScalesELi256E",
        of_sum("RowSumsKernel", 1, 8200, 1),
    ),
    "finish": Subject(
        kernels.FINISH, "12FinishKernel", of_sum("FinishKernel", 2, 700, 7)
    ),
    "column-map": Subject(
        CHANNELS,
        "15ColumnMapKernelINS0_4HalfENS0_12NormalizeMap",
        of_map("y", (9, 66, 1), "ColumnMapKernel", ELEMENT, "NormalizeMap"),
    ),
    "row-map": Subject(
        CHANNELS,
        "12RowMapKernelINS0_4HalfENS0_11GradientMapELi32E",
        of_map("grad_x", (3, 3, 16), "RowMapKernel", ELEMENT, "GradientMap", "32"),
    ),
    "conv": Subject(
        CONV, "19DepthwiseConvKernel", of_conv("DepthwiseConvKernel", "y_excess")
    ),
    "conv-grad-x": Subject(
        CONV,
        "24DepthwiseConvGradXKernel",
        of_conv("DepthwiseConvGradXKernel", "grad_x_excess"),
    ),
    "conv-grad-kernel": Subject(
        CONV,
        "29DepthwiseConvGradKernelKernel",
        of_conv("DepthwiseConvGradKernelKernel", "grad_kernel_excess"),
    ),
}

BAR = r"bar\.sync\s+0;"
SHUFFLE = r"shfl\.sync\.bfly\.b32\s+(%r\d+)\|%p\d+, (%r\d+)[^;]*;"
NEVER, ALWAYS = r"setp.lt.u32 \1, 0, 0;", r"setp.ge.u32 \1, 0, 0;"
ROOT = r"sqrt\.rn\.f32\s+(%f\d+), %f\d+;"
MUTATIONS = {
    "row-norm: sums of warps are read too early": ("row-norm", BAR, 1, "", "race"),
    "row-norm: and overwritten too early": ("row-norm", BAR, 2, "", "race"),
    "row-norm: no sum over the lanes": (
        "row-norm", SHUFFLE, 0, r"mov.b32 \1, \2;", WRONG,
    ),
    "row-norm: no variance": ("row-norm", ROOT, 0, r"mov.f32 \1, 0f3F800000;", WRONG),
    "row-norm: a vector next to its place": (
        "row-norm", r"(st\.global\.wb\.v4\.u32 \[%rd\d+)\]", 0, r"\1+2]",
        "misaligned to 16",
    ),
    "row-gradient: each thread writes the scales": (
        "row-gradient", r"setp\.ne\.s32\s+(%p\d+), %r\d+, 0;", 1, NEVER, "two threads",
    ),
    "row-gradient: no sum over the lanes": (
        "row-gradient", SHUFFLE, -1, r"mov.b32 \1, \2;", WRONG,
    ),
    "softmax: rows that do not exist": (
        "softmax", r"setp\.ge\.s64\s+(%p\d+), %rd\d+, %rd\d+;", 0, NEVER,
        "outside of every array",
    ),
    "softmax: the least of the lanes": (
        "softmax", r"max\.f32(\s+%f\d+, %f\d+, %f\d+;)", -5, r"min.f32\1", WRONG,
    ),
    "softmax: another exponential": (
        "softmax", r"ex2\.approx\.ftz\.f32\s+(%f\d+), %f\d+;", 32,
        r"mov.f32 \1, 0f3F800000;", WRONG,
    ),
    "softmax: a shuffle of half a warp": (
        "softmax", r"(shfl\.sync\.bfly\.b32[^;]*), %r\d+;", 0, r"\1, 65535;",
        "not all lanes of a warp are named",
    ),
    "softmax-gradient: the second sum too early": (
        "softmax-gradient", BAR, -1, "", "race",
    ),
    "column-sums: sums of warps are read too early": (
        "column-sums", BAR, 0, "", "race",
    ),
    "column-sums: a column that does not exist": (
        "column-sums", r"setp\.ge\.s64\s+(%p\d+), %rd\d+, %rd\d+;", -1, NEVER,
        "outside of every array|two threads write",
    ),
    "column-sums: half of a tile": (
        "column-sums", r"(setp\.gt\.s32\s+%p\d+, %r\d+), 63;", 0, r"\1, 31;", WRONG,
    ),
    "row-sums: every thread writes": (
        "row-sums", r"setp\.ne\.s32\s+(%p\d+), %r\d+, 0;", -1, NEVER, "two threads",
    ),
    "row-sums: no sum over the lanes": (
        "row-sums", SHUFFLE, 2, r"mov.b32 \1, \2;", WRONG,
    ),
    "finish: sums of lanes are read too early": ("finish", BAR, 0, "", "race"),
    "finish: another divisor": (
        "finish", r"div\.rn\.f64\s+(%fd\d+), %fd\d+, (%fd\d+);", 0, r"mov.f64 \1, \2;",
        WRONG,
    ),
    "column-map: another deviation": (
        "column-map", ROOT, 0, r"mov.f32 \1, 0f3F800000;", WRONG,
    ),
    "column-map: a pair next to its place": (
        "column-map", r"(st\.global\.wb\.v2\.u16 \[%rd\d+)\]", 0, r"\1+2]",
        "misaligned to 4",
    ),
    "row-map: teams that do not exist": (
        "row-map", r"setp\.ge\.s64\s+(%p\d+), %rd\d+, %rd\d+;", 0, NEVER,
        "outside of every array",
    ),
    "row-map: a gradient of another sign": (
        "row-map", r"sub\.f32\s+(%f\d+), (%f\d+), (%f\d+);", 0, r"add.f32 \1, \2, \3;",
        WRONG,
    ),
    "conv: images that do not exist": (
        "conv", r"setp\.ge\.s64\s+(%p\d+), %rd\d+, %rd\d+;", 0, NEVER,
        "outside of every array",
    ),
    "conv: another weight": (
        "conv", r"cvt\.rn\.f16\.f32\s+(%rs\d+), %f\d+;", 4, r"mov.u16 \1, 15360;",
        WRONG,
    ),
    "conv-grad-x: what a stride leaves out": (
        "conv-grad-x", r"setp\.eq\.s64\s+(%p\d+), %rd\d+, %rd\d+;", 0, ALWAYS, WRONG,
    ),
    "conv-grad-kernel: sums of warps are read too early": (
        "conv-grad-kernel", BAR, 0, "", "race",
    ),
}  # fmt: skip


@pytest.mark.xslow_except("row-norm", "column-map", "row-map", "conv*", "finish")
@pytest.mark.slow
@pytest.mark.parametrize("subject", SUBJECTS.values(), ids=SUBJECTS)
def test_without_a_mutation_the_kernel_is_right(subject):
    assert subject.is_right(subject.text)


@pytest.mark.slow_except("softmax: another exponential")
@pytest.mark.parametrize("mutation", MUTATIONS.values(), ids=MUTATIONS)
def test_a_mutation_is_noticed(mutation):
    name, pattern, number, replacement, noticed_by = mutation
    ptx = SUBJECTS[name].text
    mutant = mutate(ptx, pattern, number, replacement)
    assert mutant != ptx
    found = what_notices(SUBJECTS[name].is_right, mutant)
    assert re.search(noticed_by, found), found
