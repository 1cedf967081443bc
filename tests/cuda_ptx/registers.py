"""The registers and other operands of the threads of a block.

An operand becomes a function that reads or writes an array for the active threads: a
slice of all, or their numbers.
"""

import re

import numpy as np
from cuda_ptx.number_types import SIGNED, array_type, size_of, unsigned_of
from cuda_ptx.parser import Unsupported

INTEGER = re.compile(r"-?(?:0[xX][0-9a-fA-F]+|\d+)U?")
FLOAT_BITS = re.compile(r"0[fFdD]([0-9a-fA-F]+)")
ADDRESS = re.compile(r"\[([%\w$.]+)(?:\s*\+\s*(-?\w+))?\]")
POISON = 0xDEADBEEF12345678  # what a register holds before it is written


class Registers:
    """The registers of `threads` threads, special ones, and addresses of variables."""

    def __init__(self, kernel, special, symbols):
        self._special = special
        self._symbols = symbols
        threads = len(special["%tid.x"])
        self._stores = {
            name: np.zeros(threads, _storage(kind))
            for name, kind in kernel.registers.items()
        }

    def reset(self):
        """Poisons all registers."""
        for store in self._stores.values():
            bits = 8 * store.dtype.itemsize
            store[:] = store.dtype.type(POISON >> (64 - bits))

    def source(self, text, kind):
        """Reads an operand as numbers of the type."""
        dtype = np.dtype(array_type(kind))
        if text in self._stores:
            return _reader(self._stores[text], dtype, text)
        if text in self._special:
            values = self._special[text]
            return lambda active: values[active].astype(dtype)
        constant = self._constant(text, dtype)
        return lambda active: constant

    def target(self, text):
        """Writes an operand; what is narrower than the register is extended."""
        if text == "_":
            return lambda active, x: None
        store = self._stores[text]
        if store.dtype == bool:
            return lambda active, x: store.__setitem__(active, x)
        bits = 8 * store.dtype.itemsize

        def write(active, x):
            if x.dtype.itemsize != store.dtype.itemsize:
                if x.dtype.kind == "i":
                    x = x.astype(SIGNED[bits])
                elif x.dtype.kind == "f":
                    raise Unsupported(f"a number of {x.dtype} in {text}")
            store[active] = x if x.dtype.kind == "u" else x.view(store.dtype)

        return write

    def address(self, text):
        """Reads `[register + offset]` or `[variable + offset]`."""
        match = ADDRESS.fullmatch(text)
        if match is None:
            raise Unsupported(text)
        offset = np.int64(int(match[2] or "0", 0))
        if match[1] in self._stores:
            store = self._stores[match[1]]
            return lambda active: store[active].astype(np.int64) + offset
        constant = self._constant(match[1], np.dtype(np.int64)) + offset
        threads = self._special["%tid.x"]
        return lambda active: np.broadcast_to(constant, threads[active].shape)

    def predicate(self, name):
        """Reads a guard."""
        store = self._stores[name]
        return lambda active: store[active]

    def _constant(self, text, dtype):
        """A literal or the address of a variable, as an array of one number."""
        bits = FLOAT_BITS.fullmatch(text)
        if bits:
            value = np.array([int(bits[1], 16)], f"u{len(bits[1]) // 2}")
            value = value.view(f"f{value.dtype.itemsize}")
            if dtype.kind == "f" and value.dtype != dtype:
                raise Unsupported(text)
            return value.view(dtype)
        if INTEGER.fullmatch(text):
            value = int(text.rstrip("U"), 0)
        elif text in self._symbols:
            value = self._symbols[text]
        else:
            raise Unsupported(f"the operand {text}")
        if dtype.kind == "b":
            return np.array([bool(value)])
        mask = (1 << 8 * dtype.itemsize) - 1
        return np.array([value & mask], unsigned_of(dtype)).view(dtype)


def _storage(kind):
    return np.bool_ if kind == "pred" else unsigned_of(f"u{size_of(kind)}")


def _reader(store, dtype, text):
    if store.dtype.itemsize == dtype.itemsize:
        return lambda active: store[active].view(dtype)
    if store.dtype.itemsize < dtype.itemsize:
        raise Unsupported(f"{text} as {dtype}")
    narrow = unsigned_of(dtype)
    return lambda active: store[active].astype(narrow).view(dtype)
