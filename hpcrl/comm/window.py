"""Memory that the ranks of one node share, and who may look at it when."""

from __future__ import annotations

import os

import numpy as np
import numpy.typing as npt
from mpi4py import MPI

Bytes = npt.NDArray[np.uint8]

PAGE = 4096
"""Segments begin at page boundaries, so that no two ranks write to one cache line or page by accident."""


class SharedWindow:
    """One segment of memory per rank of a node; each rank sees all of them as plain arrays.

    Order of memory is the caller's part: store the payload, call `sync`, then store the word that announces it; the
    reader loads the word, calls `sync`, then loads the payload.
    """

    def __init__(self, node: MPI.Intracomm, nbytes: int) -> None:
        """Allocate `nbytes` (may differ, may be 0) for this rank. Collective over `node`, whose ranks share memory.

        The memory is new and not touched: its pages count only once they are written. Words that must start at zero
        are set by their owner, before a barrier of `node`.
        """
        size = -(-nbytes // PAGE) * PAGE
        self._window = MPI.Win.Allocate_shared(size, 1, comm=node)
        self._window.Lock_all(MPI.MODE_NOCHECK)
        self.segments: tuple[Bytes, ...] = tuple(self._segment(rank) for rank in range(node.size))
        """[rank in node] uint8 [bytes of that rank, rounded up to pages]; 64-byte aligned."""
        self.mine = self.segments[node.rank]

    def sync(self) -> None:
        """Full memory fence. Local."""
        self._window.Sync()

    def close(self) -> None:
        """Give the memory back; no array from `segments` may be used afterwards. Collective over the node."""
        self.segments = ()
        self.mine = np.zeros(0, np.uint8)
        self._window.Unlock_all()
        self._window.Free()

    def _segment(self, rank: int) -> Bytes:
        memory, _ = self._window.Shared_query(rank)
        return np.asarray(memory, np.uint8)


def shared_memory_left() -> int:
    """Bytes that shared windows of this node may still take, or a very large number where nobody can tell. Local.

    Writing beyond it kills the process with SIGBUS, so whoever allocates much looks first.
    """
    try:
        free = os.statvfs("/dev/shm")
    except OSError:
        return 1 << 62
    return free.f_bavail * free.f_frsize


def fits_in_shared_memory(node: MPI.Intracomm, nbytes: int) -> bool:
    """Whether all ranks of `node` together leave a tenth of the shared memory free. Collective over `node`."""
    wanted = int(node.allreduce(nbytes))
    left = int(node.allreduce(shared_memory_left(), MPI.MIN))
    return wanted <= 0.9 * left
