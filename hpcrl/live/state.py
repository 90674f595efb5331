"""What there is to know of a run at a glance, kept up to date by the rows that come."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable

import numpy as np

from hpcrl.live.curve import Curve
from hpcrl.storage.schema import CLOCK, Rows

WINDOW_S = 30.0
"""Of the run's time, over which speed and lag are taken."""
_RECENT_EPISODES = 100
_LAST_EVENTS = 5


class RunState:
    """Of bounded size, however long the run is. Begins anew when a new attempt takes rows back."""

    def __init__(self) -> None:
        """Nothing has come yet."""
        self.attempt = 0
        self.env_steps = 0
        self.updates = 0
        self.time_s = 0.0
        """of the last update, since its attempt's first env_step"""
        self.curve = Curve()
        """training return over env_steps"""
        self.returns: deque[float] = deque(maxlen=_RECENT_EPISODES)
        self.evaluation: tuple[int, list[float]] = (0, [])
        """update of the last one, and its returns"""
        self.events: deque[tuple[int, float, str, str]] = deque(maxlen=_LAST_EVENTS)
        """attempt, time_s, kind, text"""
        self.metrics: dict[str, float] = {}
        """the last value of each quantity that has no column"""
        self._window: deque[tuple[float, int, int, float, int]] = deque()
        """time_s, env_steps, and lag_min, lag_mean, lag_max of the last updates of this attempt"""
        self._timers: dict[tuple[str, int, str], float] = {}
        self._takers: dict[str, Callable[[Rows], None]] = {
            "updates": self._take_updates,
            "episodes": self._take_episodes,
            "evaluation": self._take_evaluation,
            "timers": self._take_timers,
            "events": self._take_events,
            "metrics": self._take_metrics,
        }

    @property
    def tables(self) -> list[str]:
        """Those that `take` takes rows of."""
        return list(self._takers)

    def take(self, table: str, rows: Rows) -> None:
        """Take in rows of a table, at least one, in their order."""
        self._begin(int(rows["attempt"][-1]))
        self._takers[table](rows)

    def _begin(self, attempt: int) -> None:
        if attempt > self.attempt:
            self.attempt, self.time_s = attempt, 0.0
            self._window.clear()
            self._timers.clear()

    def _take_updates(self, rows: Rows) -> None:
        self.env_steps, self.updates = int(rows["env_steps"][-1]), int(rows["update"][-1])
        own = rows[rows["attempt"] == self.attempt]
        self.time_s = float(own["time_s"][-1])
        recent = own[own["time_s"] >= self.time_s - WINDOW_S]
        names = ("time_s", "env_steps", "lag_min", "lag_mean", "lag_max")
        self._window.extend(zip(*(recent[name].tolist() for name in names), strict=True))
        while len(self._window) > 2 and self._window[0][0] < self.time_s - WINDOW_S:
            self._window.popleft()

    def _take_episodes(self, rows: Rows) -> None:
        self.curve.add(rows["env_steps"], rows["episode_return"])
        self.returns.extend(rows["episode_return"][-_RECENT_EPISODES:].tolist())

    def _take_evaluation(self, rows: Rows) -> None:
        update = int(rows["update"][-1])
        before = self.evaluation[1] if self.evaluation[0] == update else []
        self.evaluation = (update, [*before, *rows["episode_return"][rows["update"] == update].tolist()])

    def _take_timers(self, rows: Rows) -> None:
        # of files in which each hop has all that lies within it
        spent = np.where(np.isnan(rows["own_s"]), rows["seconds"], rows["own_s"])
        for row, seconds in zip(rows, spent.tolist(), strict=True):
            key = (row["role"].decode(), int(row["role_rank"]), row["hop"].decode())
            self._timers[key] = seconds

    def _take_events(self, rows: Rows) -> None:
        for row in rows[rows["kind"] != CLOCK.encode()][-_LAST_EVENTS:]:
            kind, text = (row[name].decode(errors="replace") for name in ("kind", "text"))
            self.events.append((int(row["attempt"]), float(row["time_s"]), kind, text))

    def _take_metrics(self, rows: Rows) -> None:
        for name, value in zip(rows["name"].tolist(), rows["value"].tolist(), strict=True):
            self.metrics[name.decode(errors="replace")] = value

    @property
    def env_steps_per_s(self) -> float | None:
        """Over the last WINDOW_S of the run's time; None before there are two updates."""
        if len(self._window) < 2:
            return None
        (first, before, *_), (last, after, *_) = self._window[0], self._window[-1]
        return (after - before) / (last - first) if last > first else None

    @property
    def lag(self) -> tuple[int, float, int] | None:
        """Smallest, mean and largest lag of these updates; None where it is not known."""
        known = [one for one in self._window if one[4] >= 0]
        if not known:
            return None
        mean = sum(one[3] for one in known) / len(known)
        return min(one[2] for one in known), mean, max(one[4] for one in known)

    def left_s(self, budget: int | None) -> float | None:
        """Seconds to the budget at the present speed; None where nobody knows."""
        speed = self.env_steps_per_s
        return max(budget - self.env_steps, 0) / speed if budget and speed else None

    @property
    def mean_return(self) -> float | None:
        """Of the last episodes; None without any, or where it is not finite."""
        mean = float(np.mean(self.returns)) if self.returns else math.nan
        return mean if math.isfinite(mean) else None

    def time_shares(self) -> dict[str, list[tuple[str, float]]]:
        """Role -> (hop, share of all that was timed, mean over its ranks), largest first; empty without any times."""
        roles: dict[str, dict[str, float]] = {}
        for (role, _, hop), seconds in self._timers.items():
            hops = roles.setdefault(role, {})
            hops[hop] = hops.get(hop, 0.0) + seconds
        return {
            role: sorted(((hop, s / sum(hops.values())) for hop, s in hops.items()), key=lambda one: -one[1])
            for role, hops in roles.items()
            if sum(hops.values()) > 0
        }
