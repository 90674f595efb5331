"""A light parent for every rank: it cannot be taken down by what kills the rank, so it can say what happened."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable
from types import FrameType

from hpcrl.comm.signals import SIGNALS, SignalFlag
from hpcrl.config import ExitCode
from hpcrl.launch import aftermath, watchdog
from hpcrl.launch.board import Board
from hpcrl.launch.orphans import Orphans
from hpcrl.launch.output import wait_until_read
from hpcrl.launch.watchdog import Watch

_PR_SET_PDEATHSIG = 1
_RANK_0_SPEAKS_S = 10.0
"""Under srun the others wait so long for its refusal at most: srun ends them when it has left."""
_OTHERS_START_S = 1.0
"""Under srun rank 0 waits so long with its refusal: others may not yet hear signals, and would die of srun's."""
_CULPRIT_SPEAKS_S = 5.0
"""For the parent of a rank that others wait for in their start to name it and end the job."""
_NOTE_S = 10.0
"""For the note in the run directory: the file system may be what the rank hangs at."""


def supervised(
    body: Callable[[Board], int],
    flag: SignalFlag,
    stall_timeout_s: float | None = None,
    start_timeout_s: float | None = None,
    overdue: str | None = None,
    *,
    names_the_dead: bool = True,
    others_go_on: bool = False,
) -> int:
    """Run `body` in a child process and return the exit code of the rank. Local.

    Must be called before MPI, torch or threads exist. Signals are passed on, also one that `flag` shows already; the
    child dies with its parent. When the child is killed, or ends without `Board.done`, one line names it and the code
    is RANK_FAILED. So it is when the child is ended because it has not begun to beat after `start_timeout_s` (None: no
    limit), does not beat for `stall_timeout_s` or, on the run's writer, when nobody works for twice as long. `overdue`:
    what is then said instead of the usual, without stacks. A child that only ended because another rank is gone is not
    named. Processes that the child leaves behind are ended too. Without `names_the_dead` a death is passed on without a
    word, as ERROR.

    `others_go_on`: the launcher ends nobody else when a rank dies, but tells them. A rank without which the run goes on
    (`Board.identify(mortal=True)`) leaves with FINISHED then.
    """
    board = Board()
    board.enter("loading hpcrl")
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

    ended = watchdog.wait(child, _watches(board, stall_timeout_s, start_timeout_s), given_up)
    if isinstance(ended, Watch):
        _end_stalled(child, board, ended, overdue)
        orphans.end()
        return _code_after_death(board, others_go_on=others_go_on)
    status = ended
    if os.WIFEXITED(status) and board.is_done:
        orphans.end()
        return os.WEXITSTATUS(status)
    if not names_the_dead:
        orphans.end()
        return int(ExitCode.ERROR)
    if os.WIFEXITED(status):
        _announce_death(board, f"ended without a word, exit status {os.WEXITSTATUS(status)}")
    elif not aftermath.follows_from_another(board.run_dir, os.WTERMSIG(status), told):
        _announce_death(board, f"was killed by {_signal_name(os.WTERMSIG(status))}")
    orphans.end()
    return _code_after_death(board, others_go_on=others_go_on)


def announce_failure(board: Board, cause: str) -> None:
    """Print the line and note it in the run directory."""
    _announce(board, board.line(cause))


def _announce(board: Board, line: str) -> None:
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
        if code == ExitCode.BAD_CONFIGURATION:
            signal.signal(signal.SIGTERM, lambda number, frame: os._exit(code))
            time.sleep(_OTHERS_START_S if os.environ.get("SLURM_PROCID", "0") == "0" else _RANK_0_SPEAKS_S)
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


def _watches(board: Board, stall_timeout_s: float | None, start_timeout_s: float | None) -> list[Watch]:
    """What must not stand still."""
    watches = []
    if start_timeout_s is not None:
        start = Watch(
            lambda: int(not board.beats),
            start_timeout_s,
            lambda: (
                f"has not started within {start_timeout_s:g} s (faults.start_timeout_s): it was {board.phase}"
            ),
            lambda: _patience_s(board),
        )
        watches.append(start)
    if stall_timeout_s is None:
        return watches
    key = "faults.stall_timeout_s"
    stall = Watch(
        lambda: board.beats,
        stall_timeout_s,
        lambda: f"has made no progress for {stall_timeout_s:g} s ({key})",
    )
    nobody_s = 2 * stall_timeout_s  # a rank may work in one call for all of the simple time
    run = Watch(
        lambda: board.works,
        nobody_s,
        lambda: f"no rank of the run has made progress for {nobody_s:g} s (twice {key}): {board.waits[0]}",
        of_the_run=True,
    )
    return [*watches, stall, run]


def _patience_s(board: Board) -> float:
    """Whoever waits for another rank lets that one be named; where all wait for each other, rank 0 speaks."""
    if not board.is_together:
        return 0.0
    return _CULPRIT_SPEAKS_S if board.who().get("rank") == 0 else 2 * _CULPRIT_SPEAKS_S


def _end_stalled(child: int, board: Board, watch: Watch, overdue: str | None) -> None:
    if watch.of_the_run:
        _end_run(child, board, watch.cause())
        return
    cause = (overdue or watch.cause()) + watchdog.state(child)
    if overdue is None:
        watchdog.show_stacks(child)
    watchdog.kill(child)
    watchdog.within(_NOTE_S, lambda: _announce_death(board, cause))


def _end_run(child: int, board: Board, cause: str) -> None:
    """On the writer: nobody gets on. Silent where that follows from a rank that has failed and is named elsewhere."""
    named = aftermath.another_has_failed(board.run_dir, lambda: False)
    if not named:
        sys.stderr.write(f"{board.waits[1]}\n")
    watchdog.kill(child)
    if not named:
        watchdog.within(_NOTE_S, lambda: _announce(board, f"hpcrl: {cause}"))


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
