"""The shared memory of a block, which sees races.

Two accesses of different threads to the same bytes, one of them a write, are a race
unless a barrier orders them: bar.sync any two threads of the block, bar.warp.sync those
of its warp. Warps run in any order on a GPU, so that here the order of execution proves
nothing. A fault is also a read of what was never written, and any access to the bytes
that a cp.async writes, from its issue to the wait of its thread.
"""

import numpy as np
from cuda_ptx.faults import check

WARP = 32
GRANULE = 2  # bytes, the smallest number that is accessed
NEVER = NOBODY = -1
SEVERAL = -2


class Clock:
    """Counts barriers.

    An access at time t of its warp is ordered before one now if t is earlier than the
    last barrier of both threads: that of the warp, `warps`, or that of the block.
    """

    def __init__(self, warps):
        self.warps = np.zeros(warps, np.int64)
        self.block = 0

    def pass_block_barrier(self):
        """bar.sync: every access so far is ordered before every later one."""
        self.block = self.warps.max() + 1
        self.warps[:] = self.block

    def pass_warp_barrier(self, warps):
        """bar.warp.sync: likewise within the warps."""
        self.warps[warps] += 1

    def orders(self, times, same_warp, warps):
        """Whether accesses at `times` come before one of threads of `warps` now."""
        return times < np.where(same_warp, self.warps[warps], self.block)


class SharedMemory:
    """Threads are numbered through the block; accesses are [threads, count] numbers."""

    def __init__(self, size, clock):
        granules = -(-size // GRANULE)
        self.size = size
        self._data = np.full(granules * GRANULE, 0xFF, np.uint8)
        self._clock = clock
        # The last write of each granule, and its reads since the last barrier.
        self._written = np.full(granules, NEVER, np.int64)
        self._writer = np.full(granules, NOBODY, np.int64)
        self._read = np.full(granules, NEVER, np.int64)
        self._reader = np.full(granules, NOBODY, np.int64)
        self._reading_warp = np.full(granules, NOBODY, np.int64)
        self._arriving = np.zeros(granules, bool)

    def load(self, address, dtype, count, threads):
        """`count` neighbouring numbers for each of `threads`."""
        at = self._locate(address, dtype, count)
        self._read_by(threads, self._granules(at, dtype))
        return self._data.view(dtype)[at // np.dtype(dtype).itemsize]

    def store(self, address, values, threads):
        """Stores `values`, [threads, count]."""
        at = self._locate(address, values.dtype, values.shape[1])
        self._write_by(threads, self._granules(at, values.dtype))
        self._data.view(values.dtype)[at // values.dtype.itemsize] = values

    def begin_copy(self, address, size, threads):
        """cp.async: from now on nobody may access the bytes."""
        granules = self._granules(self._locate(address, np.uint8, size)[:, :1], size)
        self._write_by(threads, granules)
        self._arriving[granules] = True

    def end_copy(self, address, values, threads):
        """The bytes `values`, [threads, size], have arrived."""
        size = values.shape[1]
        at = self._locate(address, np.uint8, size)
        granules = self._granules(at[:, :1], size)
        self._arriving[granules] = False
        self._write_by(threads, granules)
        self._data[at] = values

    def _locate(self, address, dtype, count):
        """The offsets of the numbers, [threads, count]."""
        item = np.dtype(dtype).itemsize
        at = address.astype(np.int64)
        check(at % (item * count) == 0, f"misaligned to {item * count} bytes")
        end = at + item * count
        check((at >= 0) & (end <= self.size), "outside of shared memory")
        return at[:, None] + item * np.arange(count)

    @staticmethod
    def _granules(at, dtype_or_size):
        """The granules of the numbers, [threads, granules]."""
        if not isinstance(dtype_or_size, int):
            dtype_or_size = np.dtype(dtype_or_size).itemsize
        granules = at[..., None] // GRANULE + np.arange(dtype_or_size // GRANULE)
        return granules.reshape(len(at), -1)

    def _read_by(self, threads, granules):
        thread = np.repeat(threads, granules.shape[1])
        warp, granules = thread // WARP, granules.ravel()
        check(self._written[granules] != NEVER, "reads what was never written")
        check(~self._arriving[granules], "reads where a cp.async may still write")
        self._check_writes(thread, warp, granules, "reads what another thread wrote")

        # Of several readers since the last barrier only that they are several is kept.
        now = self._clock.warps[warp]
        since_block = self._read[granules] >= self._clock.block
        known_warp = self._reading_warp[granules]
        several_warps = since_block & (known_warp != warp)
        since_warp = since_block & (self._read[granules] >= now)
        several = since_warp & (self._reader[granules] != thread)
        self._read[granules] = now
        self._reader[granules] = thread
        self._reading_warp[granules] = warp
        several |= self._reader[granules] != thread
        several_warps |= self._reading_warp[granules] != warp
        self._reader[granules[several]] = SEVERAL
        self._reading_warp[granules[several_warps]] = SEVERAL

    def _write_by(self, threads, granules):
        thread = np.repeat(threads, granules.shape[1])
        warp, granules = thread // WARP, granules.ravel()
        check(~self._arriving[granules], "writes where a cp.async may still write")
        self._check_writes(
            thread, warp, granules, "overwrites what another thread wrote"
        )
        same_warp = self._reading_warp[granules] == warp
        ordered = self._clock.orders(self._read[granules], same_warp, warp)
        alone = (self._reader[granules] == thread) & same_warp
        check(ordered | alone, "race: overwrites what another thread reads")
        self._written[granules] = self._clock.warps[warp]
        self._writer[granules] = thread
        check(self._writer[granules] == thread, "race: two threads write at once")

    def _check_writes(self, thread, warp, granules, what):
        writer = self._writer[granules]
        ordered = self._clock.orders(
            self._written[granules], writer // WARP == warp, warp
        )
        check(ordered | (writer == thread), f"race: {what}")
