"""Clocks of processes by the kernel's books: what they computed, and how long they only waited for a core.

So what is measured on a machine that others use, too, is what it would be on one that they do not.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Clock:
    """Of a process with all its threads and descendants."""

    wall_s: float
    cpu_s: float
    queued_s: float
    """Ready to run, but without a core."""

    def __sub__(self, earlier: Clock) -> Clock:
        return Clock(
            self.wall_s - earlier.wall_s, self.cpu_s - earlier.cpu_s, self.queued_s - earlier.queued_s
        )

    @property
    def span_s(self) -> float:
        """How long it would have taken, had there always been a core: with the sleeps, without the queue."""
        return max(self.wall_s - self.queued_s, 0.0)


def read_clock(pid: int, proc: Path = Path("/proc")) -> Clock:
    """Of `pid` and its descendants, those that live. Local; where the kernel does not tell, nothing was queued."""
    ran = queued = 0
    for one in (pid, *descendants(pid, proc)):
        for task in _entries(proc / str(one) / "task"):
            words = _text(task / "schedstat").split()
            if len(words) >= 2:
                ran, queued = ran + int(words[0]), queued + int(words[1])
    return Clock(time.perf_counter(), ran / 1e9, queued / 1e9)


def descendants(pid: int, proc: Path = Path("/proc")) -> list[int]:
    """Processes that `pid` has started, and those that these have. Local."""
    children: dict[int, list[int]] = {}
    for entry in _entries(proc):
        if entry.name.isdigit():
            words = _text(entry / "stat").rpartition(")")[2].split()
            if len(words) >= 2:
                children.setdefault(int(words[1]), []).append(int(entry.name))
    found, left = [], [pid]
    while left:
        more = children.get(left.pop(), [])
        found += more
        left += more
    return found


def most_resident_bytes(pid: int, proc: Path = Path("/proc")) -> int:
    """The most memory that a process has had in RAM, what it shares with others counted; 0: it is gone. Local."""
    for line in _text(proc / str(pid) / "status").splitlines():
        if line.startswith("VmHWM:"):
            return 1024 * int(line.split()[1])
    return 0


def idle_s(proc: Path = Path("/proc")) -> float:
    """Seconds that the cores this process may use had nothing to do, since the machine started, summed. Local."""
    names = {f"cpu{core}" for core in os.sched_getaffinity(0)}
    ticks = 0
    for line in _text(proc / "stat").splitlines():
        name, *words = line.split()
        if name in names:
            ticks += int(words[3]) + int(words[4])
    return ticks / os.sysconf("SC_CLK_TCK")


def _entries(folder: Path) -> list[Path]:
    try:
        return list(folder.iterdir())
    except OSError:  # it has ended
        return []


def _text(file: Path) -> str:
    try:
        return file.read_text()
    except OSError:  # it has ended
        return ""
