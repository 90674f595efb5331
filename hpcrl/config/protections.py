"""Protections that `hpcrl drill` can switch off in the runs it starts, to show that it would notice."""

from __future__ import annotations

from typing import Literal

Protection = Literal[
    "atomic-rename",
    "checkpoint-hashes",
    "finite-check",
    "ownership",
    "signal-handlers",
    "supervisor",
    "watchdog",
]

PROTECTIONS: dict[Protection, str] = {
    "atomic-rename": "a checkpoint is written aside and gets its name when it is complete",
    "checkpoint-hashes": "files of a checkpoint are compared with their hashes before it is loaded",
    "finite-check": "a gradient that is not finite is not applied",
    "ownership": "a run directory has one writer: a second one is refused",
    "signal-handlers": "a signal sets a flag, and the run stops in order",
    "supervisor": "a rank that dies is named by its parent",
    "watchdog": "a rank that gets nowhere is named and ends the job",
}
"""What each one does."""
