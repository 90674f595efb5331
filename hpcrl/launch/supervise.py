"""A light parent for every rank: it cannot be taken down by what kills the rank, so it can say what happened."""

from __future__ import annotations

import contextlib
import ctypes
import json
import mmap
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

from hpcrl.comm.signals import SIGNALS, SignalFlag
from hpcrl.config import ExitCode
from hpcrl.launch import aftermath, watchdog
from hpcrl.launch.orphans import Orphans
from hpcrl.launch.output import wait_until_read

_STATIC, _PROGRESS, _BEATS, _DONE = 0, 3072, 4080, 4095
_PR_SET_PDEATHSIG = 1
_RANK_0_SPEAKS_S = 10.0
"""Under srun the others wait so long for its refusal at most: srun ends them when it has left."""
_NOTE_S = 10.0
"""For the note in the run directory: the file system may be what the rank hangs at."""


class Board:
    """A page shared by a rank and its supervisor: who the rank is and how far it has come."""

    def __init__(self) -> None:
        self._page = mmap.mmap(-1, 4096)
        self._beats = memoryview(self._page)[_BEATS : _BEATS + 8].cast("Q")

    def identify(self, **who: Any) -> None:
        """Write role, rank and run directory."""
        text = json.dumps(who).encode()[: _PROGRESS - _STATIC - 1]
        self._page[_STATIC : _STATIC + len(text) + 1] = text + b"\0"

    def report(self, progress: str) -> None:
        """Write the last progress."""
        text = progress.encode()[: _BEATS - _PROGRESS - 1]
        self._page[_PROGRESS : _PROGRESS + len(text) + 1] = text + b"\0"

    def begin(self) -> None:
        """Start-up is over: from here on the rank beats."""
        self._beats[0] = 1

    def beat(self) -> None:
        """A sign of life; nothing before `begin`."""
        if self._beats[0]:
            self._beats[0] += 1

    @property
    def beats(self) -> int:
        """Signs of life so far; 0 before `begin`."""
        return self._beats[0]

    def done(self) -> None:
        """The rank has said all there is to say; its exit code is its own."""
        self._page[_DONE] = 1

    @property
    def is_done(self) -> bool:
        """Whether `done` was called."""
        return self._page[_DONE] == 1

    def who(self) -> dict[str, Any]:
        """What `identify` wrote, {} before."""
        text = bytes(self._page[_STATIC:_PROGRESS]).split(b"\0")[0]
        try:
            values: dict[str, Any] = json.loads(text) if text else {}
        except ValueError:
            return {}
        return values

    def progress(self) -> str:
        """What `report` wrote last."""
        return bytes(self._page[_PROGRESS:_BEATS]).split(b"\0")[0].decode(errors="replace")

    def line(self, cause: str) -> str:
        """The one line that names role, rank, cause and last progress."""
        who = self.who()
        name = "rank (during start-up)"
        if "role" in who:
            name = f"{who['role']} {who['role_rank']} (rank {who['rank']} on {who['node']})"
        elif "rank" in who:
            name = f"rank {who['rank']} (during start-up on {who['node']})"
        last = f"; last progress: {self.progress()}" if self.progress() else ""
        words = f"hpcrl: {name} {cause}{last}".split()  # what HDF5 says of a full disk has several lines
        return " ".join(words)

    @property
    def is_mortal(self) -> bool:
        """Whether the run goes on when this rank dies."""
        return bool(self.who().get("mortal", False))

    @property
    def run_dir(self) -> Path | None:
        """The run directory, once there is one."""
        path = self.who().get("run_dir")
        return Path(path) if path else None


def supervised(
    body: Callable[[Board], int],
    flag: SignalFlag,
    stall_timeout_s: float | None = None,
    overdue: str | None = None,
    *,
    names_the_dead: bool = True,
    others_go_on: bool = False,
) -> int:
    """Run `body` in a child process and return the exit code of the rank. Local.

    Must be called before MPI, torch or threads exist. Signals are passed on, also one that `flag` shows already; the
    child dies with its parent. When the child is killed, or ends without `Board.done`, one line names it and the code
    is RANK_FAILED; so it is when the child does not beat for `stall_timeout_s`, which ends it (None: never). `overdue`:
    what is then said instead of the usual, without stacks. A child that only ended because another rank is gone is not
    named. Processes that the child leaves behind are ended too. Without `names_the_dead` a death is passed on without a
    word, as ERROR.

    `others_go_on`: the launcher ends nobody else when a rank dies, but tells them. A rank without which the run goes on
    (`Board.identify(mortal=True)`) leaves with FINISHED then.
    """
    board = Board()
    orphans = Orphans()
    sys.stdout.flush()
    sys.stderr.flush()
    child = os.fork()
    if child == 0:
        end_with_parent(signal.SIGKILL)
        watchdog.show_stacks_when_asked()
        code = int(ExitCode.ERROR)
        try:
            code = body(board)
        except BaseException as error:  # also SystemExit: leaving is this function's business
            if not board.is_done:  # after MPI's Abort, which may return, all has been said
                traceback.print_exc()
                announce_failure(board, f"failed: {type(error).__name__}: {error}")
                board.done()
            code = int(ExitCode.RANK_FAILED)
        finally:
            with contextlib.suppress(Exception):
                sys.stdout.flush()
                sys.stderr.flush()
            os._exit(code)
    told: dict[int, float] = {}
    pass_on = _pass_on(child, told)
    for number in SIGNALS:
        signal.signal(number, pass_on)
    if flag.received is not None:
        pass_on(signal.Signals[flag.received], None)

    def given_up() -> bool:
        orphans.reap(child)
        return aftermath.nothing_to_end(board.run_dir, told)

    status = watchdog.wait(child, lambda: board.beats, stall_timeout_s, given_up)
    if status is None:
        _end_stalled(child, board, stall_timeout_s, overdue)
    elif os.WIFEXITED(status) and board.is_done:
        orphans.end()
        return os.WEXITSTATUS(status)
    elif not names_the_dead:
        orphans.end()
        return int(ExitCode.ERROR)
    elif os.WIFEXITED(status):
        _announce_death(board, f"ended without a word, exit status {os.WEXITSTATUS(status)}")
    elif not aftermath.follows_from_another(board.run_dir, os.WTERMSIG(status), told):
        _announce_death(board, f"was killed by {_signal_name(os.WTERMSIG(status))}")
    orphans.end()
    return _code_after_death(board, others_go_on=others_go_on)


def announce_failure(board: Board, cause: str) -> None:
    """Print the line and note it in the run directory."""
    line = board.line(cause)
    sys.stderr.write(line + "\n")
    sys.stderr.flush()
    if board.run_dir is not None:
        from hpcrl.storage.rundir import mark_failed

        with contextlib.suppress(OSError):
            mark_failed(board.run_dir, int(ExitCode.RANK_FAILED), line.removeprefix("hpcrl: "))


def _announce_death(board: Board, cause: str) -> None:
    if board.is_mortal:
        sys.stderr.write(f"{board.line(cause)}; the others go on (faults.actor_death=continue)\n")
        sys.stderr.flush()
    else:
        announce_failure(board, cause)


def _code_after_death(board: Board, *, others_go_on: bool) -> int:
    """What this process leaves with."""
    if board.is_mortal:
        return int(ExitCode.FINISHED)  # the launcher is not to see a failure
    if others_go_on:
        if "mortal" not in board.who():  # they may be in MPI's own start, where nothing tells them
            os.kill(os.getppid(), signal.SIGTERM)
        # Open MPI's launcher tells them of one that left with 0 or was killed, not of one that left with another code
        os.kill(os.getpid(), signal.SIGKILL)
    return int(ExitCode.RANK_FAILED)


def leave(code: int, *, all_ranks_leave: bool = False) -> int:
    """The exit code for this process, made to reach the user through the launcher.

    Hydra kills the other ranks as soon as one exits with a code other than 0, or without the `finalize` of its
    protocol (PMI-1), and then reports the code of a killed one. MPICH sends `finalize` only in the exit handlers
    of the C library, which the rank skips (threads of an environment may hang there). So the launcher is told here,
    through the connection that every process inherits.

    `srun --kill-on-bad-exit` ends the others as well, but in order: by SIGTERM, after which they leave with codes of
    their own. Where all refuse to start, rank 0 must have said why before that.
    """
    if "SLURM_STEP_ID" in os.environ and "PMI_HOSTNAME" not in os.environ:
        if code == ExitCode.BAD_CONFIGURATION and os.environ.get("SLURM_PROCID", "0") != "0":
            signal.signal(signal.SIGTERM, lambda number, frame: os._exit(code))
            time.sleep(_RANK_0_SPEAKS_S)
        # a handler of Python's would be gone before the process is
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        return code
    descriptor = os.environ.get("PMI_FD", "")
    if not descriptor.isdigit() or "PMI_HOSTNAME" not in os.environ:
        return code
    if code == 0:
        with contextlib.suppress(OSError):
            os.write(int(descriptor), b"cmd=finalize\n")
            os.read(int(descriptor), 1024)  # the acknowledgment
        return code
    if all_ranks_leave and os.environ.get("PMI_RANK", "0") != "0":
        time.sleep(2.0)  # rank 0 speaks for all
        return code
    wait_until_read()
    with contextlib.suppress(OSError):
        os.write(int(descriptor), f"cmd=abort exitcode={code}\n".encode())
        time.sleep(5.0)  # the launcher ends this process
    return code


def end_with_parent(number: signal.Signals) -> None:
    """Have this process sent a signal when its parent dies (Linux; else no effect)."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, number)


def _end_stalled(child: int, board: Board, limit_s: float | None, overdue: str | None) -> None:
    cause = overdue or f"has made no progress for {limit_s:g} s (faults.stall_timeout_s)"
    cause += watchdog.state(child)
    if overdue is None:
        watchdog.show_stacks(child)
    watchdog.kill(child)
    watchdog.within(_NOTE_S, lambda: _announce_death(board, cause))


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # most real-time signals have none
        return f"signal {number}"


def _pass_on(child: int, told: dict[int, float]) -> Callable[[int, FrameType | None], None]:
    def handler(number: int, frame: FrameType | None) -> None:
        told.setdefault(number, time.monotonic())
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, number)

    return handler
