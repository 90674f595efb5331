"""The writer rank's own: rows on their way into the result file, and who is told when they are there."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection
from contextlib import nullcontext

from hpcrl.config.hops import Timed
from hpcrl.roles.records import Sink, table_row
from hpcrl.storage.health import ActorWatch
from hpcrl.storage.runlog import RunLog
from hpcrl.storage.schema import Rows

_log = logging.getLogger(__name__)


class Marks:
    """On the writer: brings rows to disk once all have marked that a checkpoint's have been sent. Local."""

    def __init__(self, ranks: Collection[int], flush: Callable[[], bool], tell: Callable[[int], None]):
        """ranks: of the world, that are to mark. `tell` is called with a mark's number when all before is on disk.

        `flush` says whether everything is; where it is not, `poll` asks again.
        """
        self._ranks, self._flush, self._tell = set(ranks), flush, tell
        self._missing: dict[int, set[int]] = {}
        self._due: list[int] = []

    def take(self, rank: int, number: int) -> None:
        """`rank` has marked."""
        missing = self._missing.setdefault(number, set(self._ranks))
        missing.discard(rank)
        if not missing:
            del self._missing[number]
            self._due.append(number)
            self._answer(self._flush())

    def poll(self, written: bool) -> None:
        """`written`: everything has just been brought to disk."""
        self._answer(written)

    def _answer(self, written: bool) -> None:
        while written and self._due:
            self._tell(self._due.pop(0))


class ResultWriter:
    """Rank-local owner of the result file and of what a person watches. Never a learner in its compute."""

    def __init__(
        self,
        runlog: RunLog,
        watch: Sink,
        env_steps: int = 0,
        acting: str = "actor",
        timed: Timed = nullcontext,
    ) -> None:
        """`watch` sees every row as it is written (the progress line). `env_steps`: trained on by earlier attempts.

        `acting`: the role of those that step environments; one whose returns are odd becomes an event. `timed`: around
        what is done here.
        """
        self._timed = timed
        self._acting, self._actors = acting, ActorWatch()
        self._runlog = runlog
        runlog.tell = self._tell
        self._watch = watch
        self._env_steps = env_steps
        self._start = time.perf_counter()

    @property
    def elapsed_s(self) -> float:
        """Seconds since this attempt began."""
        return time.perf_counter() - self._start

    def start_clock(self) -> None:
        """Training begins now."""
        self._start = time.perf_counter()

    def add(self, table: str, rows: Rows) -> None:
        """Write rows; the writer's clock and trained env_steps are filled in where senders cannot know them."""
        with self._timed("records.write"):
            self._add(table, rows)
        self.poll()

    def _add(self, table: str, rows: Rows) -> None:
        rows = rows.copy()
        names = rows.dtype.names or ()
        if "time_s" in names:
            rows["time_s"] = self.elapsed_s
        if table == "updates":
            self._env_steps = int(rows["env_steps"][-1])
        elif table == "episodes":
            rows["env_steps"] = self._env_steps
        self._runlog.append(table, rows)
        self._watch(table, rows)
        for odd in self._actors.add(rows) if table == "episodes" else ():
            _log.warning("%s", odd)
            text = str(odd)
            event = table_row(
                "events", kind="odd_actor", role=self._acting, role_rank=odd.actor, world_rank=-1, text=text
            )
            self._add("events", event)

    def poll(self) -> bool:
        """Bring rows to disk when their time has come, also while none are added; whether all are there now.

        Raises ResultsLost when the disk has refused for too long.
        """
        return self._runlog.due and self.flush()

    def flush(self) -> bool:
        """Bring every row to disk now; whether they are there. Raises as `poll`."""
        with self._timed("records.write"):
            return self._runlog.flush()

    def close(self) -> None:
        """Bring everything to disk, and close the file."""
        self._runlog.close()

    def _tell(self, kind: str, text: str) -> None:
        """Of the disk: a line for people, and an event, which waits like all rows."""
        _log.warning("%s", text)
        row = table_row("events", kind=kind, role="root", role_rank=0, world_rank=-1, text=text)
        row["time_s"] = self.elapsed_s
        self._runlog.append("events", row)
