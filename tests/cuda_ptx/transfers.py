"""The instructions of PTX that move data: between registers, and to and from memory.

Each entry of the table makes, from an instruction and the block that executes it, a
function of the active threads.
"""

import numpy as np
from cuda_ptx.faults import check
from cuda_ptx.number_types import array_type, is_type, size_of, unsigned_of
from cuda_ptx.parser import Unsupported, vector
from cuda_ptx.tensor_cores import WARP

# What changes only how a GPU caches: st.wb is the default.
HINTS = {"volatile", "nc", "wb", "relaxed", "weak", "gpu", "ca", "cg"}
WIDTHS = {"v2": 2, "v4": 4}


def move(instruction, block):
    """mov, also from `{a, b}`, low bits first, or to it."""
    (kind,) = instruction.modifiers
    to, source = instruction.operands
    if source.startswith("{"):
        return _pack(block, kind, block.registers.target(to), vector(source))
    read = block.registers.source(source, kind)
    if to.startswith("{"):
        return _unpack(
            block, kind, [block.registers.target(t) for t in vector(to)], read
        )
    write = block.registers.target(to)
    return lambda active: write(active, read(active))


def _pack(block, kind, write, names):
    bits = 8 * size_of(kind) // len(names)
    parts = [block.registers.source(name, f"b{bits}") for name in names]
    dtype = array_type(f"b{8 * size_of(kind)}")

    def run(active):
        packed = sum(
            part(active).astype(dtype) << dtype(bits * i)
            for i, part in enumerate(parts)
        )
        write(active, packed)

    return run


def _unpack(block, kind, writes, read):
    bits = 8 * size_of(kind) // len(writes)
    dtype = array_type(f"b{bits}")

    def run(active):
        whole = read(active)
        for i, write in enumerate(writes):
            write(active, (whole >> whole.dtype.type(bits * i)).astype(dtype))

    return run


def convert_address(instruction, block):
    """cvta to or from generic addresses, which those of global memory are."""
    if "global" not in instruction.modifiers:
        raise Unsupported(instruction.text)
    to, source = instruction.operands
    read, write = block.registers.source(source, "u64"), block.registers.target(to)
    return lambda active: write(active, read(active))


def _access(instruction, *known):
    """The space, type and count of a load or store."""
    modifiers = [m for m in instruction.modifiers if m not in HINTS]
    (kind,) = (m for m in modifiers if is_type(m))
    count = next((WIDTHS[m] for m in modifiers if m in WIDTHS), 1)
    (space,) = (m for m in modifiers if not is_type(m) and m not in WIDTHS)
    if space not in known:
        raise Unsupported(instruction.text)
    return space, array_type(kind), count


def load(instruction, block):
    """ld of one to four neighbouring numbers."""
    space, dtype, count = _access(instruction, "global", "shared", "param")
    targets, place = instruction.operands
    writes = [block.registers.target(name) for name in vector(targets)]
    if len(writes) != count:
        raise Unsupported(instruction.text)
    address = block.registers.address(place)

    def run(active):
        values = block.memory[space].load(
            address(active), dtype, count, block.numbers(active)
        )
        for i, write in enumerate(writes):
            write(active, values[:, i])

    return run


def store(instruction, block):
    """st of one to four neighbouring numbers."""
    space, dtype, count = _access(instruction, "global", "shared")
    place, sources = instruction.operands
    kind = f"b{8 * np.dtype(dtype).itemsize}"
    reads = [block.registers.source(name, kind) for name in vector(sources)]
    if len(reads) != count:
        raise Unsupported(instruction.text)
    address = block.registers.address(place)

    def run(active):
        at = address(active)
        values = np.empty((len(at), count), unsigned_of(dtype))
        for i, read in enumerate(reads):
            values[:, i] = read(active)
        block.memory[space].store(at, values, block.numbers(active))

    return run


def atomic_maximum(instruction, block):
    """atom.global.max and red.global.max."""
    opcode = [m for m in instruction.modifiers if m not in HINTS]
    if opcode not in (["global", "max", "u32"], ["global", "max", "s32"]):
        raise Unsupported(instruction.text)
    *to, place, source = instruction.operands
    address = block.registers.address(place)
    read = block.registers.source(source, opcode[-1])
    write = block.registers.target(to[0] if to else "_")

    def run(active):
        at = address(active)
        values = np.broadcast_to(read(active), at.shape)
        write(active, block.memory["global"].maximum(at, values))

    return run


def copy_async(instruction, block):
    """cp.async of 4, 8 or 16 bytes, commit_group and wait_group."""
    if instruction.modifiers == ("async", "commit_group"):
        return lambda active: block.copies.commit(block.numbers(active))
    if instruction.modifiers == ("async", "wait_group"):
        pending = int(instruction.operands[0])
        return lambda active: block.copies.wait(block.numbers(active), pending)
    _, cache, *spaces = instruction.modifiers
    if cache not in ("ca", "cg") or spaces != ["shared", "global"]:
        raise Unsupported(instruction.text)
    to, source, size, *valid = instruction.operands
    size = int(size)
    if size not in ((16,) if cache == "cg" else (4, 8, 16)):
        raise Unsupported(instruction.text)
    to, source = block.registers.address(to), block.registers.address(source)
    valid = block.registers.source(valid[0] if valid else str(size), "u32")

    def run(active):
        at = to(active)
        count = np.broadcast_to(valid(active), at.shape)
        check(count <= size, f"copies more than {size} bytes")
        block.copies.issue(block.numbers(active), at, source(active), size, count)

    return run


def load_matrices(instruction, block):
    """ldmatrix: lane i has the address of row i % 8 of matrix i / 8."""
    modifiers = [m for m in instruction.modifiers if m != "trans"]
    if modifiers != ["sync", "aligned", "m8n8", "x4", "shared", "b16"]:
        raise Unsupported(instruction.text)
    transposes = "trans" in instruction.modifiers
    targets, place = instruction.operands
    writes = [block.registers.target(name) for name in vector(targets)]
    address = block.registers.address(place)

    def run(active):
        warps = block.whole_warps(active)
        rows = block.memory["shared"].load(
            address(active), np.uint16, 8, block.numbers(active)
        )
        matrices = rows.reshape(warps, 4, 8, 8)
        matrices = matrices.swapaxes(2, 3) if transposes else matrices
        pairs = np.ascontiguousarray(matrices).view(np.uint32).reshape(warps, 4, WARP)
        for i, write in enumerate(writes):
            write(active, pairs[:, i].ravel())

    return run


def shuffle(instruction, block):
    """shfl.sync.bfly of whole warps: a lane gets the number of its lane ^ distance."""
    if instruction.modifiers != ("sync", "bfly", "b32"):
        raise Unsupported(instruction.text)
    to, *sources = instruction.operands
    to, _, valid = to.partition("|")
    reads = [block.registers.source(source, "u32") for source in sources]
    write, write_valid = (block.registers.target(t) for t in (to, valid or "_"))

    def run(active):
        warps = block.whole_warps(active)
        values, distance, clamp, members = (
            np.broadcast_to(read(active), warps * WARP).reshape(warps, WARP)
            for read in reads
        )
        check(members == 0xFFFFFFFF, "not all lanes of a warp are named")
        check((clamp == WARP - 1) & (distance < WARP), "beyond the lanes of a warp")
        partners = np.arange(WARP) ^ distance.astype(np.int64)
        write(active, np.take_along_axis(values, partners, axis=1).ravel())
        write_valid(active, np.ones(warps * WARP, bool))

    return run


def warp_barrier(instruction, block):
    """bar.warp.sync of all lanes."""
    if instruction.operands[0] not in ("-1", "0xffffffff", "4294967295"):
        raise Unsupported(instruction.text)

    def run(active):
        block.whole_warps(active)
        block.clock.pass_warp_barrier(np.unique(block.numbers(active) // WARP))

    return run


TABLE = {
    "atom": atomic_maximum,
    "cp": copy_async,
    "cvta": convert_address,
    "ld": load,
    "ldmatrix": load_matrices,
    "mov": move,
    "red": atomic_maximum,
    "shfl": shuffle,
    "st": store,
}
