"""A run as series of numbers over env_steps, for tools that draw such."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from hpcrl.storage.schema import CLOCK, TABLES, Rows

LEFT_OUT = ("update", "env_steps", "time_s", "parameter_version", "rows_checksum")
"""Columns of `updates` that are no series: what the others are drawn over, and what only programs read."""

_KNOWN = ["update", "env_steps", "time_s"]


class Point(NamedTuple):
    """One number of one series."""

    series: str
    """as in updates/policy_loss"""
    attempt: int
    env_steps: int
    time: float
    """seconds since the epoch"""
    value: float
    """finite"""


Maker = Callable[[Rows, int, Rows], Iterator[Point]]
"""Points of rows of an attempt and of what is known of its updates."""


class Series:
    """Turns rows, as `Follower` gives them, into points; what still lacks its update waits for it."""

    TABLES = ("events", "updates", "episodes", "evaluation", "metrics")
    """Whose rows `take` wants, in this order."""

    def __init__(self, began: Mapping[int, datetime]) -> None:
        """`began`: when each attempt was started. By it times are right to some seconds where the run does not say."""
        self._zero = {attempt: when.timestamp() for attempt, when in began.items()}
        self._newest = 0
        self._updates: dict[int, list[Rows]] = {}
        self._makers: dict[str, tuple[str, Maker]] = {
            "episodes": ("env_steps", self._of_episodes),
            "evaluation": ("update", self._of_evaluation),
            "metrics": ("update", self._of_metrics),
        }
        self._waiting: dict[str, list[Rows]] = {table: [] for table in self._makers}

    def take(self, table: str, rows: Rows) -> Iterator[Point]:
        """The points that rows of a table make, at once where they can."""
        self._newest = max(self._newest, int(rows["attempt"].max()))
        if table == "events":
            for row in rows[rows["kind"] == CLOCK.encode()]:
                self._zero[int(row["attempt"])] = datetime.fromisoformat(row["text"].decode()).timestamp()
        elif table == "updates":
            for attempt in np.unique(rows["attempt"]):
                own = rows[rows["attempt"] == attempt]
                self._updates.setdefault(int(attempt), []).append(own[_KNOWN])
                yield from self._of_updates(own, int(attempt))
        else:
            self._waiting[table].append(rows)
            yield from self._settle(table, more=True)

    def settle(self, *, end: bool = False) -> Iterator[Point]:
        """Points of what has waited, as far as its updates are there; with `end`, of all that ever can be.

        To be called when a look has brought all its rows.
        """
        for table in self._waiting:
            yield from self._settle(table, end=end)

    def _settle(self, table: str, *, end: bool = False, more: bool = False) -> Iterator[Point]:
        """`more`: rows that belong to the last ones may follow at once."""
        if not self._waiting[table]:
            return
        column, of = self._makers[table]
        rows = np.concatenate(self._waiting[table])
        ready = np.zeros(len(rows), bool)
        for attempt in np.unique(rows["attempt"]).tolist():
            known = self._known(attempt)
            newest = np.max(known[column], initial=0)
            # in the time of an update more episodes may end; of it itself nothing more comes
            own = rows[column] < newest if table == "episodes" else rows[column] <= newest
            if end or attempt < self._newest:
                own |= table != "metrics"
            if more and attempt == rows["attempt"][-1]:
                own &= rows[column] < rows[column][-1]
            own &= rows["attempt"] == attempt
            ready |= own
            yield from of(rows[own], attempt, known)
        self._waiting[table] = [] if ready.all() else [rows[~ready]]

    def _known(self, attempt: int) -> Rows:
        """Update, env_steps and time_s of the attempt's updates, in one piece from now on."""
        parts = self._updates.setdefault(attempt, [])
        if len(parts) != 1:
            parts[:] = [np.concatenate([TABLES["updates"].empty()[_KNOWN], *parts])]
        return parts[0]

    def _point(self, series: str, attempt: int, env_steps: int, time_s: float, value: float) -> Point:
        return Point(
            series, attempt, int(env_steps), self._zero.get(attempt, 0.0) + float(time_s), float(value)
        )

    def _of_updates(self, rows: Rows, attempt: int) -> Iterator[Point]:
        steps, times = rows["env_steps"].tolist(), rows["time_s"].tolist()
        for column in TABLES["updates"].columns:
            if column.name in LEFT_OUT:
                continue
            values = rows[column.name].astype(np.float64)
            known = np.isfinite(values)
            if column.dtype.startswith("i"):
                known &= rows[column.name] != -1  # stands for not known
            for place in np.flatnonzero(known).tolist():
                yield self._point(
                    f"updates/{column.name}", attempt, steps[place], times[place], values[place]
                )

    def _of_episodes(self, rows: Rows, attempt: int, known: Rows) -> Iterator[Point]:
        for env_steps, group in _groups(rows, "env_steps"):
            for name in ("return", "length"):
                value = float(group[f"episode_{name}"].mean())
                if math.isfinite(value):
                    time_s = group["time_s"].max()
                    yield self._point(f"episodes/{name}", attempt, env_steps, time_s, value)

    def _of_evaluation(self, rows: Rows, attempt: int, known: Rows) -> Iterator[Point]:
        for update, group in _groups(rows, "update"):
            time_s = _at(known, update)["time_s"]
            for name in ("return", "length"):
                value = float(group[f"episode_{name}"].mean())
                if math.isfinite(value):
                    env_steps = group["env_steps"][-1]
                    yield self._point(f"evaluation/{name}", attempt, env_steps, time_s, value)

    def _of_metrics(self, rows: Rows, attempt: int, known: Rows) -> Iterator[Point]:
        for row in rows[np.isfinite(rows["value"])]:
            update, name = _at(known, row["update"]), row["name"].decode(errors="replace")
            yield self._point(f"metrics/{name}", attempt, update["env_steps"], update["time_s"], row["value"])


def _groups(rows: Rows, column: str) -> Iterator[tuple[int, Rows]]:
    """Rows that have the same value in a column, which does not fall."""
    starts = np.flatnonzero(np.diff(rows[column], prepend=rows[column][:1] - 1)).tolist()
    for first, end in pairwise([*starts, len(rows)]):
        yield int(rows[column][first]), rows[first:end]


def _at(known: Rows, update: Any) -> Any:
    """The row of an update, or the last one before it; zeros where the attempt had made none."""
    place = int(np.searchsorted(known["update"], update, side="right")) - 1
    return known[place] if place >= 0 else np.zeros(1, known.dtype)[0]
