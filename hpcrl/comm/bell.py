"""Waking a rank of the same node: a word per rank in shared memory, slept on with futex."""

from __future__ import annotations

import ctypes
import platform
import sys
import time

import numpy as np
from mpi4py import MPI

from hpcrl.comm.window import SharedWindow

_FUTEX = {"x86_64": 202, "aarch64": 98}.get(platform.machine()) if sys.platform == "linux" else None
"""Number of the system call; None where waiting falls back to sleeping."""
_WAIT, _WAKE = 0, 1
_ASLEEP_OFFSET = 128
_NBYTES = 256


class _Timespec(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


class Bells:
    """One bell per rank of a node. A rank rings another's bell after it has stored something the other waits for.

    A ring is never lost: each changes the word, and `sleep` returns at once when the word is not the one that was
    `look`ed at before the last fruitless poll.
    """

    def __init__(self, node: MPI.Intracomm) -> None:
        """Collective over `node`."""
        self._window = SharedWindow(node, _NBYTES)
        self._window.mine[:_NBYTES] = 0
        self._rank = node.rank
        self._rings = 0
        self._words = [segment[:4].view(np.uint32) for segment in self._window.segments]
        self._asleep = [segment[_ASLEEP_OFFSET:][:4].view(np.uint32) for segment in self._window.segments]
        self._addresses = [ctypes.c_void_p(word.ctypes.data) for word in self._words]
        self._libc = ctypes.CDLL(None, use_errno=True)
        node.Barrier()

    def ring(self, rank: int) -> None:
        """Wake `rank` (of the node) if it sleeps, and keep it from falling asleep before it has polled. Local."""
        self._rings += 1
        # of all writers only this one writes this value: the word changes with every ring
        self._words[rank][0] = (self._rings << 10 | self._rank) & 0xFFFFFFFF
        self._window.sync()
        if self._asleep[rank][0] and _FUTEX is not None:
            self._libc.syscall(_FUTEX, self._addresses[rank], _WAKE, 1, None, None, 0)

    def look(self) -> int:
        """This rank's word; call before polling, and give it to `sleep` when the poll was fruitless. Local."""
        return int(self._words[self._rank][0])

    def sleep(self, seen: int, seconds: float) -> None:
        """Sleep until somebody rings, a signal comes, or `seconds` have passed. Local."""
        if _FUTEX is None:
            time.sleep(seconds)
            return
        whole = int(seconds)
        timeout = _Timespec(whole, int((seconds - whole) * 1e9))
        self._asleep[self._rank][0] = 1
        self._window.sync()
        # the kernel compares the word with `seen` itself, so a ring between our look and this call is not missed
        self._libc.syscall(_FUTEX, self._addresses[self._rank], _WAIT, seen, ctypes.byref(timeout), None, 0)
        self._asleep[self._rank][0] = 0

    def close(self) -> None:
        """Collective over the node."""
        self._words, self._asleep = [], []
        self._window.close()
