"""What the end of one rank does to others: who says why the run ended."""

from __future__ import annotations

import math
import os
import signal
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from hpcrl.storage.files import read_json

SECONDARY = (signal.SIGSEGV, signal.SIGBUS, signal.SIGABRT)
"""Signals that also kill ranks whose peer on another node is gone: inside MPI, as soon as the connection breaks."""
_LET_OTHERS_SPEAK_S = 2.0
"""For the supervisor of the rank that died first, on another node: it knows the cause and ends the job."""
_LOOK_EVERY_S = 0.1
_READ_S = 0.3
"""For the launcher to read what the other supervisor has said: this process may be the first to make it abort."""
_START_S = 5.0
"""A rank that srun tells to end and that has no run directory yet may be waiting for a dead one to join."""


def another_has_failed(run_dir: Path | None, told_to_end: Callable[[], bool]) -> bool:
    """Whether the end of this rank follows from that of another, which is or will be named; waits for it to show.

    It shows in the run directory, or by the launcher that tells this process to end. Local.
    """
    deadline = time.monotonic() + _LET_OTHERS_SPEAK_S
    while time.monotonic() < deadline:
        if told_to_end() or _has_failed(run_dir):
            time.sleep(_READ_S)
            return True
        time.sleep(_LOOK_EVERY_S)
    return False


def follows_from_another(run_dir: Path | None, number: int, told: Mapping[int, float]) -> bool:
    """Whether the death of a rank by signal `number` follows from the end of another. Local; may wait as above."""
    if number == signal.SIGKILL:
        return nothing_to_end(run_dir, told)
    before = dict(told)
    return number in SECONDARY and another_has_failed(run_dir, lambda: told != before)


def nothing_to_end(run_dir: Path | None, told: Mapping[int, float]) -> bool:
    """Whether a rank that was told to end has nothing to end in order, because another has failed. Local; no waiting.

    srun tells the others by SIGTERM, and without this they would wait for the dead rank until Slurm's KillWait is over.
    `told`: signals, and time.monotonic() of each.
    """
    if run_dir is None:
        since = told.get(signal.SIGTERM, math.inf)
        return "SLURM_STEP_ID" in os.environ and time.monotonic() - since > _START_S
    return bool(told) and _has_failed(run_dir)


def _has_failed(run_dir: Path | None) -> bool:
    status = read_json(run_dir / "status.json") if run_dir is not None else None
    return status is not None and status.get("status") == "failed"
