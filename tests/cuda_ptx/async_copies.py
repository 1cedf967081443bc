"""cp.async: copies from global to shared memory that last until their thread waits."""

from dataclasses import dataclass

import numpy as np
from cuda_ptx.faults import check


@dataclass
class Copies:
    """What one instruction copies: for each thread one address, and its group."""

    threads: np.ndarray
    groups: np.ndarray
    to: np.ndarray
    values: np.ndarray  # [threads, bytes]

    def part(self, chosen):
        """The copies of some of the threads."""
        return Copies(
            self.threads[chosen],
            self.groups[chosen],
            self.to[chosen],
            self.values[chosen],
        )


class AsyncCopies:
    """The copies of a block that have not arrived."""

    def __init__(self, global_memory, shared_memory, threads):
        self._global = global_memory
        self._shared = shared_memory
        self._committed = np.zeros(threads, np.int64)  # groups of each thread
        self._pending = []

    def issue(self, threads, to, source, size, valid):
        """Starts to copy `valid` of `size` bytes for each thread, the others are 0."""
        values = self._global.copy(source, size, valid)
        self._shared.begin_copy(to, size, threads)
        self._pending.append(Copies(threads, self._committed[threads], to, values))

    def commit(self, threads):
        """Makes the copies of each thread since its last commit a group."""
        self._committed[threads] += 1

    def wait(self, threads, pending):
        """Waits until at most `pending` groups of each thread have not arrived."""
        waits_for = np.full(len(self._committed), -1)
        waits_for[threads] = self._committed[threads] - pending
        left = []
        for copies in self._pending:
            arrived = copies.groups < waits_for[copies.threads]
            if arrived.any():
                done = copies.part(arrived)
                self._shared.end_copy(done.to, done.values, done.threads)
            if not arrived.all():
                left.append(copies.part(~arrived))
        self._pending = left

    def end(self):
        """The block ends: nothing may be on its way."""
        check(not self._pending, "a cp.async was never waited for")
