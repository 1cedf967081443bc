"""mma.sync and wmma: the instructions of PTX that a warp executes on tensor cores."""

import numpy as np
from cuda_ptx.faults import check
from cuda_ptx.number_types import widen_bfloat16
from cuda_ptx.parser import Unsupported, vector
from cuda_ptx.tensor_cores import MMA_A, MMA_B, MMA_C, WARP


class Fragment:
    """The registers of a warp's lanes that hold a matrix."""

    def __init__(self, block, operand):
        self._registers = block.registers
        self._names = vector(operand)

    def reader(self, kind, element):
        """Reads [warps, lanes, elements] from registers of `kind`."""
        reads = [self._registers.source(name, kind) for name in self._names]

        def read(active, warps):
            values = np.stack([np.atleast_1d(r(active)) for r in reads], axis=-1)
            return values.view(element).reshape(warps, WARP, -1)

        return read

    def writer(self):
        """Writes [warps, lanes, registers]."""
        writes = [self._registers.target(name) for name in self._names]

        def write(active, values):
            values = np.ascontiguousarray(values.reshape(-1, len(writes)).T)
            for target, x in zip(writes, values, strict=True):
                target(active, x)

        return write


def gather(values, shape, places):
    """The matrices whose elements the lanes hold; those held twice have to agree."""
    rows, columns = places
    matrices = np.zeros((len(values), *shape), values.dtype)
    matrices[:, rows, columns] = values
    agree = (matrices[:, rows, columns] == values) | np.isnan(values)
    check(agree, "two lanes hold different numbers for one element")
    return matrices


def multiply_add(instruction, block):
    """mma.sync.m16n8k16 of FP16 or bfloat16 with FP32 sums."""
    *shape, sums, a_type, b_type, c_type = instruction.modifiers
    if (
        shape != ["sync", "aligned", "m16n8k16", "row", "col"]
        or sums != c_type
        or sums != "f32"
        or a_type != b_type
        or a_type not in ("f16", "bf16")
    ):
        raise Unsupported(instruction.text)
    d, a, b, c = (Fragment(block, operand) for operand in instruction.operands)
    bits = np.uint16 if a_type == "bf16" else np.float16
    read_a, read_b = a.reader("b32", bits), b.reader("b32", bits)
    read_c, write = c.reader("f32", np.float32), d.writer()

    def widen(values):
        wide = widen_bfloat16(values) if a_type == "bf16" else values
        return wide.astype(np.float64)

    def run(active):
        warps = block.whole_warps(active)
        product = block.tensor_cores.multiply_add(
            gather(widen(read_a(active, warps)), (16, 16), MMA_A),
            gather(widen(read_b(active, warps)), (16, 8), MMA_B),
            gather(read_c(active, warps), (16, 8), MMA_C),
        )
        write(active, product[(slice(None), *MMA_C)])

    return run


def wmma(instruction, block):
    """wmma.load, wmma.mma and wmma.store of m16n16k16, FP16 with FP32 sums."""
    what = instruction.modifiers[0]
    if what == "mma":
        return _wmma_multiply(instruction, block)
    *_, use, sync, aligned, layout, shape, space, kind = (None, *instruction.modifiers)
    known = {"load": (("a", "b"), "f16"), "store": (("d",), "f32")}
    if (
        what not in known
        or use not in known[what][0]
        or kind != known[what][1]
        or (sync, aligned, shape, space) != ("sync", "aligned", "m16n16k16", "shared")
        or layout not in ("row", "col")
    ):
        raise Unsupported(instruction.text)
    make = _wmma_load if what == "load" else _wmma_store
    return make(instruction, block, use, layout)


def _element_addresses(instruction, block, place, stride, layout, fragment, size):
    """Makes a function that returns addresses, [warps, lanes, elements]."""
    address = block.registers.address(place)
    stride = block.registers.source(stride, "u32")
    rows, columns = block.layouts.elements(fragment)
    major, minor = (rows, columns) if layout == "row" else (columns, rows)

    def addresses(active, warps):
        at = address(active).reshape(warps, WARP, 1)
        pitch = np.broadcast_to(stride(active), warps * WARP).astype(np.int64)
        pitch = pitch.reshape(warps, WARP, 1)
        agree = (at == at[:, :1]).all() and (pitch == pitch[:, :1]).all()
        check(bool(agree), "the lanes of a warp give different matrices")
        check(at % 32 == 0, "misaligned to 32 bytes")
        check(pitch * size % 16 == 0, "a stride that is no multiple of 16 bytes")
        return at + (major * pitch + minor) * size

    return addresses


def _access_each(block, active, addresses, access):
    """Calls access(address, thread) for every element of every lane at once."""
    threads = np.repeat(block.numbers(active), addresses.shape[-1])
    return access(addresses.ravel(), threads)


def _wmma_load(instruction, block, use, layout):
    registers, place, stride = instruction.operands
    # The layout of a fragment may depend on that of the matrix in memory.
    addresses = _element_addresses(
        instruction, block, place, stride, layout, f"{use}.{layout}", size=2
    )
    write = Fragment(block, registers).writer()

    def run(active):
        warps = block.whole_warps(active)
        halves = _access_each(
            block,
            active,
            addresses(active, warps),
            lambda at, who: block.memory["shared"].load(at, np.uint16, 1, who),
        )
        write(active, halves.reshape(warps, WARP, -1).view(np.uint32))

    return run


def _wmma_store(instruction, block, use, layout):
    place, registers, stride = instruction.operands
    addresses = _element_addresses(
        instruction, block, place, stride, layout, "c", size=4
    )
    read = Fragment(block, registers).reader("b32", np.uint32)

    def run(active):
        warps = block.whole_warps(active)
        values = read(active, warps).reshape(-1, 1)
        _access_each(
            block,
            active,
            addresses(active, warps),
            lambda at, who: block.memory["shared"].store(at, values, who),
        )

    return run


def _wmma_multiply(instruction, block):
    _, sync, aligned, a_layout, b_layout, shape, *types = instruction.modifiers
    if (sync, aligned, shape, types) != (
        "sync",
        "aligned",
        "m16n16k16",
        ["f32", "f32"],
    ):
        raise Unsupported(instruction.text)
    d, a, b, c = (Fragment(block, operand) for operand in instruction.operands)
    read_a, read_b = a.reader("b32", np.float16), b.reader("b32", np.float16)
    read_c, write = c.reader("f32", np.float32), d.writer()
    place_a = block.layouts.elements(f"a.{a_layout}")
    place_b = block.layouts.elements(f"b.{b_layout}")
    place_c = block.layouts.elements("c")

    def run(active):
        warps = block.whole_warps(active)
        product = block.tensor_cores.multiply_add(
            gather(read_a(active, warps).astype(np.float64), (16, 16), place_a),
            gather(read_b(active, warps).astype(np.float64), (16, 16), place_b),
            gather(read_c(active, warps), (16, 16), place_c),
        )
        write(active, product[(slice(None), *place_c)])

    return run


TABLE = {"mma": multiply_add, "wmma": wmma}
