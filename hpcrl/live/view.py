"""What a terminal shows of a run that goes on."""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from hpcrl.live.curve import sparkline
from hpcrl.live.state import WINDOW_S, RunState
from hpcrl.storage.checkpoint import find_sets
from hpcrl.storage.summary import STATUS_STYLES

_MOST_HOPS = 4
_MOST_METRICS = 6
_LONGEST_CURVE = 60
_LABEL_WIDTH = 16


@dataclass(frozen=True, slots=True)
class View:
    """One look at a run."""

    run: Path
    state: RunState
    config: dict[str, Any]
    """of config.json; empty where there is none yet"""
    status: dict[str, Any]
    """as `read_status` gives it"""
    checkpoint: tuple[int, float] | None
    """update of the newest and its age in s"""
    quiet_s: float | None
    """since rows came last; None before any"""
    trouble: str
    """what could not be read; empty where everything could"""

    @property
    def budget(self) -> int | None:
        """env_steps; None where it is not known."""
        return (self.config.get("budget") or {}).get("env_steps")

    def line(self) -> str:
        """All of it on one line, for a pipe."""
        state, budget = self.state, self.budget
        if not state.updates:
            return f"{self.status['status']}: {self._waiting()}"
        parts = [
            self.status["status"],
            f"{100 * min(state.env_steps / budget, 1):.0f} %" if budget else "",
            f"env_steps {state.env_steps:,}",
            _speed(state),
            f"updates {state.updates:,}",
            f"return {_number(state.mean_return)}",
            f"lag {state.lag[1]:.1f}" if state.lag else "",
            f"left {_duration(state.left_s(budget))}" if self.status["status"] == "running" else "",
            f"attempt {state.attempt}" if state.attempt > 1 else "",
            self.trouble,
        ]
        return "  ".join(part for part in parts if part)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """The same on a screen."""
        status = self.status["status"]
        head = Text.assemble((self.config.get("name") or str(self.run), "bold"), "  ")
        head.append(status, STATUS_STYLES.get(status, "bold red" if self.state.attempt else "bold cyan"))
        if self.state.attempt > 1:
            head.append(f"  attempt {self.state.attempt}")
        if self.status.get("cause"):
            head.append(f": {self.status['cause']}")
        grid = Table.grid(padding=(0, 2))
        grid.add_column(style="dim", no_wrap=True, width=_LABEL_WIDTH)
        grid.add_column(overflow="fold")
        rows = self._rows(options.max_width - _LABEL_WIDTH - 2) if self.state.updates else []
        for label, shown in rows or [("", Text(self._waiting()))]:
            grid.add_row(label, shown)
        for attempt, time_s, kind, text in self.state.events:
            when = f"{attempt}: " if self.state.attempt > 1 else ""
            grid.add_row("event", Text(f"{when}{time_s:.1f} s  {kind}  {text}".rstrip()))
        if self.trouble:
            grid.add_row("trouble", Text(self.trouble, "red"))
        yield Group(head, grid)

    def _rows(self, width: int) -> list[tuple[str, RenderableType]]:
        state, budget = self.state, self.budget
        rows: list[tuple[str, RenderableType]] = []
        if budget:
            rows.append(("", ProgressBar(budget, min(state.env_steps, budget), min(width, _LONGEST_CURVE))))
        of = f" of {budget:,} ({100 * state.env_steps / budget:.1f} %)" if budget else ""
        left = f", {_duration(state.left_s(budget))} left" if self.status["status"] == "running" else ""
        rows += [
            ("env_steps", Text(f"{state.env_steps:,}{of}{left}")),
            ("updates", Text(f"{state.updates:,} in {_duration(state.time_s)}{self._quiet()}")),
            ("speed", Text(f"{_speed(state)} over the last {_duration(min(WINDOW_S, state.time_s))}")),
            *self._returns(min(width, _LONGEST_CURVE)),
            ("lag", Text(self._lag())),
        ]
        for role, shares in state.time_shares().items():
            text = ", ".join(f"{hop} {100 * share:.0f} %" for hop, share in shares[:_MOST_HOPS])
            rows.append((f"time, {role}", Text(text)))
        if state.metrics:
            named = list(state.metrics.items())[:_MOST_METRICS]
            rows.append(("metrics", Text(", ".join(f"{name} {value:.4g}" for name, value in named))))
        rows.append(("checkpoint", Text(self._checkpoint())))
        return rows

    def _returns(self, width: int) -> list[tuple[str, RenderableType]]:
        state = self.state
        if not state.returns:
            return [("training return", Text("no episode has ended"))]
        curve = state.curve.means(width)
        finite = [value for value in curve if math.isfinite(value)]
        said = f"{_number(state.mean_return)}, mean of the last {len(state.returns)} episodes"
        if finite:
            said += f"; {min(finite):.4g} to {max(finite):.4g} in the curve"
        rows: list[tuple[str, RenderableType]] = [
            ("training return", Text(said)),
            ("", Text(sparkline(curve), "cyan")),
        ]
        update, evaluated = state.evaluation
        if evaluated:
            mean = sum(evaluated) / len(evaluated)
            rows.append(("evaluation", Text(f"{mean:.4g} over {len(evaluated)} episodes, update {update:,}")))
        return rows

    def _lag(self) -> str:
        if self.state.lag is None:
            return "none recorded"
        low, mean, high = self.state.lag
        text = f"{low} to {high} updates, mean {mean:.2f}"
        bounded = self.config.get("scheme") == "pipeline" and "batch_size" not in self.config["algorithm"]
        return f"{text}; lag.max_lag={self.config['lag']['max_lag']}" if bounded else text

    def _checkpoint(self) -> str:
        if self.checkpoint is None:
            return "none yet"
        update, age_s = self.checkpoint
        return f"update {update:,}, {_duration(age_s)} ago"

    def _quiet(self) -> str:
        running = self.status["status"] == "running"
        return f"; rows came {self.quiet_s:.0f} s ago" if running and self.quiet_s is not None else ""

    def _waiting(self) -> str:
        if self.status["status"] == "running":
            return "no update yet"
        if self.status["status"] == "not started":
            return f"waiting for {self.run}; nothing has been written there yet"
        return f"{self.run} made no update"


def newest_checkpoint(run: Path) -> tuple[int, float] | None:
    """Update and age in s of the newest set; None without any."""
    for path in find_sets(run):
        try:
            written = (path / "manifest.json").stat().st_mtime
        except OSError:
            continue  # it has just been replaced
        return int(path.name), max(datetime.now(UTC).timestamp() - written, 0.0)
    return None


def _speed(state: RunState) -> str:
    return f"{state.env_steps_per_s:,.0f} env_steps/s" if state.env_steps_per_s else "? env_steps/s"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"


def _duration(seconds: float | None) -> str:
    return "?" if seconds is None else str(timedelta(seconds=round(seconds)))
