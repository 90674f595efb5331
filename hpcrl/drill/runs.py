"""Runs that a drill has started, and what it sees of them and does to them from outside.

All of it is Local to the drill's process, which is no rank. Every process of a run carries a token in its environment:
so what is left of it is found, whatever started it.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from hpcrl.launch.supervise import end_with_parent
from hpcrl.storage import attempt_files, checkpoint, read_table

TOKEN = "HPCRL_DRILL"
_POLL_S = 0.02
_PATIENCE_S = 180.0
"""For what a healthy run does some time: its first updates, a checkpoint, an end in order."""
_LAST_LINES = 3


class NotHeldError(Exception):
    """A protection did not hold; the message says what was seen instead."""


class NotTriedError(Exception):
    """An exercise that cannot be done here; the message says why."""


@dataclass(frozen=True, slots=True)
class Rank:
    """One process of a run on this host."""

    role: str
    """Its first one, where it has several."""
    role_rank: int
    world_rank: int
    pid: int

    def __str__(self) -> str:
        return f"{self.role} {self.role_rank} (rank {self.world_rank})"


@dataclass(frozen=True, slots=True)
class Ended:
    """How a run ended."""

    code: int
    stdout: str
    stderr: str

    @property
    def last_words(self) -> str:
        """What hpcrl itself said about the end, else the last lines of all."""
        lines = [line for line in self.stderr.splitlines() if line.strip()]
        named = [line for line in lines if line.startswith("hpcrl: ")]
        return " / ".join(named or lines[-_LAST_LINES:]) or "nothing"


class DrilledRun:
    """One attempt of a run under way; `close` it, whatever happens."""

    def __init__(self, command: Sequence[str], run_dir: Path, output: Path) -> None:
        """Start `command`, whose result goes to `run_dir`; what it prints goes to `output`.out and `output`.err."""
        self.run_dir = run_dir
        self._earlier = len(attempt_files(run_dir))
        self._token = uuid.uuid4().hex
        self._out, self._err = output.with_suffix(".out"), output.with_suffix(".err")
        with self._out.open("w") as out, self._err.open("w") as err:
            self._process = subprocess.Popen(
                command,
                env={**os.environ, TOKEN: self._token},
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                start_new_session=True,
                preexec_fn=lambda: end_with_parent(signal.SIGINT),  # noqa: PLW1509 - no threads here
            )

    def ranks(self) -> list[Rank]:
        """Processes of ranks on this host, by world rank."""
        own = processes_with(self._token)
        found: dict[int, Rank] = {}
        for row in read_table(self.run_dir, "ranks"):
            pid = int(row["pid"])
            if pid in own and row["node"].decode() == socket.gethostname():
                rank = Rank(row["role"].decode(), int(row["role_rank"]), int(row["world_rank"]), pid)
                found.setdefault(pid, rank)
        return sorted(found.values(), key=lambda rank: rank.world_rank)

    def one_of_each_role(self) -> list[Rank]:
        """The first rank of each role on this host. Raises NotTriedError when there is none."""
        found: dict[str, Rank] = {}
        for rank in self.ranks():
            found.setdefault(rank.role, rank)
        if not found:
            raise NotTriedError(f"no rank of the run is on this host, {socket.gethostname()}")
        return list(found.values())

    def root(self) -> Rank:
        """Learner 0 or worker 0, which completes checkpoints. Raises NotTriedError when it is elsewhere."""
        for row in read_table(self.run_dir, "ranks"):
            if row["role"].decode() in ("learner", "worker") and row["role_rank"] == 0:
                for rank in self.ranks():
                    if rank.pid == row["pid"]:
                        return rank
        raise NotTriedError(
            f"the rank that completes checkpoints is not on this host, {socket.gethostname()}"
        )

    def updates(self) -> int:
        """Updates of this attempt so far, as a reader of its result file sees them."""
        return int((read_table(self.run_dir, "updates")["attempt"] > self._earlier).sum())

    def until(self, ready: Callable[[], bool], what: str, poll_s: float = _POLL_S) -> None:
        """Wait for `ready()`. Raises NotHeldError when the run ends before, or after a long time."""
        deadline = time.monotonic() + _PATIENCE_S
        while not ready():
            if self._process.poll() is not None:
                ended = self.wait("the end")
                raise NotHeldError(f"ended with exit code {ended.code} before {what}: {ended.last_words}")
            if time.monotonic() > deadline:
                raise NotHeldError(f"no sign of {what} within {_PATIENCE_S:g} s")
            time.sleep(poll_s)

    def until_working(self, *, updates: int = 2, checkpoints: int = 1) -> None:
        """Wait until this attempt has made so many updates and so many checkpoints lie there."""

        def ready() -> bool:
            saved = len(checkpoint.find_sets(self.run_dir)) >= checkpoints
            return saved and self.updates() >= updates

        self.until(ready, f"{updates} updates and {checkpoints} checkpoints")

    def wait(self, what: str, limit_s: float = _PATIENCE_S) -> Ended:
        """Wait for the end. Raises NotHeldError when it does not come in time."""
        try:
            code = self._process.wait(limit_s)
        except subprocess.TimeoutExpired:
            raise NotHeldError(f"still running {limit_s:g} s after {what}") from None
        return Ended(code, self._out.read_text(), self._err.read_text())

    def check_gone(self, within_s: float) -> None:
        """Raise NotHeldError when processes of the run are alive after `within_s`."""
        deadline = time.monotonic() + within_s
        while left := processes_with(self._token):
            if time.monotonic() > deadline:
                raise NotHeldError(
                    f"left running: {', '.join(f'{pid} ({name})' for pid, name in left.items())}"
                )
            time.sleep(_POLL_S)

    def close(self) -> None:
        """Kill whatever is left of the run."""
        while left := processes_with(self._token):
            for pid in left:
                send(pid, signal.SIGKILL)
            time.sleep(_POLL_S)
        self._process.wait()


def send(pid: int, number: signal.Signals) -> None:
    """Send a signal to a process, if it is still there."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def parent_of(pid: int) -> int:
    """Process number of a process's parent."""
    return int(_stat(pid)[1])


def stop(pid: int, within_s: float = 5.0) -> None:
    """Have a process not run on until SIGCONT comes; returns when it does not."""
    send(pid, signal.SIGSTOP)
    deadline = time.monotonic() + within_s
    with contextlib.suppress(OSError):
        while _stat(pid)[0] not in "TtZX" and time.monotonic() < deadline:
            time.sleep(0.001)


def processes_with(token: str) -> dict[int, str]:
    """Processes, zombies left out, whose environment holds the token: their numbers and names."""
    found = {}
    for path in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if token.encode() in (path / "environ").read_bytes():
                found[int(path.name)] = (path / "cmdline").read_bytes().replace(b"\0", b" ").decode()
    return found


def _stat(pid: int) -> list[str]:
    """State, parent and more, from the fields of /proc/PID/stat behind the name. Raises OSError without the process."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
