"""A mistake in the PTX of a kernel is noticed: one instruction removed or changed.

Each row names the kernel, the pattern of the instruction, which of its occurrences is
meant, what takes its place, and what notices it: a fault, or a result beyond the bound.
The last `cp.async.wait_group 0` has no row: the groups it waits for are empty, and a
kernel without it is right.
"""

import functools
import re
from dataclasses import dataclass

import pytest
from cuda_ptx import kernels
from cuda_ptx.mutations import WRONG, mutate, what_notices
from cuda_ptx.parser import parse
from cuda_ptx.products import Case, Product

# A fragment has another layout for another layout of the matrix.
AGREE = "two lanes hold different numbers"


@dataclass(frozen=True)
class Subject:
    """A kernel and a product that it computes, with more steps than stages."""

    architecture: str
    shape: str
    contiguous_k: tuple[bool, bool]
    case: Case

    @functools.cached_property
    def ptx(self):
        """The compiler's PTX."""
        source = kernels.product_source(self.shape, "Half", *self.contiguous_k)
        return kernels.ptx_of(source, self.architecture)

    def is_right(self, ptx):
        """Whether other PTX computes the product."""
        (kernel,) = parse(ptx).values()
        product = Product(self.case, "Half", self.contiguous_k)
        result = product.run(self.shape, self.architecture, kernel=kernel)
        return product.error_over_bound(result, roundings=3) <= 1


WMMA = Subject("sm_70", "WmmaSmall", (True, False), Case(64, 64, 96))
WMMA_PAIR = Subject("sm_70", "WmmaMedium", (True, False), Case(128, 128, 96))
# The last of five steps reads the first of four stages, where the strips are written.
MMA = Subject("sm_80", "MmaSmall", (True, False), Case(64, 64, 64 * 5))
SUBJECTS = {"wmma": WMMA, "wmma-pair": WMMA_PAIR, "mma": MMA}

BAR, WARP_BAR = r"bar\.sync\s+0;", r"bar\.warp\.sync\s+-1;"
MUTATIONS = {
    "wmma-tile-overwritten-too-early": (WMMA, BAR, 0, "", "race"),
    "wmma-tile-read-too-early": (WMMA, BAR, 1, "", "race"),
    "wmma-strips-over-the-tile": (WMMA, BAR, 2, "", "race"),
    "wmma-pair-barrier-of-a-step": (WMMA_PAIR, BAR, 0, "", "race"),
    "wmma-pair-strips-over-the-tile": (WMMA_PAIR, BAR, 1, "", "race"),
    "wmma-strip-read-too-early": (WMMA, WARP_BAR, 0, "", "race"),
    "wmma-strip-overwritten-too-early": (WMMA, WARP_BAR, 1, "", "race"),
    "wmma-other-layout": (
        WMMA,
        r"wmma\.load\.a\.sync\.aligned\.row",
        0,
        "wmma.load.a.sync.aligned.col",
        AGREE,
    ),
    "wmma-other-layout-of-the-product": (
        WMMA,
        r"wmma\.mma\.sync\.aligned\.row\.row",
        0,
        "wmma.mma.sync.aligned.col.row",
        AGREE,
    ),
    "wmma-store-next-to-its-place": (
        WMMA,
        r"(st\.shared\.v4\.u32\s+\[%rd\d+)\]",
        0,
        r"\1+16]",
        "race|never written",
    ),
    "wmma-load-next-to-its-place": (
        WMMA,
        r"(ld\.global\.v4\.u32\s+\{[^}]*\}, \[%rd\d+)\]",
        0,
        r"\1+2]",
        "misaligned",
    ),
    "wmma-fragment-misaligned": (
        WMMA,
        r"(wmma\.load\.b[^;]*\[%rd\d+)\]",
        0,
        r"\1+16]",
        "misaligned to 32",
    ),
    "wmma-half-of-the-lanes": (
        WMMA,
        r"(\s)(wmma\.mma[^;]*;)",
        0,
        r"\1.reg .pred %half; setp.lt.u32 %half, %laneid, 16; @%half \2",
        "not all lanes",
    ),
    "mma-barrier-of-a-step": (MMA, BAR, 0, "", "race|cp.async"),
    "mma-strips-over-the-ring": (MMA, BAR, 1, "", "race"),
    "mma-strip-read-too-early": (MMA, WARP_BAR, 0, "", "race"),
    "mma-strip-overwritten-too-early": (MMA, WARP_BAR, 1, "", "race"),
    "mma-waits-for-a-group-less": (
        MMA,
        r"cp\.async\.wait_group 2;",
        0,
        "cp.async.wait_group 3;",
        "cp.async",
    ),
    "mma-commits-too-late": (MMA, r"cp\.async\.commit_group;", 0, "", "cp.async"),
    "mma-not-transposed": (MMA, r"m8n8\.x4\.trans", 0, "m8n8.x4", WRONG),
    "mma-registers-exchanged": (
        MMA,
        r"(mma\.sync[^;]*?\}\s*,\s*\{)(%r\d+)(,\s*)(%r\d+)",
        0,
        r"\1\4\3\2",
        WRONG,
    ),
    "mma-row-next-to-its-place": (
        MMA,
        r"(ldmatrix[^;]*\[%r\d+)(?:\+(\d+))?\]",
        1,
        r"\1+8]",
        "misaligned to 16",
    ),
    "mma-copy-of-half": (
        MMA,
        r"(cp\.async\.cg[^;]*), 16, %r\d+;",
        0,
        r"\1, 16, 8;",
        WRONG,
    ),
    "mma-branch-inverted": (MMA, r"@(%p\d+) bra", 0, r"@!\1 bra", "never written"),
    "mma-store-next-to-its-place": (
        MMA,
        r"(st\.global\.v2\.u16\s+\[%rd\d+)\]",
        -1,
        r"\1+4]",
        "two threads write|outside",
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("subject", SUBJECTS.values(), ids=SUBJECTS)
def test_without_a_mutation_the_product_is_right(subject):
    assert subject.is_right(subject.ptx)


@pytest.mark.slow_except("wmma-other-layout", "mma-barrier-of-a-step")
@pytest.mark.parametrize("mutation", MUTATIONS.values(), ids=MUTATIONS)
def test_a_mutation_is_noticed(mutation):
    subject, pattern, number, replacement, noticed_by = mutation
    mutant = mutate(subject.ptx, pattern, number, replacement)
    assert mutant != subject.ptx
    found = what_notices(subject.is_right, mutant)
    assert re.search(noticed_by, found), found
