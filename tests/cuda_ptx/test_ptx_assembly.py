"""What ptxas makes of the kernels: tensor-core code without spills or moves."""

import pytest
from cuda_ptx import kernels
from cuda_ptx.assembly import (
    BRA,
    HMMA,
    HMMA_884,
    Instruction,
    aligned_path,
    code_of,
    spilled_bytes,
    target_of,
)
from cuda_ptx.compilers import assemble, compile_ptx
from cuda_ptx.table_of_counts import compile_product

OPCODES = {"sm_70": HMMA_884, "sm_75": HMMA, "sm_80": HMMA, "sm_90": HMMA}
# Multiply-adds of one HMMA.
SIZES = {"sm_70": 256, "sm_75": 16 * 8 * 8, "sm_80": 16 * 8 * 16, "sm_90": 16 * 8 * 16}
# The most instructions of a step in any type and layout. ptxas 12.9.86 makes 2% less,
# which is at most 1.24 of those of CUTLASS's kernel with the same tile and layout.
MOST_INSTRUCTIONS = {
    ("sm_70", "WmmaMedium"): 388,
    ("sm_70", "WmmaSmall"): 215,
    ("sm_75", "WmmaMedium"): 167,
    ("sm_75", "WmmaSmall"): 99,
    ("sm_80", "MmaLarge"): 162,
    ("sm_80", "MmaMedium"): 170,
    ("sm_80", "MmaSmall"): 143,
    ("sm_80", "MmaNarrow"): 154,
    ("sm_80", "MmaFlat"): 156,
    ("sm_90", "MmaLarge"): 174,
    ("sm_90", "MmaMedium"): 182,
    ("sm_90", "MmaSmall"): 151,
    ("sm_90", "MmaNarrow"): 170,
    ("sm_90", "MmaFlat"): 169,
}
# Of the two pointers to tiles that change places, not of a fragment.
MOST_MOVES = {("sm_70", "WmmaMedium"): 3}

HALF_ACCUMULATOR = """
#include <mma.h>
using namespace nvcuda;
__global__ void Kernel(__half* x) {
  wmma::fragment<wmma::matrix_a, 16, 16, 16, __half, wmma::row_major> a;
  wmma::fragment<wmma::matrix_b, 16, 16, 16, __half, wmma::row_major> b;
  wmma::fragment<wmma::accumulator, 16, 16, 16, __half> sum;
  wmma::load_matrix_sync(a, x, 16);
  wmma::load_matrix_sync(b, x, 16);
  wmma::load_matrix_sync(sum, x, 16, wmma::mem_row_major);
  wmma::mma_sync(sum, a, b, sum);
  wmma::store_matrix_sync(x, sum, 16, wmma::mem_row_major);
}
"""

PRODUCTS = {"-".join(product): product for product in kernels.products()}


@pytest.mark.xslow_except(
    "sm_70-WmmaSmall-Half-nn", "sm_80-MmaLarge-Half-nn", "sm_80-MmaFlat-Half-nn"
)
@pytest.mark.slow_except("sm_70-WmmaSmall-Half-nn")
@pytest.mark.parametrize("product", PRODUCTS.values(), ids=PRODUCTS)
def test_products(product):
    architecture, name, *_ = product
    shape = kernels.SHAPES[name]
    cubin, counts = compile_product(*product)
    used = [i for i in code_of(cubin, architecture) if i.is_product]
    assert {i.opcode for i in used} == {OPCODES[architecture]}
    assert all(i.adds_in_fp32 for i in used)
    of_a_step = shape.warp_m * shape.warp_n * shape.k
    assert counts.products == of_a_step // SIZES[architecture]
    assert counts.spilled_bytes == 0
    assert counts.moves <= MOST_MOVES.get((architecture, name), 0)
    assert counts.barriers == (2 if shape.stages == 1 else 1)
    assert counts.instructions <= MOST_INSTRUCTIONS[architecture, name]


@pytest.mark.parametrize("architecture", ["sm_70", "sm_75"])
def test_an_fp16_accumulator_would_be_seen(architecture):
    ptx = compile_ptx(HALF_ACCUMULATOR, architecture)
    cubin, _ = assemble(ptx, architecture)
    used = [i for i in code_of(cubin, architecture) if i.is_product]
    assert {i.opcode for i in used} == {OPCODES[architecture]}
    assert not any(i.adds_in_fp32 for i in used)


SPILLS = """
__global__ void __launch_bounds__(1024, 2) Kernel(float* x) {
  float sum[64];
  for (int i = 0; i < 64; ++i) sum[i] = x[i];
  for (int step = 0; step < 99; ++step) {
    for (int i = 0; i < 64; ++i) sum[i] += sum[(i * 7 + 1) % 64] * x[step];
  }
  for (int i = 0; i < 64; ++i) x[i] = sum[i];
}
"""


def test_spills_would_be_seen():
    _, log = assemble(compile_ptx(SPILLS, "sm_80"), "sm_80")
    assert spilled_bytes(log) > 0


# Instructions and what nvdisasm 13.5 calls them.
KNOWN = {
    "HMMA.16816.F32": (0x0000008EA07C723C, 0x040FE2000000187C),
    "HMMA.1688.F32": (0x0000006A5420723C, 0x001FE60000001048),
    "MOV-of-a-register": (0x0000000300027202, 0x000FE40000000F00),
    "MOV-of-a-constant": (0x000149F000747802, 0x000FE40000000F00),
    "IMAD.MOV-of-a-register": (0x000000FFFF007224, 0x000FCA00078E0A0B),
    "IMAD.MOV-of-a-constant": (0x00000A00FF017624, 0x000FE400078E00FF),
    "LDG.E.U16": (0x00000008161B0981, 0x0002A2000C1E1500),
    "LDG.E.128": (0x0000000008047381, 0x00012400001EED00),
    "LDGSTS.E": (0x00000000160E7FAE, 0x0003E20008161848),
    "LDGSTS.E.64": (0x00000000160E7FAE, 0x0003E2000A961A48),
    "LDGSTS.E.BYPASS.128": (0x00000000160E7FAE, 0x0003E80009941C48),
    "PRMT": (0x000054106261A816, 0x000FCA0000000061),
}
TRAITS = {
    "is_product": {"HMMA.16816.F32", "HMMA.1688.F32"},
    "is_move": {"MOV-of-a-register", "IMAD.MOV-of-a-register"},
    "serves_unaligned_operands": {"LDG.E.U16", "LDGSTS.E", "LDGSTS.E.64", "PRMT"},
}


@pytest.mark.parametrize(("trait", "having"), TRAITS.items(), ids=TRAITS)
def test_instructions_are_known(trait, having):
    known = {name: Instruction(*halves, 0, None) for name, halves in KNOWN.items()}
    assert {
        n for n, instruction in known.items() if getattr(instruction, trait)
    } == having


# Backward branches: the low half at index 100, and the index that it leads to.
BRANCHES = {
    "sm_80": (0xFFFFA99000007947, 100 + 1 - 0x5670 // 16),
    "sm_90": (0xFFFFFFAC00B48947, 100 + 1 - 0x5130 // 16),
}


@pytest.mark.parametrize("architecture", BRANCHES)
def test_branches_are_followed(architecture):
    low, target = BRANCHES[architecture]
    assert target_of(low, 100, architecture) == target


PLAIN, JUMP, UNPREDICATED = 0x223, 0x949, 7 << 12  # FFMA, and BRX to where a table says
# The instructions of loops: where a branch leads, or what else it is; and those that
# can run on aligned operands. `if 3` is a branch under a predicate.
LOOPS = {
    "what only others need": (
        ["if 6", "if 4", "narrow", "to 5", "narrow", "plain", "plain", "if 0"],
        [0, 6, 7],
    ),
    "one operand after the other": (
        ["if 2", "narrow", "plain", "if 5", "narrow", "if 0"],
        [0, 2, 3, 5],
    ),
    "a jump that leads anywhere": (["jump", "if 3", "narrow", "if 0"], [0, 1, 3]),
}


@pytest.mark.parametrize("name", LOOPS)
def test_what_runs_on_aligned_operands(name):
    codes, expected = LOOPS[name]
    loop = []
    for index, code in enumerate(codes):
        kind, _, target = code.partition(" ")
        low, high = {
            "if": (BRA, 0),
            "to": (BRA | UNPREDICATED, 0),
            "jump": (JUMP | UNPREDICATED, 0),
            "plain": (PLAIN | UNPREDICATED, 0),
            "narrow": KNOWN["LDGSTS.E"],
        }[kind]
        loop.append(Instruction(low, high, index, int(target) if target else None))
    assert [i.index for i in aligned_path(loop)] == expected
