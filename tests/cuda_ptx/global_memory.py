"""Global memory: arrays between guards that no thread may touch.

A fault is an access that is not aligned to its size or not inside of one array, and in
one launch a number that two threads write, or that one writes and another reads.
"""

import numpy as np
from cuda_ptx.faults import check

BASE = 0x7F0000000000
GUARD = 4096  # bytes around each array
GRANULE = 1  # bytes, the smallest number that is written
NOBODY = -1


class GlobalMemory:
    """The memory of a device."""

    def __init__(self, size=1 << 22):
        self._data = np.full(size, 0xFF, np.uint8)  # NaN in every floating-point type
        self._allocated = np.zeros(size, bool)
        self._writer = np.full(size // GRANULE, NOBODY, np.int64)
        self._end = 0
        self._first_thread = 0

    def allocate(self, size, offset=0):
        """The address of a new array, `offset` bytes beyond a multiple of 256."""
        at = -(-(self._end + GUARD) // 256) * 256 + offset
        self._end = at + size
        if self._end + GUARD > self._data.size:
            raise MemoryError(f"GlobalMemory is too small. Received: size={size}.")
        self._allocated[at : self._end] = True
        return BASE + at

    def put(self, array, offset=0):
        """The address of a copy of the array."""
        raw = np.ascontiguousarray(array).view(np.uint8).ravel()
        address = self.allocate(raw.size, offset)
        self._data[address - BASE : address - BASE + raw.size] = raw
        return address

    def get(self, address, dtype, count):
        """A copy of the `count` numbers at the address."""
        at = address - BASE
        return self._data[at : at + count * np.dtype(dtype).itemsize].copy().view(dtype)

    def begin_launch(self):
        """Forgets who wrote what: the launches of a stream follow one another."""
        self._writer[:] = NOBODY

    def begin_block(self, first_thread):
        """The threads that access it next are numbered from here on."""
        self._first_thread = first_thread

    def load(self, address, dtype, count, threads):
        """`count` neighbouring numbers for each of `threads`."""
        at = self._locate(address, dtype, count)
        granules = _granules(at, dtype)
        writer = self._writer[granules]
        mine = self._first_thread + threads[:, None, None]
        check((writer == NOBODY) | (writer == mine), "reads what another thread writes")
        return self._numbers(dtype)[at // np.dtype(dtype).itemsize]

    def store(self, address, values, threads):
        """Stores `values`, [threads, count]."""
        at = self._locate(address, values.dtype, values.shape[1])
        granules = _granules(at, values.dtype)
        writer = self._writer[granules]
        mine = np.broadcast_to(
            self._first_thread + threads[:, None, None], writer.shape
        )
        self._writer[granules] = mine
        alone = (writer == NOBODY) | (writer == mine)
        check(alone & (self._writer[granules] == mine), "two threads write one number")
        self._numbers(values.dtype)[at // values.dtype.itemsize] = values

    def maximum(self, address, values):
        """Returns the numbers, and replaces each by the larger of it and `values`."""
        at = self._locate(address, values.dtype, 1)[:, 0] // values.dtype.itemsize
        numbers = self._numbers(values.dtype)
        old = numbers[at]
        np.maximum.at(numbers, at, values)
        return old

    def copy(self, address, size, valid):
        """`valid` of `size` bytes at each address, the others 0."""
        at = address - BASE
        check(at % size == 0, f"misaligned to {size} bytes")
        copied = np.arange(size) < valid[:, None]
        cells = at[:, None] + np.arange(size)
        check(self._inside(cells) | ~copied, "outside of every array")
        return np.where(copied, self._data.take(cells, mode="clip"), np.uint8(0))

    def _locate(self, address, dtype, count):
        """The offsets of the numbers, [threads, count]."""
        item = np.dtype(dtype).itemsize
        at = address.astype(np.int64) - BASE
        check(at % (item * count) == 0, f"misaligned to {item * count} bytes")
        at = at[:, None] + item * np.arange(count)
        check(self._inside(at) & self._inside(at + item - 1), "outside of every array")
        return at

    def _inside(self, at):
        known = (at >= 0) & (at < self._data.size)
        return known & self._allocated[np.where(known, at, 0)]

    def _numbers(self, dtype):
        return self._data.view(dtype)


def _granules(at, dtype):
    """The granules of each number, [threads, count, granules]."""
    return at[..., None] // GRANULE + np.arange(np.dtype(dtype).itemsize // GRANULE)
