"""`hpcrl watch`: a run on the terminal, as it goes on."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from rich.console import Console
from rich.live import Live

from hpcrl.config import ConfigError
from hpcrl.live.state import RunState
from hpcrl.live.view import View, newest_checkpoint
from hpcrl.storage.files import read_json
from hpcrl.storage.following import Follower
from hpcrl.storage.rundir import read_status
from hpcrl.storage.summary import find_run

OVER = ("finished", "stopped", "failed", "killed")
"""How a run, or this attempt of it, may stand when nothing more comes."""


class Watch:
    """Looks at a run again and again; reads only what has come since."""

    def __init__(self, run: Path) -> None:
        """`run`: its directory, which need not exist yet."""
        self.run = run
        self._state = RunState()
        self._follower = Follower(run, self._state.tables)
        self._last_rows: float | None = None

    def look(self) -> View:
        """The run as it is now."""
        # First: of a run that has ended, everything is in the file by the time that it says so.
        status = read_status(self.run)
        if self._follower.look():
            self._state = RunState()
        for table, rows in self._follower.rows():
            self._state.take(table, rows)
            self._last_rows = time.perf_counter()
        quiet_s = None if self._last_rows is None else time.perf_counter() - self._last_rows
        return View(
            run=self.run,
            state=self._state,
            config=read_json(self.run / "config.json") or {},
            status=status,
            checkpoint=newest_checkpoint(self.run),
            quiet_s=quiet_s,
            trouble=self._follower.trouble,
        )


def run_to_watch(path: str) -> Path:
    """The run directory that `path` names; one that is not there yet, or empty, may become one.

    Raises ConfigError for what can never be a run.
    """
    given = Path(path)
    if not given.exists() or (given.is_dir() and not any(given.iterdir())):
        return given
    return find_run(given)


def ended(view: View, *, stay: bool) -> bool:
    """Whether there is nothing more to wait for. Pure. `stay`: a run that can go on may have another attempt."""
    return view.status["status"] in (("finished",) if stay else OVER)


def watch_command(path: str, every_s: float, *, once: bool, stay: bool) -> int:
    """Show the run until it ends or Ctrl-C; 0. Raises ConfigError for what is no run, or with `once` is not there."""
    if every_s <= 0:
        raise ConfigError(f"--every {every_s:g}: give seconds above 0")
    console = Console(highlight=False)
    watch = Watch(find_run(path) if once else run_to_watch(path))
    with suppress(KeyboardInterrupt):  # the run goes on
        if once:
            console.print(watch.look())
        elif console.is_terminal:
            _on_screen(watch, console, every_s, stay=stay)
        else:
            _as_lines(watch, console, every_s, stay=stay)
    return 0


def _on_screen(watch: Watch, console: Console, every_s: float, *, stay: bool) -> None:
    with Live(console=console, auto_refresh=False) as live:
        _repeat(watch, lambda view: live.update(view, refresh=True), every_s, stay=stay)


def _as_lines(watch: Watch, console: Console, every_s: float, *, stay: bool) -> None:
    last = ""

    def show(view: View) -> None:
        nonlocal last
        if (line := view.line()) != last:
            console.print(line, soft_wrap=True, markup=False)
            last = line

    _repeat(watch, show, every_s, stay=stay)


def _repeat(watch: Watch, show: Callable[[View], None], every_s: float, *, stay: bool) -> None:
    due = time.perf_counter()
    while True:
        view = watch.look()
        show(view)
        if ended(view, stay=stay):
            return
        now = time.perf_counter()
        due = max(due + every_s, now)  # a look that took longer is not made up for
        time.sleep(due - now)
