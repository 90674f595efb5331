"""Exit codes of every hpcrl command: what a batch script may branch on."""

from __future__ import annotations

from enum import IntEnum


class ExitCode(IntEnum):
    """What the end of a run means."""

    FINISHED = 0
    """the budget was reached"""
    ERROR = 1
    """anything not named below"""
    BAD_CONFIGURATION = 2
    """refused before any rank started working, and nothing was written; or the time limit is too short for an update"""
    RANK_FAILED = 3
    """a rank died or stalled, or the disk refused results or checkpoints for storage.patience_s"""
    LEARNING_FAILED = 4
    """gradients were not finite for algorithm.max_nonfinite_updates updates in a row"""
    RESUME_ME = 75
    """stopped cleanly before the budget, by a signal or the time limit"""
