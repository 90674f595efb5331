"""The set of a checkpoint on learner 0: which parts are there, and what becomes of it where the disk refuses one."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hpcrl.config import RunConfig
from hpcrl.storage import checkpoint
from hpcrl.storage.patience import Patience, reason

RETRY_S = 1.0
"""Between two tries to write to a disk that refuses, at least."""

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Set:
    update: int
    final: bool
    meta: dict[str, Any]
    begun: float
    hashes: dict[str, str] = field(default_factory=dict)
    refused: set[str] = field(default_factory=set)
    """Parts that could not be written."""


class Completion:
    """Takes note of parts until a set can be completed, or must be given up. Local, on learner 0.

    A refused part costs the set, and the next one is tried soon; after storage.patience_s of that, `patience.over`. The
    set at the end is not given up: its parts are tried again.
    """

    def __init__(self, run_dir: Path, config: RunConfig, last: int) -> None:
        """`last`: update of the set that this run goes on from, or -1."""
        self._run_dir, self._settings = run_dir, config.checkpoint
        self._aside = config.faults.has("atomic-rename")
        self.last, self._before = last, last
        """Update of the last set that was not given up."""
        self.patience = Patience(config.storage.patience_s)
        self._set: _Set | None = None
        self._last_time = time.perf_counter()
        self._retry_at = 0.0
        self._told: list[tuple[str, str]] = []
        self.said = ""
        """What the disk has refused last, and what it said."""
        self.longest_s = 0.0
        """From the decision for a cut to its complete set."""

    @property
    def pending(self) -> bool:
        """A set is not complete yet."""
        return self._set is not None

    def due(self, update: int) -> bool:
        """Whether it is time for another set, at `update`."""
        if self._set is not None:
            return False
        now, settings = time.perf_counter(), self._settings
        if self.patience.since is not None:
            return now >= self._retry_at
        if settings.every_updates is not None and update - max(self.last, 0) >= settings.every_updates:
            return True
        return settings.every_seconds is not None and now - self._last_time >= settings.every_seconds

    def begin(self, update: int, meta: dict[str, Any], begun: float, *, final: bool) -> None:
        """A set is being written; one that is not complete is forgotten."""
        self._before, self.last = self.last, update
        self._set = _Set(update, final, meta, begun)

    def note(self, part: str, update: int, found: bytes | int, *, final: bool) -> None:
        """A part is written (its hash), or refused (errno); of a set that was forgotten it does not count."""
        one = self._set
        if one is None or (update, final) != (one.update, one.final):
            return
        if isinstance(found, int):
            self._refuse(one, part, os.strerror(found) if found else "the disk refuses")
        else:
            one.hashes[part] = found.hex()

    def settle(self, parts: Sequence[str], rows_on_disk: int, score: float | None) -> None:
        """Complete the set, or give it up, once nothing of it is under way any more.

        parts: what makes it complete. `rows_on_disk`: newest mark before which all rows are in the result file.
        """
        one = self._set
        if one is None:
            return
        if one.refused and not one.final:
            if not set(parts) - one.refused - one.hashes.keys():
                self._give_up(one)
        elif not self.missing(parts, rows_on_disk) and time.perf_counter() >= self._retry_at:
            self._complete(one, score)

    def missing(self, parts: Sequence[str], rows_on_disk: int) -> list[str]:
        """What is not there yet."""
        one = self._set
        names = [name for name in parts if one is None or name not in one.hashes]
        if one is not None and rows_on_disk != mark_of(one.update, one.final):
            names.append("the rows in the result file")
        return names

    def forget(self) -> None:
        """No part of the set is waited for any more."""
        self._set = None

    def take_told(self) -> list[tuple[str, str]]:
        """Kind and text of each event since the last call."""
        told, self._told = self._told, []
        return told

    def _complete(self, one: _Set, score: float | None) -> None:
        settings = self._settings
        try:
            checkpoint.complete(
                self._run_dir,
                one.update,
                one.hashes,
                meta=one.meta | {"score": score},
                keep=settings.keep,
                keep_best=settings.keep_best,
                aside=self._aside,
            )
        except OSError as error:
            self._retry_at = time.perf_counter() + RETRY_S
            self._refuse(one, "the manifest", reason(error))
            if not one.final:
                self._give_up(one)
            return
        self._set, self._last_time = None, time.perf_counter()
        took_s = self._last_time - one.begun
        self.longest_s = max(self.longest_s, took_s)
        if (refused_s := self.patience.well()) is not None:
            self._tell("disk_well", f"checkpoints are written again, after {refused_s:.1f} s")
        self._told.append(("checkpoint", f"of update {one.update}, complete after {took_s:.2f} s"))

    def _refuse(self, one: _Set, part: str, said: str) -> None:
        one.refused.add(part)
        self.said = f"{part} of checkpoint {one.update} cannot be written: {said}"
        if self.patience.bear():
            self._tell(
                "disk_refuses",
                f"{self.said}. Those before are whole; the run goes on and tries again for up to "
                f"{self.patience.limit_s:g} s (storage.patience_s)",
            )

    def _tell(self, kind: str, text: str) -> None:
        _log.warning("%s", text)
        self._told.append((kind, text))

    def _give_up(self, one: _Set) -> None:
        """No rank writes to it any more."""
        checkpoint.give_up(self._run_dir, one.update, aside=self._aside)
        self._set, self.last = None, self._before
        self._retry_at = time.perf_counter() + max(RETRY_S, self.patience.limit_s / 10)


def mark_of(update: int, final: bool) -> int:
    """Number of the mark behind the rows of a set. Pure."""
    return 2 * update + final
