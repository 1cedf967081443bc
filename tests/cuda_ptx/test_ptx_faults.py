"""What PTX leaves undefined is noticed, and what it defines is not taken for that."""

import numpy as np
import pytest
from cuda_ptx.faults import Fault
from cuda_ptx.global_memory import GlobalMemory
from cuda_ptx.machine import launch
from cuda_ptx.parser import parse

# Each thread has its number in %r0 and 4 times it in %r1. %d0 and %d2 are arrays of a
# number for each of 64 threads, %d1 and %d3 the places of its own ones there.
KERNEL = """
.visible .entry kernel(.param .u64 from, .param .u64 to) {{
  .reg .pred %p<4>; .reg .b32 %r<16>; .reg .b64 %d<8>; .reg .b16 %h<4>;
  .shared .align 16 .b8 shared[1024];
  mov.u32 %r0, %tid.x;
  mul.lo.u32 %r1, %r0, 4;
  cvt.u64.u32 %d4, %r1;
  ld.param.u64 %d0, [from];
  add.u64 %d1, %d0, %d4;
  ld.param.u64 %d2, [to];
  add.u64 %d3, %d2, %d4;
  setp.lt.u32 %p0, %r0, 32;
  setp.eq.u32 %p1, %r0, 0;
  xor.b32 %r2, %r1, 4;
  xor.b32 %r3, %r1, 128;
  {body}
  ret;
}}
"""
THREADS = 64
STAGED = "st.shared.u32 [%r1], %r0;"
COPY = "cp.async.ca.shared.global [%r1], [%d1], 4;"
COMMIT = "cp.async.commit_group;"
ARRIVED = f"{COPY} {COMMIT} cp.async.wait_group 0;"
MATRICES = "ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%r8, %r9, %r10, %r11}, [%r12];"


def execute(body):
    """Runs the kernel; returns the second array."""
    memory = GlobalMemory(size=1 << 16)
    arrays = [
        memory.put(np.arange(THREADS, dtype=np.uint32) + 100),
        memory.put(np.zeros(THREADS, np.uint32)),
    ]
    kernel = parse(KERNEL.format(body=body))["kernel"]
    launch(kernel, (1, 1, 1), (THREADS, 1, 1), np.uint64(arrays).tobytes(), memory)
    return memory.get(arrays[1], np.uint32, THREADS)


NUMBERS = np.arange(THREADS, dtype=np.uint32)
DEFINED = {
    "own-number": (
        "ld.global.u32 %r4, [%d1]; st.global.u32 [%d3], %r4;",
        NUMBERS + 100,
    ),
    "two-branches-meet": (
        "mov.u32 %r4, 1; @%p0 bra LOW; mov.u32 %r4, 2; LOW: add.u32 %r4, %r4, %r0;"
        " st.global.u32 [%d3], %r4;",
        NUMBERS + 2 - (NUMBERS < 32),
    ),
    "loop": (
        "mov.u32 %r4, 0; AGAIN: add.u32 %r4, %r4, 1; setp.lt.u32 %p2, %r4, %r0;"
        " @%p2 bra AGAIN; st.global.u32 [%d3], %r4;",
        np.maximum(NUMBERS, 1),
    ),
    "exchange-in-a-warp": (
        f"{STAGED} bar.warp.sync -1; ld.shared.u32 %r4, [%r2];"
        " st.global.u32 [%d3], %r4;",
        NUMBERS ^ 1,
    ),
    "exchange-in-a-block": (
        f"{STAGED} bar.sync 0; ld.shared.u32 %r4, [%r3]; st.global.u32 [%d3], %r4;",
        NUMBERS ^ 32,
    ),
    "all-read-one-number": (
        f"{STAGED} bar.sync 0; ld.shared.u32 %r4, [shared+20]; bar.sync 0; {STAGED}"
        " st.global.u32 [%d3], %r4;",
        NUMBERS * 0 + 5,
    ),
    "copy": (
        f"{ARRIVED} bar.sync 0; ld.shared.u32 %r4, [%r3]; st.global.u32 [%d3], %r4;",
        (NUMBERS ^ 32) + 100,
    ),
    "copy-of-a-part": (
        "setp.ge.u32 %p2, %r0, 32; selp.u32 %r4, 4, 0, %p2;"
        f" cp.async.ca.shared.global [%r1], [%d1], 4, %r4; {COMMIT}"
        " cp.async.wait_group 0; ld.shared.u32 %r4, [%r1]; st.global.u32 [%d3], %r4;",
        np.where(NUMBERS < 32, 0, NUMBERS + 100),
    ),
    "older-copies-arrive-first": (
        f"{COPY} {COMMIT} {COMMIT} cp.async.wait_group 1; ld.shared.u32 %r4, [%r1];"
        " st.global.u32 [%d3], %r4;",
        NUMBERS + 100,
    ),
    "maximum": (
        "atom.global.max.u32 %r4, [%d2], %r0;",
        np.where(NUMBERS == 0, 63, 0),
    ),
    "number-of-another-lane": (
        "mov.b32 %r5, 31; mov.b32 %r6, -1;"
        " shfl.sync.bfly.b32 %r4|%p2, %r0, 4, %r5, %r6; @%p2 st.global.u32 [%d3], %r4;",
        NUMBERS ^ 4,
    ),
    "transposed-matrices": (
        f"{STAGED} bar.sync 0; and.b32 %r12, %r0, 7; shl.b32 %r12, %r12, 4;"
        f" {MATRICES.replace('x4', 'x4.trans')} and.b32 %r4, %r8, 65535;"
        " st.global.u32 [%d3], %r4;",
        # The numbers are pairs of halves, (i, 0): column 2j of row r is 4 r + j, and
        # odd columns are 0. A lane has rows 2 (lane % 4) of column lane / 4.
        np.where(NUMBERS % 32 // 4 % 2, 0, NUMBERS % 4 * 8 + NUMBERS % 32 // 8),
    ),
}


@pytest.mark.parametrize(("body", "expected"), DEFINED.values(), ids=DEFINED)
def test_defined(body, expected):
    np.testing.assert_array_equal(execute(body), expected)


UNDEFINED = {
    "misaligned-global": ("ld.global.u32 %r4, [%d1+2];", "misaligned to 4 bytes"),
    "misaligned-vector": ("ld.global.v2.u32 {%r4, %r5}, [%d0+4];", "misaligned to 8"),
    "misaligned-shared": ("st.shared.u32 [%r1+2], %r0;", "misaligned to 4 bytes"),
    "before-an-array": ("ld.global.u32 %r4, [%d0+-4];", "outside of every array"),
    "behind-an-array": ("ld.global.u32 %r4, [%d1+4];", "outside of every array"),
    "behind-shared-memory": (
        "st.shared.u32 [%r1+1020], %r0;",
        "outside of shared memory",
    ),
    "behind-the-parameters": ("ld.param.u64 %d5, [to+8];", "outside of the parameters"),
    "null": ("mov.u64 %d5, 0; ld.global.u32 %r4, [%d5];", "outside of every array"),
    "unwritten-register": ("ld.global.u32 %r4, [%d7];", "outside|misaligned"),
    "unwritten-shared": ("ld.shared.u32 %r4, [%r1];", "never written"),
    "two-write-one-number": (
        "st.global.u32 [%d2], %r0;",
        "two threads write one number",
    ),
    "writes-after-another": (
        "st.global.u32 [%d3], %r0; xor.b64 %d5, %d3, 4; st.global.u32 [%d5], %r0;",
        "two threads write one number",
    ),
    "reads-what-another-writes": (
        "st.global.u32 [%d3], %r0; ld.global.u32 %r4, [%d2];",
        "reads what another thread writes",
    ),
    "race-in-a-warp": (f"{STAGED} ld.shared.u32 %r4, [%r2];", "race: reads"),
    "race-in-a-block": (
        f"{STAGED} bar.warp.sync -1; ld.shared.u32 %r4, [%r3];",
        "race: reads",
    ),
    "race-of-writes": (f"{STAGED} st.shared.u32 [%r2], %r0;", "race: overwrites"),
    "race-at-once": ("st.shared.u32 [shared], %r0;", "race: two threads write at once"),
    "overwrites-what-is-read": (
        f"{STAGED} bar.sync 0; ld.shared.u32 %r4, [%r3]; bar.warp.sync -1; {STAGED}",
        "race: overwrites what another thread reads",
    ),
    "overwrites-what-all-read": (
        f"{STAGED} bar.sync 0; ld.shared.u32 %r4, [shared]; @%p1 {STAGED}",
        "race: overwrites what another thread reads",
    ),
    "copy-that-was-not-awaited": (
        f"{COPY} {COMMIT} ld.shared.u32 %r4, [%r1];",
        "cp.async may still write",
    ),
    "copy-of-a-later-group": (
        f"{COPY} {COMMIT} cp.async.wait_group 1; ld.shared.u32 %r4, [%r1];",
        "cp.async may still write",
    ),
    "copy-over-what-is-read": (
        f"{STAGED} bar.sync 0; ld.shared.u32 %r4, [%r3]; {ARRIVED}",
        "race: overwrites what another thread reads",
    ),
    "copy-of-another-thread": (f"{ARRIVED} ld.shared.u32 %r4, [%r2];", "race: reads"),
    "copy-without-an-end": (f"{COPY} {COMMIT}", "never waited for"),
    "copy-without-a-group": (f"{COPY} cp.async.wait_group 0;", "never waited for"),
    "copy-too-long": (
        "mov.u32 %r4, 8; cp.async.ca.shared.global [%r1], [%d1], 4, %r4;",
        "more than 4 bytes",
    ),
    "copy-misaligned": (
        "cp.async.cg.shared.global [%r1], [%d1], 16;",
        "misaligned to 16 bytes",
    ),
    "copy-from-outside": (
        "cp.async.ca.shared.global [%r1], [%d1+4], 4;",
        "outside of every array",
    ),
    "barrier-of-some": ("@%p0 bar.sync 0;", "exited"),
    "barrier-after-an-exit": ("@%p0 ret; bar.sync 0;", "exited"),
    "two-barriers": (
        "@%p0 bra A; bar.sync 0; bra B; A: bar.sync 0; B: add.u32 %r4, %r0, 0;",
        "different barriers",
    ),
    "half-a-warp": (
        f"setp.lt.u32 %p2, %r0, 16; {STAGED} bar.sync 0; mov.u32 %r12, 0;"
        f" @%p2 {MATRICES}",
        "not all lanes",
    ),
    "number-of-a-lane-that-is-elsewhere": (
        "setp.lt.u32 %p2, %r0, 16; @%p2 shfl.sync.bfly.b32 %r4, %r0, 1, 31, -1;",
        "not all lanes",
    ),
    "shuffle-of-lanes-that-are-not-named": (
        "shfl.sync.bfly.b32 %r4, %r0, 1, 31, 255;",
        "not all lanes of a warp are named",
    ),
    "half-a-warp-at-a-barrier": (
        "setp.lt.u32 %p2, %r0, 16; @%p2 bra A; bar.warp.sync -1;"
        " A: add.u32 %r4, %r0, 0;",
        "not all lanes",
    ),
}


@pytest.mark.parametrize(("body", "message"), UNDEFINED.values(), ids=UNDEFINED)
def test_undefined(body, message):
    with pytest.raises(Fault, match=message):
        execute(body)
