"""`hpcrl export`: a run in the forms that other tools read."""

from __future__ import annotations

import contextlib
import logging
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich.console import Console

from hpcrl.config import ConfigError
from hpcrl.live.extras import load_extra
from hpcrl.live.series import Series
from hpcrl.live.sinks import CsvFiles, EventFiles, Sink, WandbRun
from hpcrl.live.watch import OVER, run_to_watch
from hpcrl.storage.following import Follower
from hpcrl.storage.rundir import read_status
from hpcrl.storage.runlog import AttemptHead, attempt_files, read_heads
from hpcrl.storage.summary import find_run

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Wanted:
    """What to write: each None where it is not asked for."""

    tensorboard: str | None = None
    """log directory"""
    csv: str | None = None
    """folder"""
    wandb: str | None = None
    """project"""


class Export:
    """Brings what has come of a run into every form that is wanted."""

    def __init__(self, run: Path, wanted: Wanted, *, follow: bool) -> None:
        """Makes nothing yet. `run`: as for `read_table`. Raises ConfigError where a library is missing."""
        if wanted.tensorboard is not None:
            load_extra("tensorboardX", "tensorboard")
        if wanted.wandb is not None:
            load_extra("wandb", "wandb")
        self._run, self._wanted, self._follow = run, wanted, follow
        rest = [name for name in CsvFiles.TABLES if name not in Series.TABLES] if wanted.csv else []
        self._follower = Follower(run, [*Series.TABLES, *rest])
        self._series = Series({})
        self._sinks: list[Sink] = []
        self._csv: CsvFiles | None = None
        self.points, self.rows = 0, 0
        """written for tools that draw, and as CSV, since the last attempt began"""

    def look(self, *, end: bool) -> str:
        """Write what has come; which file could not be read and why, else "". `end`: nothing more will come.

        Raises ConfigError where a folder cannot be written.
        """
        if self._follower.look():
            self._begin()
        for table, rows in self._follower.rows():
            if self._csv is not None:
                self._csv.take(table, rows)
                self.rows += len(rows)
            if self._sinks and table in Series.TABLES:
                self._add(list(self._series.take(table, rows)))
        self._add(list(self._series.settle(end=end)))
        return self._follower.trouble

    def _add(self, points: list[Any]) -> None:
        for sink in self._sinks:
            sink.add(points)
        self.points += len(points) if self._sinks else 0

    def _begin(self) -> None:
        """From the first row on, by what is known of the attempts by now."""
        self.close()
        heads = _readable_heads(self._run)
        self._series = Series({head.attempt: _began(head) for head in heads})
        self.points = self.rows = 0
        wanted, name = self._wanted, self._run.stem if self._run.is_file() else self._run.resolve().name
        try:
            if wanted.csv is not None:
                self._csv = CsvFiles(Path(wanted.csv) / name)
            if wanted.tensorboard is not None:
                folder = Path(wanted.tensorboard) / name
                self._sinks.append(EventFiles(folder, restarts=self._follow))
        except OSError as error:
            raise ConfigError(f"{error}; name another folder") from error
        if wanted.wandb is not None:
            self._sinks.append(WandbRun(wanted.wandb, name, heads[-1].config if heads else {}))

    def close(self) -> None:
        """Close every file."""
        for sink in self._sinks:
            sink.close()
        if self._csv is not None:
            self._csv.close()
        self._sinks, self._csv = [], None


def export_command(path: str, wanted: Wanted, every_s: float | None) -> int:
    """Write what is wanted, with `every_s` again and again until the run ends or Ctrl-C; 1 where a file is unreadable.

    Raises ConfigError for what is no run, nothing that is wanted, or a library that is missing.
    """
    if wanted == Wanted():
        raise ConfigError(
            "say what to write: --tensorboard DIR, --csv DIR, --wandb PROJECT, or several of them"
        )
    if every_s is not None and every_s <= 0:
        raise ConfigError(f"--every {every_s:g}: give seconds above 0")
    export = Export(_source(path, every_s is not None), wanted, follow=every_s is not None)
    try:
        trouble = _repeat(export, Path(path), every_s)
    finally:
        export.close()
    if trouble:
        _log.error("%s", trouble)
    said = f"{path}: {export.points:,} points, {export.rows:,} rows as CSV"
    Console(soft_wrap=True, highlight=False).print(said)
    return 1 if trouble else 0


def _repeat(export: Export, run: Path, every_s: float | None) -> str:
    try:
        while True:
            over = every_s is None or read_status(run)["status"] in OVER
            trouble = export.look(end=over)
            if over or every_s is None:
                return trouble
            time.sleep(every_s)
    except KeyboardInterrupt:
        return ""  # the run goes on


def _source(path: str, follow: bool) -> Path:
    """What to read: a run directory, which with `follow` may be yet to come, or a result file by itself."""
    given = Path(path)
    if given.is_file() and given.suffix == ".h5" and attempt_files(given) == [given]:
        return given
    return run_to_watch(path) if follow else find_run(path)


def _readable_heads(run: Path) -> list[AttemptHead]:
    """Of the attempts whose files can be read."""
    found = []
    for path in attempt_files(run):
        with contextlib.suppress(OSError):  # the follower says so
            found += read_heads(path)
    return found


def _began(head: AttemptHead) -> datetime:
    said = head.provenance.get("collected_at")
    return datetime.fromisoformat(said) if said else datetime.fromtimestamp(0, UTC)
