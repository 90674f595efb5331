"""What the end of one rank does to others: who says why the run ended, and which processes are left behind."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

from hpcrl.launch.watchdog import descendants
from hpcrl.storage.files import read_json

SECONDARY = (signal.SIGSEGV, signal.SIGBUS, signal.SIGABRT)
"""Signals that also kill ranks whose peer on another node is gone: inside MPI, as soon as the connection breaks."""
_LET_OTHERS_SPEAK_S = 2.0
"""For the supervisor of the rank that died first, on another node: it knows the cause and ends the job."""
_LOOK_EVERY_S = 0.1
_PR_SET_CHILD_SUBREAPER = 36


def another_has_failed(run_dir: Path | None, told_to_end: Callable[[], bool]) -> bool:
    """Whether the end of this rank follows from that of another, which is or will be named; waits for it to show.

    It shows in the run directory, or by the launcher that tells this process to end. Local.
    """
    deadline = time.monotonic() + _LET_OTHERS_SPEAK_S
    while time.monotonic() < deadline:
        status = (read_json(run_dir / "status.json") or {}) if run_dir is not None else {}
        if told_to_end() or status.get("status") == "failed":
            return True
        time.sleep(_LOOK_EVERY_S)
    return False


def adopt_orphans() -> None:
    """Have processes whose parent dies become children of this one, if they descend from it (Linux; else no effect)."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)


def kill_orphans() -> None:
    """Kill what a rank has left behind: a process of an environment that is busy does not notice that it is gone."""
    for pid in descendants(os.getpid()):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
