"""Counts in the machine code that ptxas makes of a kernel, without a disassembler.

An instruction of sm_70 and up has 128 bits: the opcode is in the low 12, of which 3 say
what kind of operands it has. The numbers were read off the output of nvdisasm 13.5.
"""

import itertools
import re
import struct
from dataclasses import dataclass

BAR = 0xB1D
BRA, CONTROL = 0x947, {0x941, 0x947, 0x949, 0x94D, 0x958}  # BSYNC, BRA, BRX, EXIT, BRXU
HMMA_884, HMMA = 0x236, 0x23C
LDG, LDGSTS = {0x381, 0x981}, 0xFAE
PRMT = {0x216, 0x416, 0x816}
MOV, IMAD = {0x202, 0xC02}, 0x224
ZERO_REGISTER, ALWAYS = 255, 7
BITS_128 = 6  # of a load, as its field says


@dataclass(frozen=True)
class Instruction:
    """The two halves of an instruction, its index, and of BRA the one it leads to."""

    low: int
    high: int
    index: int
    target: int | None

    @property
    def opcode(self):
        """With the kind of operands."""
        return self.low & 0xFFF

    @property
    def is_always(self):
        """Whether no predicate can turn it off."""
        return self.low >> 12 & 0xF == ALWAYS

    @property
    def is_product(self):
        """Whether it is HMMA."""
        return self.opcode in (HMMA_884, HMMA)

    @property
    def adds_in_fp32(self):
        """Of HMMA: whether the accumulator is FP32."""
        return bool(self.high >> 12 & 1)

    @property
    def is_move(self):
        """Whether it copies a register: MOV, or IMAD of zero."""
        zeros = self.low >> 24 & 0xFF, self.low >> 32 & 0xFF
        return self.opcode in MOV or (
            self.opcode == IMAD and zeros == (ZERO_REGISTER, ZERO_REGISTER)
        )

    @property
    def serves_unaligned_operands(self):
        """Whether it loads less than 16 bytes, or packs what was loaded so."""
        width = self.high >> 9 & 7
        loads = self.opcode in LDG or self.opcode == LDGSTS
        return (loads and width != BITS_128) or self.opcode in PRMT


@dataclass(frozen=True)
class Counts:
    """Of a kernel, and of a step of its main loop on aligned data."""

    registers: int
    spilled_bytes: int
    products: int  # HMMA of a step
    moves: int  # copies of registers among them
    barriers: int  # of a step
    instructions: int  # of a step


def code_of(cubin, architecture):
    """The instructions of the one kernel of a 64-bit ELF file."""
    (table,) = struct.unpack_from("<Q", cubin, 0x28)
    size, count, names = struct.unpack_from("<HHH", cubin, 0x3A)
    headers = [
        struct.unpack_from("<IIQQQQ", cubin, table + size * i) for i in range(count)
    ]
    (code,) = (
        cubin[offset : offset + length]
        for name, _, _, _, offset, length in headers
        if cubin[headers[names][4] + name :].startswith(b".text.")
    )
    return [
        Instruction(low, high, index, target_of(low, index, architecture))
        for index, (low, high) in enumerate(struct.iter_unpack("<QQ", code))
    ]


def target_of(low, index, architecture):
    """The index to which BRA leads, or None of another instruction."""
    if low & 0xFFF != BRA:
        return None
    words = low >> 34  # of 4 bytes
    words -= (words >> 29) << 30  # the sign
    if architecture == "sm_90":
        words = words << 8 | low >> 16 & 0xFF
    return index + 1 + words // 4


def main_loop(code):
    """The instructions from the target of a branch back to it, with the most HMMA."""
    loops = [
        code[branch.target : branch.index + 1]
        for branch in code
        if branch.target is not None and branch.target <= branch.index
    ]
    return max(loops, key=lambda loop: (_products(loop), -len(loop)))


def aligned_path(loop):
    """The instructions of the loop that can run where all operands are aligned.

    They are in blocks on a way from its first to its last instruction that meets no
    block for unaligned operands.
    """
    first = loop[0].index
    targets = {i.target - first for i in loop if i.target is not None}
    after = {i.index + 1 - first for i in loop if i.opcode in CONTROL}
    cuts = sorted({0, len(loop)} | {at for at in targets | after if 0 < at < len(loop)})
    blocks = {a: loop[a:b] for a, b in itertools.pairwise(cuts)}
    starts = [a for a in blocks if not _is_unaligned(blocks[a])]
    to = {a: _next_blocks(blocks[a], first, starts) for a in starts}
    back = {b: [a for a in starts if b in to[a]] for b in starts}
    on_a_way = _reached(to, starts[0]) & _reached(back, starts[-1])
    return [i for a in sorted(on_a_way) for i in blocks[a]]


def _is_unaligned(block):
    return any(i.serves_unaligned_operands for i in block)


def _next_blocks(block, first, starts):
    """The starts of the blocks that may follow; all later ones, if it is not known."""
    last = block[-1]
    after = last.index + 1 - first
    if last.opcode not in CONTROL:
        return {after} & set(starts)
    if last.target is None:
        return {a for a in starts if a >= after}
    following = (
        {last.target - first} if last.is_always else {last.target - first, after}
    )
    return following & set(starts)


def _reached(edges, start):
    """All that edges lead to, with the start."""
    found, waiting = set(), [start]
    while waiting:
        at = waiting.pop()
        if at not in found:
            found.add(at)
            waiting.extend(edges[at])
    return found


def count(cubin, log, architecture):
    """The counts of the one kernel; `log` is what `ptxas --verbose` says."""
    (registers,) = re.findall(r"Used (\d+) registers", log)
    loop = main_loop(code_of(cubin, architecture))
    step = aligned_path(loop)
    products = [at for at, instruction in enumerate(step) if instruction.is_product]
    return Counts(
        registers=int(registers),
        spilled_bytes=spilled_bytes(log),
        products=len(products),
        moves=sum(i.is_move for i in step[products[0] : products[-1]]),
        barriers=sum(i.opcode == BAR for i in step),
        instructions=len(step),
    )


def registers_by_kernel(log):
    """The registers of a thread of each kernel, as `ptxas --verbose` says."""
    found = re.findall(r"entry function '(\w+)'.*?Used (\d+) registers", log, re.DOTALL)
    return {name: int(registers) for name, registers in found}


def spilled_bytes(log):
    """The bytes of registers that kernels store to memory and load again."""
    return sum(map(int, re.findall(r"(\d+) bytes spill (?:stores|loads)", log)))


def _products(code):
    return sum(instruction.is_product for instruction in code)
