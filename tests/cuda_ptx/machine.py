"""Executes a kernel, block after block.

The threads of a block that are at the same instruction execute it together, those that
are furthest behind first, so that threads that took different branches meet again.
"""

from dataclasses import dataclass

import numpy as np
from cuda_ptx import arithmetic, matrix_products, transfers
from cuda_ptx.async_copies import AsyncCopies
from cuda_ptx.faults import Fault, check
from cuda_ptx.parser import Unsupported
from cuda_ptx.registers import Registers
from cuda_ptx.shared_memory import Clock, SharedMemory
from cuda_ptx.tensor_cores import NEAREST, WARP, WmmaLayouts

ALL = slice(None)
RUNNING, WAITING, EXITED = range(3)
AXES = "xyz"


class Parameters:
    """The arguments of a kernel."""

    def __init__(self, raw):
        # Loads of neighbouring numbers may reach into the padding behind the last.
        self._raw = np.frombuffer(raw + bytes(-len(raw) % 16), np.uint8)

    def load(self, address, dtype, count, threads):
        """`count` neighbouring numbers, which all threads share."""
        size = np.dtype(dtype).itemsize
        at = address.astype(np.int64)
        check(at % (size * count) == 0, f"misaligned to {size * count} bytes")
        check(
            (at >= 0) & (at + size * count <= self._raw.size),
            "outside of the parameters",
        )
        return self._raw.view(dtype)[at[:, None] // size + np.arange(count)]


class Block:
    """The threads of a block and what they share. One after another is run on it."""

    def __init__(self, kernel, grid, threads, arguments, memory, options):
        if len(arguments) != kernel.parameter_bytes:
            raise ValueError(
                f"{kernel.name} has {kernel.parameter_bytes} bytes of parameters. "
                f"Received: arguments of {len(arguments)} bytes."
            )
        self._kernel = kernel
        self._threads = np.arange(np.prod(threads))
        if len(self._threads) % WARP:
            raise Unsupported("a block whose last warp is not full")
        dynamic = -(-kernel.shared_bytes // 128) * 128
        self._shared_bytes = dynamic + options.shared_bytes
        symbols = kernel.parameters | kernel.shared
        symbols |= dict.fromkeys(kernel.dynamic_shared, dynamic)
        self._special = _special_registers(grid, threads, self._threads)
        self.registers = Registers(kernel, self._special, symbols)
        self.tensor_cores = options.tensor_cores
        self.layouts = WmmaLayouts(options.seed)
        self.memory = {"global": memory, "param": Parameters(arguments)}
        self._guards = [
            self.registers.predicate(step.guard) if step.guard else None
            for step in kernel.instructions
        ]
        self._runs = [self._understand(step) for step in kernel.instructions]

    def numbers(self, active):
        """The numbers of active threads in the block."""
        return self._threads[active]

    def whole_warps(self, active):
        """The number of active warps. It is a fault if only a part of one is."""
        lanes = self._threads[active]
        whole = len(lanes) % WARP == 0
        if whole:
            lanes = lanes.reshape(-1, WARP)
            whole = bool((lanes == lanes[:, :1] // WARP * WARP + np.arange(WARP)).all())
        check(whole, "not all lanes of a warp are here")
        return len(lanes)

    def run(self, index, serial):
        """Executes the block at `index` of the grid, which is number `serial`."""
        for axis, at in zip(AXES, index, strict=True):
            self._special[f"%ctaid.{axis}"][:] = at
        threads = len(self._threads)
        self.clock = Clock(threads // WARP)
        self.memory["shared"] = SharedMemory(self._shared_bytes, self.clock)
        self.memory["global"].begin_block(serial * threads)
        self.copies = AsyncCopies(self.memory["global"], self.memory["shared"], threads)
        self.registers.reset()
        try:
            self._run_threads()
            self.copies.end()
        except Fault as fault:
            raise Fault(f"block {index}: {fault}") from fault

    def _run_threads(self):
        self._at = np.zeros(len(self._threads), np.int64)  # the next instruction
        self._state = np.full(len(self._threads), RUNNING)
        while (self._state != EXITED).any():
            running = self._state == RUNNING
            if not running.any():
                self._pass_barrier()
                continue
            at = self._at[running].min()
            together = running & (self._at == at)
            others = self._at[running & ~together]
            active = ALL if together.all() else np.flatnonzero(together)
            self._advance(active, int(at), others.min() if len(others) else np.inf)

    def _pass_barrier(self):
        """bar.sync: every thread of the block has to be at the same one."""
        check(self._state == WAITING, "bar.sync, but some threads have exited")
        check(self._at == self._at[0], "threads wait at different barriers")
        self._state[:] = RUNNING
        self.clock.pass_block_barrier()

    def _advance(self, active, at, limit):
        """Executes until the threads part, wait, or meet others at `limit`."""
        while at < limit:
            if at == len(self._runs):
                raise Unsupported("a kernel that does not end with ret")
            chosen = self._guarded(active, at)
            run = self._runs[at]
            at += 1
            if chosen is None:
                continue
            if callable(run):
                self._execute(run, chosen, at - 1)
                continue
            if isinstance(run, int):  # a branch
                if chosen is active:
                    at = run
                    continue
                self._at[active] = at
                self._at[chosen] = run
            else:
                self._at[active] = at
                self._state[chosen] = run.state
            return
        self._at[active] = at

    def _guarded(self, active, at):
        """Those of the active threads whose guard is true, or None."""
        guard = self._guards[at]
        if guard is None:
            return active
        true = guard(active) != self._kernel.instructions[at].negated
        if true.all():
            return active
        return self._threads[active][true] if true.any() else None

    def _execute(self, run, active, at):
        try:
            run(active)
        except Fault as fault:
            raise Fault(f"{self._kernel.instructions[at].text}: {fault}") from fault

    def _understand(self, instruction):
        try:
            return self._decode(instruction)
        except (KeyError, ValueError) as error:  # parts of another form than is known
            raise Unsupported(instruction.text) from error

    def _decode(self, instruction):
        """What executes an instruction: a function, the target of a branch, or Stop."""
        name, modifiers = instruction.name, instruction.modifiers
        if name == "bra" and modifiers in ((), ("uni",)):
            return self._kernel.labels[instruction.operands[0]]
        if name in ("ret", "exit") and not modifiers:
            return Stop(EXITED)
        if name == "bar" and modifiers == ("sync",) and instruction.operands == ("0",):
            return Stop(WAITING)
        if name == "bar" and modifiers == ("warp", "sync"):
            return transfers.warp_barrier(instruction, self)
        for table in (transfers.TABLE, matrix_products.TABLE):
            if name in table:
                return table[name](instruction, self)
        return self._compute(instruction)

    def _compute(self, instruction):
        operation = arithmetic.operation(instruction)
        to, *sources = instruction.operands
        write = self.registers.target(to)
        reads = [
            self.registers.source(source, kind)
            for source, kind in zip(sources, operation.sources, strict=True)
        ]
        function = operation.function
        return lambda active: write(active, function(*[read(active) for read in reads]))


@dataclass(frozen=True)
class Stop:
    """An instruction after which threads do not go on by themselves."""

    state: int


@dataclass(frozen=True)
class Options:
    """How a launch is executed: bytes of dynamic shared memory, and tensor cores."""

    shared_bytes: int = 0
    tensor_cores: object = NEAREST
    seed: int = 0  # of the layouts of wmma


def launch(kernel, grid, threads, arguments, memory, **options):
    """Executes all blocks. `arguments` are the bytes of the parameters."""
    memory.begin_launch()
    block = Block(kernel, grid, threads, arguments, memory, Options(**options))
    with np.errstate(all="ignore"):
        for serial, index in enumerate(np.ndindex(*grid[::-1])):
            block.run(index[::-1], serial)


def _special_registers(grid, block, threads):
    values = {"%laneid": threads % WARP}
    below = 1
    for axis, blocks, size in zip(AXES, grid, block, strict=True):
        values[f"%tid.{axis}"] = threads // below % size
        values[f"%ntid.{axis}"] = np.full_like(threads, size)
        values[f"%nctaid.{axis}"] = np.full_like(threads, blocks)
        values[f"%ctaid.{axis}"] = np.zeros_like(threads)
        below *= size
    return values
