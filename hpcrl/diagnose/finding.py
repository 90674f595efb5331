"""What a rule says, and what a rule is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from hpcrl.diagnose.advice import Change
from hpcrl.diagnose.view import View

SEVERITIES = ("wrong", "harmful", "costly")
"""Worst first. wrong: results cannot be trusted, or there are none; harmful: learning suffers; costly: time does."""


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that is wrong, and what to change."""

    what: str
    """A sentence with the numbers it was seen by."""
    change: Change
    numbers: dict[str, Any] = field(default_factory=dict)
    """The same for programs; JSON types, None for what is not finite."""


@dataclass(frozen=True, slots=True)
class Rule:
    """One thing that may be wrong."""

    name: str
    severity: str
    looks_at: str
    threshold: str
    check: Callable[[View], Finding | None]
    """None: it is well, or the run has nothing of the kind. Raises CannotTell."""
