"""Instructions that compute, against results known by hand or from exact arithmetic."""

from fractions import Fraction

import numpy as np
import pytest
from cuda_ptx import arithmetic
from cuda_ptx.global_memory import GlobalMemory
from cuda_ptx.machine import launch
from cuda_ptx.number_types import round_to_bfloat16
from cuda_ptx.parser import Unsupported, parse, parse_instruction

NAN, INF = np.nan, np.inf
F32, F64, F16 = np.float32, np.float64, np.float16
S16, S32, S64 = np.int16, np.int32, np.int64
U8, U16, U32, U64 = np.uint8, np.uint16, np.uint32, np.uint64
TRUE, FALSE = [True], [False]
FIRST, SECOND = [True, False], [False, True]


def compute(opcode, *operands):
    """The result of an instruction for arrays of operands."""
    names = ", ".join("dabcef"[: len(operands) + 1])
    operation = arithmetic.operation(parse_instruction(f"{opcode} {names}"))
    with np.errstate(all="ignore"):
        return operation.function(*operands)


# The opcode, the operands, each as (type, numbers), and the result.
CASES = {
    "add-wraps": ("add.s32", (S32, [2**31 - 1]), (S32, [1]), (S32, [-(2**31)])),
    "add-16": ("add.s16", (S16, [-3]), (S16, [1]), (S16, [-2])),
    "sub-64": ("sub.s64", (S64, [1]), (S64, [2]), (S64, [-1])),
    "add-rounds": ("add.rn.f32", (F32, [1]), (F32, [2**-24]), (F32, [1])),
    "sub-f32": ("sub.f32", (F32, [1]), (F32, [0.25]), (F32, [0.75])),
    "add-f64": ("add.rn.f64", (F64, [1]), (F64, [2**-52]), (F64, [1 + 2**-52])),
    "mul-lo": ("mul.lo.s32", (S32, [2**16]), (S32, [2**16 + 3]), (S32, [3 * 2**16])),
    "mul-wide-s": ("mul.wide.s32", (S32, [-(2**31)]), (S32, [2]), (S64, [-(2**32)])),
    "mul-wide-u": ("mul.wide.u32", (U32, [2**31]), (U32, [2]), (U64, [2**32])),
    "mul-f32": ("mul.rn.f32", (F32, [3]), (F32, [0.5]), (F32, [1.5])),
    "mad": ("mad.lo.s32", (S32, [3]), (S32, [-4]), (S32, [5]), (S32, [-7])),
    "mad-wide": (
        "mad.wide.u32", (U32, [2**31]), (U32, [4]), (U64, [1]), (U64, [2**33 + 1])
    ),
    "div-to-zero": ("div.s32", (S32, [-7, 7]), (S32, [2, -2]), (S32, [-3, -3])),
    "div-u": ("div.u64", (U64, [2**63]), (U64, [3]), (U64, [2**63 // 3])),
    "rem-of-sign": ("rem.s32", (S32, [-7]), (S32, [2]), (S32, [-1])),
    "div-f32": ("div.rn.f32", (F32, [1, 1]), (F32, [3, 0]), (F32, [1 / 3, INF])),
    "sqrt": ("sqrt.rn.f32", (F32, [2, -1]), (F32, [2**0.5, NAN])),
    "rcp": ("rcp.rn.f32", (F32, [4, 0]), (F32, [0.25, INF])),
    "rcp-flushes": ("rcp.approx.ftz.f32", (F32, [2**-127, 2**127]), (F32, [INF, 0])),
    "ex2": ("ex2.approx.ftz.f32", (F32, [3, -127]), (F32, [8, 0])),
    "neg": ("neg.f32", (F32, [0.0, 1]), (F32, [-0.0, -1])),
    "neg-s64": ("neg.s64", (S64, [5]), (S64, [-5])),
    "abs": ("abs.f32", (F32, [-2, -INF]), (F32, [2, INF])),
    "min-of-nan": ("min.f32", (F32, [NAN, 1]), (F32, [2, 3]), (F32, [2, 1])),
    "max-of-nan": ("max.f32", (F32, [NAN, NAN]), (F32, [2, NAN]), (F32, [2, NAN])),
    "max-s32": ("max.s32", (S32, [-1]), (S32, [1]), (S32, [1])),
    "max-u32": ("max.u32", (U32, [2**32 - 1]), (U32, [1]), (U32, [2**32 - 1])),
    "and": ("and.b32", (U32, [0b1100]), (U32, [0b1010]), (U32, [0b1000])),
    "or": ("or.b64", (U64, [2**63]), (U64, [1]), (U64, [2**63 + 1])),
    "xor": ("xor.b32", (U32, [0b1100]), (U32, [0b1010]), (U32, [0b0110])),
    "and-pred": ("and.pred", (bool, TRUE), (bool, FALSE), (bool, FALSE)),
    "not-pred": ("not.pred", (bool, TRUE), (bool, FALSE)),
    "not": ("not.b32", (U32, [1]), (U32, [2**32 - 2])),
    "lop3-select": (
        "lop3.b32", (U32, [0b1100]), (U32, [0b1010]), (U32, [0b0110]),
        (U32, [0xCA]), (U32, [0b1010]),
    ),
    "shl": ("shl.b32", (U32, [3, 3]), (U32, [31, 32]), (U32, [2**31, 0])),
    "shl-64": ("shl.b64", (U64, [1]), (U32, [40]), (U64, [2**40])),
    "shr-u": ("shr.u32", (U32, [2**31, 1]), (U32, [31, 40]), (U32, [1, 0])),
    "shr-s": ("shr.s32", (S32, [-8, -8]), (U32, [2, 99]), (S32, [-2, -1])),
    "selp": ("selp.f32", (F32, [1]), (F32, [2]), (bool, FIRST), (F32, [1, 2])),
    "eq-of-nan": ("setp.eq.f32", (F32, [NAN, 1]), (F32, [NAN, 1]), (bool, SECOND)),
    "ne-of-nan": ("setp.ne.f32", (F32, [NAN, 1]), (F32, [1, 2]), (bool, SECOND)),
    "neu-of-nan": ("setp.neu.f32", (F32, [NAN, 1]), (F32, [1, 1]), (bool, FIRST)),
    "le-of-nan": ("setp.le.f32", (F32, [NAN, 1]), (F32, [1, 1]), (bool, SECOND)),
    "gtu-of-nan": ("setp.gtu.f32", (F32, [NAN, 1]), (F32, [1, 1]), (bool, FIRST)),
    "num": ("setp.num.f32", (F32, [NAN, 1]), (F32, [1, 1]), (bool, SECOND)),
    "lt-s": ("setp.lt.s32", (S32, [-1]), (S32, [1]), (bool, TRUE)),
    "lt-u": ("setp.lt.u32", (U32, [2**32 - 1]), (U32, [1]), (bool, FALSE)),
    "cvt-sign": ("cvt.s64.s32", (S32, [-1]), (S64, [-1])),
    "cvt-zero": ("cvt.u64.u32", (U32, [2**32 - 1]), (U64, [2**32 - 1])),
    "cvt-cut": ("cvt.u32.u64", (U64, [2**32 + 5]), (U32, [5])),
    "cvt-f16": (
        "cvt.rn.f16.f32", (F32, [1 + 2**-11, 65520, 2**-25]), (F16, [1, INF, 0])
    ),
    "cvt-from-f16": ("cvt.f32.f16", (F16, [2**-24, INF]), (F32, [2**-24, INF])),
    "cvt-bf16": ("cvt.rn.bf16.f32", (F32, [1.0, NAN]), (U16, [0x3F80, 0x7FFF])),
    "cvt-from-bf16": ("cvt.f32.bf16", (U16, [0x3F80, 0xFF80]), (F32, [1, -INF])),
    "cvt-rzi": ("cvt.rzi.f32.f32", (F32, [-1.5]), (F32, [-1])),
    "cvt-rni": ("cvt.rni.s32.f32", (F32, [2.5, NAN, 1e10]), (S32, [2, 0, 2**31 - 1])),
    "cvt-sat": ("cvt.sat.f32.f32", (F32, [2, -1, NAN, 0.5]), (F32, [1, 0, 0, 0.5])),
    "cvt-int": ("cvt.rn.f32.s32", (S32, [2**24 + 1]), (F32, [2**24])),
    "cvt-f64": ("cvt.rn.f32.f64", (F64, [1 + 2**-30]), (F32, [1])),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_known_by_hand(case):
    opcode, *operands, (dtype, expected) = case
    result = compute(opcode, *(np.array(x, kind) for kind, x in operands))
    expected = np.array(expected, dtype)
    np.testing.assert_array_equal(result, expected, strict=True)
    if dtype is F32:  # 0 and -0 are equal
        np.testing.assert_array_equal(
            np.copysign(1, result, where=result == 0, out=np.ones_like(result)),
            np.copysign(1, expected, where=result == 0, out=np.ones_like(result)),
        )


@pytest.mark.parametrize("rounding", ["rn", "rm"])
def test_a_fused_multiply_add_rounds_once(rounding):
    random = np.random.default_rng(0)
    a, b = (random.standard_normal(2000).astype(F32) for _ in range(2))
    # Sums close to the middle between two FP32 numbers, where a second rounding shows.
    c = (random.choice([1, -1], 2000) * 2.0 ** random.integers(-30, 30, 2000)).astype(
        F32
    )
    result = compute(f"fma.{rounding}.f32", a, b, c)
    assert result.dtype == F32
    for x, y, z, found in zip(a, b, c, result, strict=True):
        exact = Fraction(float(x)) * Fraction(float(y)) + Fraction(float(z))
        error = exact - Fraction(float(found))
        up, down = (
            abs(exact - Fraction(float(np.nextafter(found, F32(end)))))
            for end in (INF, -INF)
        )
        if rounding == "rn":
            assert abs(error) <= min(up, down)
        else:
            assert 0 <= error < up + error


def test_bfloat16_rounds_to_nearest_even():
    x = np.array([1 + 2**-8, 1 + 3 * 2**-8, 3.4e38, -1.0], F32)
    bits = round_to_bfloat16(x)
    np.testing.assert_array_equal(bits, np.array([0x3F80, 0x3F82, 0x7F80, 0xBF80], U16))


UNKNOWN = {
    "name": "bfind.u32 d, a",
    "modifier": "add.sat.s32 d, a, b",
    "rounding": "add.rz.f32 d, a, b",
    "comparison": "setp.eq.and.s32 d, a, b, c",
    "no-rounding": "cvt.f16.f32 d, a",
    "high-part": "mul.hi.s32 d, a, b",
    "type": "add.f16x2 d, a, b",
    "operands": "add.s32 d, a",
}


@pytest.mark.parametrize("text", UNKNOWN.values(), ids=UNKNOWN)
def test_what_is_not_known_is_an_error(text):
    with pytest.raises(Unsupported):
        arithmetic.operation(parse_instruction(text))


UNKNOWN_IN_A_KERNEL = {
    "call": "call.uni f, (%r0);",
    "space": "ld.const.u32 %r0, [%d0];",
    "width": "ld.global.v8.u32 {%r0, %r1}, [%d0];",
    "barrier": "bar.sync 1;",
    "lanes": "bar.warp.sync 15;",
    "shuffle": "shfl.sync.down.b32 %r0, %r1, 1, 31, -1;",
    "matrices": "ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%r0, %r1}, [%r2];",
    "product": "mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%r0}, {}, {}, {};",
    "operand": "mov.u32 %r0, %clock;",
    "directive": ".local .align 4 .b8 stack[16];",
    "variable": "mov.u32 %r0, %r99;",
}


@pytest.mark.parametrize("body", UNKNOWN_IN_A_KERNEL.values(), ids=UNKNOWN_IN_A_KERNEL)
def test_a_kernel_with_what_is_not_known_is_not_executed(body):
    text = f".entry k() {{ .reg .b32 %r<4>; .reg .b64 %d<2>; {body} ret; }}"
    with pytest.raises(Unsupported):
        launch(parse(text)["k"], (1, 1, 1), (32, 1, 1), b"", GlobalMemory())
