"""Processes that a rank has started, and those of them that it leaves behind."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import time
from collections.abc import Collection
from pathlib import Path

_PR_SET_CHILD_SUBREAPER = 36
_LEAVE_S = 1.0
"""For what a child has left behind to notice it and to leave."""
_DEATH_S = 5.0
"""A killed process that hangs in the kernel stays; nobody waits for it longer than this."""


class Orphans:
    """Processes that the child has started and left behind: they become children of this one, and are ended.

    One that is busy does not notice that whoever started it is gone; it would take a core until the job ends.
    """

    def __init__(self) -> None:
        """Before the child is made: children that this process has already are left alone. Linux; else no effect."""
        self._others = children(os.getpid())
        self._adopt(1)

    def reap(self, child: int) -> None:
        """Take note of those that have ended, so that no zombies gather. Local."""
        for pid in self._mine():
            if pid != child:
                with contextlib.suppress(ChildProcessError):
                    os.waitpid(pid, os.WNOHANG)

    def end(self) -> None:
        """After the child: wait shortly for those that leave by themselves, then kill the rest."""
        start = time.monotonic()
        while self._mine():
            passed = time.monotonic() - start
            if passed > _LEAVE_S + _DEATH_S:
                break
            if passed > _LEAVE_S:
                for pid in descendants(os.getpid(), self._others):
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
            self.reap(0)
            time.sleep(0.01)
        self._adopt(0)

    def _mine(self) -> list[int]:
        return [pid for pid in children(os.getpid()) if pid not in self._others]

    def _adopt(self, whether: int) -> None:
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, whether)


def descendants(pid: int, without: Collection[int] = ()) -> list[int]:
    """Living children of a process but for some, their children, and so on."""
    own = [child for child in children(pid) if child not in without]
    return own + [one for child in own for one in descendants(child)]


def children(pid: int) -> list[int]:
    """Living children of a process, of all its threads."""
    found: list[int] = []
    for path in Path("/proc").glob(f"{pid}/task/*/children"):
        with contextlib.suppress(OSError):
            found += [int(child) for child in path.read_text().split()]
    return found
