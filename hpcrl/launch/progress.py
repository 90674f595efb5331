"""One line while the run goes on: env_steps, env_steps/s, updates, return, lag, time left."""

from __future__ import annotations

import math
import os
import time
from collections import deque
from datetime import timedelta

from rich.console import Console
from rich.live import Live
from rich.text import Text

from hpcrl.config import RunConfig
from hpcrl.launch.situation import look
from hpcrl.storage.schema import Rows

TTY_VARIABLE = "HPCRL_TTY_WIDTH"
"""Set by `hpcrl run` for the ranks it starts: the width of the terminal its output goes to."""


def make_console() -> Console:
    """A console that knows about the terminal even behind a launcher's pipe."""
    width = os.environ.get(TTY_VARIABLE, "")
    if width.isdigit():
        return Console(force_terminal=True, width=int(width))
    # Open MPI gives ranks a terminal of its own, which nobody looks at.
    return Console(force_terminal=False if look().in_world else None)


_RECENT_EPISODES = 100
_FEWEST_EPISODES = 20
"""Whose mean says something."""


class Progress:
    """Watches the rows that are written. Local to the writer."""

    def __init__(self, config: RunConfig, console: Console, env_steps: int = 0) -> None:
        """`env_steps`: what earlier attempts have trained on."""
        self._config = config
        self._console = console
        self._live = (
            Live(console=console, auto_refresh=False, transient=True) if console.is_terminal else None
        )
        self._returns: deque[float] = deque(maxlen=_RECENT_EPISODES)
        self._window: deque[tuple[float, int]] = deque(maxlen=8)
        self._last = 0.0
        self._start: float | None = None
        self.env_steps = self._first_env_steps = env_steps
        self.updates = 0
        self.wall_s = 0.0
        self._lag = ""

    def watch(self, table: str, rows: Rows) -> None:
        """Take in rows of any table; prints when the interval has passed."""
        if table == "episodes":
            self._returns.extend(rows["episode_return"].tolist())
        if table != "updates":
            return
        self.env_steps, self.updates = int(rows["env_steps"][-1]), int(rows["update"][-1])
        self.wall_s = float(rows["time_s"][-1])
        self._lag = f"{rows['lag_mean'][-1]:.1f}"
        now = time.perf_counter()
        if now - self._last >= self._config.log.progress_interval_s:
            self._last = now
            self._window.append((now, self.env_steps))
            self._show()

    @property
    def env_steps_per_s(self) -> float | None:
        """Over this attempt; None before there is any."""
        return (self.env_steps - self._first_env_steps) / self.wall_s if self.wall_s else None

    @property
    def score(self) -> float | None:
        """Mean return of the last episodes of this attempt; None before some have ended, or where it is not finite."""
        mean = sum(self._returns) / max(len(self._returns), 1)
        return mean if len(self._returns) >= _FEWEST_EPISODES and math.isfinite(mean) else None

    def line(self) -> str:
        """The line as text."""
        rate = self._rate()
        left = self._config.budget.env_steps - self.env_steps
        eta = str(timedelta(seconds=round(max(left, 0) / rate))) if rate else "?"
        mean = f"{sum(self._returns) / len(self._returns):.1f}" if self._returns else "-"
        share = 100 * min(self.env_steps / self._config.budget.env_steps, 1)
        return (
            f"{share:3.0f} %  env_steps {self.env_steps:,}  {rate:,.0f}/s  updates {self.updates:,}  "
            f"return {mean}  lag {self._lag}  left {eta}"
        )

    def _rate(self) -> float:
        if len(self._window) > 1:
            (first, before), (last, after) = self._window[0], self._window[-1]
            return (after - before) / max(last - first, 1e-9)
        return (self.env_steps - self._first_env_steps) / self.wall_s if self.wall_s > 0 else 0.0

    def _show(self) -> None:
        if self._live is None:
            self._console.print(self.line(), highlight=False, soft_wrap=True)
            return
        if not self._live.is_started:
            self._live.start()
        self._live.update(Text(self.line(), no_wrap=True), refresh=True)

    def close(self) -> None:
        """Take the line off a terminal."""
        if self._live is not None and self._live.is_started:
            self._live.stop()
