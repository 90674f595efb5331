"""Waiting for a child process that may end, or live on without getting anywhere."""

from __future__ import annotations

import contextlib
import faulthandler
import os
import signal
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from hpcrl.launch.orphans import descendants

LOOK_EVERY_S = 1.0
_STACKS = signal.SIGRTMIN + 1
"""Nobody else uses it."""
_STACKS_S = 1.0
"""For the child to print its stacks: from a signal handler in C, so that it does not matter what Python is at."""
_DEATH_S = 5.0
"""A killed process that hangs in the kernel stays; nobody waits for it longer than this."""
_STATES = {"T": "; it is stopped, by a signal", "D": "; it hangs in the kernel, perhaps at a file system"}


class Silence:
    """How long a process has not beaten, as far as who looks was awake. Pure: the clock is an argument."""

    def __init__(self, limit_s: float, now: float) -> None:
        self._limit_s = limit_s
        self._looked = now
        self._beats = 0
        self._silent_s = 0.0

    def too_long(self, beats: int, now: float, patience_s: float = 0.0) -> bool:
        """Look again, every LOOK_EVERY_S. `beats`: any other number than the last is a sign of life; 0: not begun.

        `patience_s`: what there is beyond the limit just now.
        If much more time has passed since the last look, the machine or the whole job was suspended: not counted.
        """
        passed, self._looked = min(now - self._looked, 2 * LOOK_EVERY_S), now
        alive = beats == 0 or beats != self._beats
        self._beats = beats
        self._silent_s = 0.0 if alive else self._silent_s + passed
        return self._silent_s > self._limit_s + patience_s


@dataclass(frozen=True, slots=True)
class Watch:
    """A count that must change at least every `limit_s`, as long as it is not 0."""

    count: Callable[[], int]
    limit_s: float
    cause: Callable[[], str]
    """What is said when it has not."""
    patience_s: Callable[[], float] = float
    """Time beyond the limit, as long as it may be another one's fault."""
    of_the_run: bool = False
    """It is not this child that has failed, but the run."""


def wait(child: int, watches: Sequence[Watch], given_up: Callable[[], bool] = lambda: False) -> int | Watch:
    """The wait status of a child, at once when it ends; else the first watch whose count stood still for too long.

    Main thread only; signals are handled meanwhile. `given_up`, asked at every look, has the child killed.
    """
    # blocked, it stays pending: an end between two calls is not missed
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})
    silences = [(watch, Silence(watch.limit_s, time.monotonic())) for watch in watches]
    while True:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return status
        for watch, silence in silences:
            if silence.too_long(watch.count(), time.monotonic(), watch.patience_s()):
                return watch
        if given_up():
            os.kill(child, signal.SIGKILL)
        signal.sigtimedwait({signal.SIGCHLD}, LOOK_EVERY_S)


def show_stacks_when_asked() -> None:
    """Let another process have this one print its Python stacks."""
    faulthandler.register(_STACKS, file=2, all_threads=True, chain=False)


def show_stacks(child: int) -> None:
    """Have the child print the Python stacks of all its threads; one that is stopped or hangs in the kernel cannot."""
    os.kill(child, _STACKS)
    time.sleep(_STACKS_S)


def state(child: int) -> str:
    """What there is to say about a process that does not even run; empty for all others."""
    with contextlib.suppress(OSError):
        return _STATES.get(Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()[0], "")
    return ""


def kill(child: int) -> None:
    """Kill the child and what it has started: a process of an environment may be what hangs."""
    for pid in [child, *descendants(child)]:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    deadline = time.monotonic() + _DEATH_S
    while os.waitpid(child, os.WNOHANG) == (0, 0) and time.monotonic() < deadline:
        time.sleep(0.01)


def within(seconds: float, action: Callable[[], None]) -> None:
    """Run `action`, but go on without it when it takes longer."""
    thread = threading.Thread(target=action, daemon=True)
    thread.start()
    thread.join(seconds)
