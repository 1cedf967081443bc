"""A mistake in the PTX of the update's kernels is noticed.

Each row names the kernel, the pattern of an instruction, which of its occurrences is
meant, what takes its place, and what notices it: a fault, or a result that is wrong.
The barriers that begin the two reductions of CheckKernel have no rows: before the first
nothing was written, and what the first thread still reads before the second is where it
writes itself.
"""

import functools
import re
from dataclasses import dataclass

import numpy as np
import pytest
from cuda_ptx import compilers, kernels
from cuda_ptx.mutations import WRONG, mutate, what_notices
from cuda_ptx.parser import parse
from cuda_ptx.update_checks import check_by_kernels
from cuda_ptx.updates import Step, Variable

ARCHITECTURE = "sm_80"
SOURCE = kernels.update_source("Adam")


@functools.cache
def text_of(name, *options):
    """The PTX of one kernel, and of what all of them declare."""
    options = options or ("--fmad=false",)
    ptx = compilers.compile_ptx(SOURCE, ARCHITECTURE, *options)
    declared = re.findall(r"\.extern \.shared [^;]*;", ptx)
    (entry,) = re.findall(rf"\.entry \w*{name}.*?\n}}", ptx, re.DOTALL)
    return "\n".join([*declared, entry])


@dataclass(frozen=True)
class CheckSubject:
    """CheckKernel on two arrays, of which the first has two chunks."""

    name: str = "CheckKernel"

    def is_right(self, ptx):
        """Whether PTX finds the largest numbers, the sum, and what is unscaled."""
        (kernel,) = parse(ptx).values()
        arrays = [np.linspace(-3, 5, size, dtype=np.float32) for size in (4099, 30)]
        unscaled, largest, total = check_by_kernels(
            ARCHITECTURE, [(array, "Float", 0) for array in arrays], 8, kernel
        )
        exact = sum(np.square(array / 8.0).sum() for array in arrays)
        return (
            all((u == a / 8).all() for u, a in zip(unscaled, arrays, strict=True))
            and (largest == 5 / 8).all()
            and abs(total - exact) <= 18 * 2**-24 * exact
        )


@dataclass(frozen=True)
class StepSubject:
    """A kernel of Adam on variables."""

    name: str
    variables: tuple[Variable, ...]
    finite: bool = True

    def is_right(self, ptx):
        """Whether PTX computes the step."""
        (kernel,) = parse(ptx).values()
        step = Step("Adam", self.variables)
        return step.mistakes(ARCHITECTURE, kernel, self.finite) == []


CHECK = CheckSubject()
UPDATE = StepSubject(kernels.UPDATE, (Variable(1027), Variable(31, form="master")))
CODED = StepSubject(
    kernels.COMPRESSED_UPDATE,
    (Variable(1027, form="weight, remainder", coded=True), Variable(33, form="weight")),
)
NOT_FINITE = StepSubject(kernels.UPDATE, (Variable(31),), finite=False)
SUBJECTS = {"check": CHECK, "update": UPDATE, "coded": CODED, "not-finite": NOT_FINITE}

BAR = r"bar\.sync\s+0;"
MUTATIONS = {
    "check-numbers-read-too-early": (CHECK, BAR, 1, "", "race"),
    "check-halves-added-too-early": (CHECK, BAR, 3, "", "race"),
    "check-sum-too-early": (CHECK, BAR, -1, "", "race"),
    "check-maximum-by-a-plain-store": (
        CHECK,
        r"atom\.global\.max\.u32\s+%r\d+, (\[%rd\d+\], %r\d+);",
        0,
        r"st.global.u32 \1;",
        "two threads write|reads what another",
    ),
    "check-last-two-numbers-by-every-thread": (
        CHECK,
        r"setp\.ne\.s32\s+(%p\d+), %r\d+, 0;",
        -1,
        r"setp.lt.u32 \1, 0, 0;",
        "race|outside of shared memory",
    ),
    "check-vector-next-to-its-place": (
        CHECK,
        r"(st\.global\.wb\.v4\.f32 \[%rd\d+)\]",
        0,
        r"\1+4]",
        "misaligned to 16",
    ),
    "update-last-element-of-four-always": (
        UPDATE,
        r"setp\.lt\.u32\s+(%p\d+), %r\d+, 4;",
        -1,
        r"setp.lt.u32 \1, 0, 0;",
        "outside of every array",
    ),
    "update-where-a-gradient-is-not-finite": (
        NOT_FINITE,
        r"setp\.eq\.s16\s+(%p\d+), %rs\d+, 0;",
        0,
        r"setp.lt.u32 \1, 0, 0;",
        WRONG,
    ),
    "update-another-root": (
        UPDATE,
        r"sqrt\.rn\.f32\s+(%f\d+), %f\d+;",
        0,
        r"mov.f32 \1, 0f3F800000;",
        WRONG,
    ),
    "update-rounds-up": (
        UPDATE,
        r"(cvt\.rn\.f16\.f32\s+%rs\d+), %f\d+;",
        -1,
        r"\1, 0f3F800000;",
        WRONG,
    ),
    "coded-group-of-four-threads": (
        CODED,
        r"shfl\.sync\.bfly\.b32\s+(%r\d+)\|%p\d+, (%r\d+)[^;]*;",
        2,
        r"mov.u32 \1, \2;",
        WRONG,
    ),
    "coded-shuffle-of-half-a-warp": (
        CODED,
        r"(shfl\.sync\.bfly\.b32[^;]*), %r\d+;",
        0,
        r"\1, 65535;",
        "not all lanes of a warp are named",
    ),
    "coded-exponent-by-every-thread": (
        CODED,
        r"and\.b64\s+(%rd\d+), %rd\d+, 28;",
        0,
        r"mov.u64 \1, 0;",
        "two threads write",
    ),
    "coded-other-random-numbers": (
        CODED,
        r"(mul\.lo\.s32\s+%r\d+, %r\d+), 2146121005;",
        0,
        r"\1, 2146121007;",
        WRONG,
    ),
    "coded-vector-next-to-its-place": (
        CODED,
        r"(st\.global\.wb\.v4\.u8 \[%rd\d+)\]",
        0,
        r"\1+1]",
        "misaligned to 4",
    ),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("subject", SUBJECTS.values(), ids=SUBJECTS)
def test_without_a_mutation_the_kernel_is_right(subject):
    assert subject.is_right(text_of(subject.name))


@pytest.mark.slow_except("check-halves-*", "coded-exponent-*")
@pytest.mark.parametrize("mutation", MUTATIONS.values(), ids=MUTATIONS)
def test_a_mutation_is_noticed(mutation):
    subject, pattern, number, replacement, noticed_by = mutation
    ptx = text_of(subject.name)
    mutant = mutate(ptx, pattern, number, replacement)
    assert mutant != ptx
    found = what_notices(subject.is_right, mutant)
    assert re.search(noticed_by, found), found


@pytest.mark.slow
def test_fused_multiply_adds_are_noticed():
    ptx = text_of(UPDATE.name, "--fmad=true")
    assert what_notices(UPDATE.is_right, ptx) == WRONG
