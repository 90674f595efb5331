"""`hpcrl run`: check everything, then join the world there is or start one."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import FrameType

from hpcrl.comm.ranks import fit
from hpcrl.comm.signals import SIGNALS, SignalFlag
from hpcrl.config import ConfigError, ExitCode, RunConfig
from hpcrl.launch.board import Board
from hpcrl.launch.inside import run_rank
from hpcrl.launch.launcher import fault_tolerance, find_launcher, mpi_library, permissions
from hpcrl.launch.progress import TTY_VARIABLE
from hpcrl.launch.recipes import load_config
from hpcrl.launch.situation import Situation, look, without_fault_tolerance, without_interface
from hpcrl.launch.supervise import end_with_parent, leave, supervised
from hpcrl.storage.resume import ResumeMode, check_start, finished

_INITIALIZE = "MPI4PY_RC_INITIALIZE"


def run_command(
    recipe: str,
    overrides: Sequence[str],
    num_ranks: int | None,
    flag: SignalFlag,
    resume: ResumeMode = "never",
) -> int:
    """The whole of `hpcrl run`; returns the exit code. `flag`: installed."""

    def load() -> RunConfig:
        return load_config(recipe, overrides, num_ranks, own_directory=resume != "never")

    return run_config(load, resume, flag, one_rank=num_ranks == 1)


def run_config(load: Callable[[], RunConfig], resume: ResumeMode, flag: SignalFlag, *, one_rank: bool) -> int:
    """Join the world there is as one of its ranks, or start one; the exit code.

    What `load` refuses by ConfigError, and what else does not fit, is told and refused before MPI starts.
    `one_rank`: every role in this process. `flag`: installed, so that no signal has been missed (main thread only).
    """
    situation = look()
    try:
        with mpi_starts_later():
            config = load()
        ended = finished(config, resume)  # asked by every rank: those that were started leave together
        if ended:
            if situation.rank == 0:
                sys.stdout.write(f"{ended}\n")
            return leave(int(ExitCode.FINISHED))
        refuse_early(config, situation, resume)
    except ConfigError as error:
        if situation.rank == 0:
            sys.stderr.write(f"hpcrl: {error}\n")
        return leave(int(ExitCode.BAD_CONFIGURATION), all_ranks_leave=True)
    if situation.in_world or one_rank or config.world_size == 1:
        return join(config, situation, flag, resume)
    return start_world(config, flag, resume)


@contextlib.contextmanager
def mpi_starts_later() -> Iterator[None]:
    """Keep `from mpi4py import MPI` in a recipe from starting MPI: the process that loads it is not the rank."""
    before = os.environ.get(_INITIALIZE)
    os.environ[_INITIALIZE] = "0"
    try:
        yield
    finally:
        del os.environ[_INITIALIZE]  # whatever an environment starts decides for itself
        if before is not None:
            os.environ[_INITIALIZE] = before


def refuse_early(config: RunConfig, situation: Situation, resume: ResumeMode = "never") -> None:
    """Raise ConfigError for what can be known before MPI starts; makes and starts nothing."""
    if situation.launcher == "srun without MPI":
        raise ConfigError(without_interface(situation))
    if situation.in_world:
        fit(config, situation.size)
        if config.faults.actor_death == "continue" and situation.size > 1 and not situation.survives_deaths:
            raise ConfigError(without_fault_tolerance(situation))
    if situation.rank == 0:
        check_start(config, resume)


def join(config: RunConfig, situation: Situation, flag: SignalFlag, resume: ResumeMode = "never") -> int:
    """Be this process's rank, under a supervisor."""

    def body(board: Board) -> int:
        return run_rank(config, situation, board, flag, resume)

    faults = config.faults
    if not faults.has("signal-handlers"):
        flag.remove()
    code = supervised(
        body,
        flag,
        faults.stall_timeout_s if faults.has("watchdog") else None,
        faults.start_timeout_s if faults.has("watchdog") else None,
        names_the_dead=faults.has("supervisor"),
        others_go_on=faults.actor_death == "continue" and situation.size > 1,
    )
    return leave(code, all_ranks_leave=code != ExitCode.RANK_FAILED)


def start_world(config: RunConfig, flag: SignalFlag, resume: ResumeMode = "never") -> int:
    """Start the ranks with the launcher that belongs to mpi4py's MPI library, and wait for them."""
    options: list[str] = []
    variables = permissions()
    try:
        library = mpi_library()
        launcher = find_launcher(library)
        if config.faults.actor_death == "continue":
            options, tolerant = fault_tolerance(library)
            variables |= tolerant
    except ConfigError as error:
        if flag.received is None:  # else the terminal's Ctrl-C has ended the probes too
            sys.stderr.write(f"hpcrl: {error}\n")
            return int(ExitCode.BAD_CONFIGURATION)
    if flag.received is not None:
        sys.stderr.write(f"hpcrl: {flag.received} came before any rank was started\n")
        return int(ExitCode.RESUME_ME)
    with tempfile.TemporaryDirectory(prefix="hpcrl-") as folder:
        path = Path(folder) / "config.json"
        path.write_text(config.to_json())
        command = [
            launcher,
            *options,
            "-n",
            str(config.world_size),
            sys.executable,
            "-P",
            "-m",
            "hpcrl",
            "run",
            str(path),
            "--resume",
            resume,
        ]
        environ = dict(os.environ)
        if sys.stdout.isatty():
            environ[TTY_VARIABLE] = str(shutil.get_terminal_size().columns)
        # a session of its own: Ctrl-C reaches the ranks once, through the launcher, not a second time by the terminal
        process = subprocess.Popen(
            command,
            env=environ | variables,
            start_new_session=True,
            # killed, or its terminal closed: the ranks stop in order instead of running on unseen
            preexec_fn=lambda: end_with_parent(signal.SIGINT),  # noqa: PLW1509 - no threads here
        )
        return wait_for(process, flag)


def wait_for(process: subprocess.Popen[bytes], flag: SignalFlag) -> int:
    """Pass the first signal on to the launcher (as INT, which it forwards) and return a code of ours."""
    forwarded = False

    def forward(number: int, frame: FrameType | None) -> None:
        nonlocal forwarded
        if not forwarded:
            forwarded = True
            process.send_signal(signal.SIGINT)

    for number in SIGNALS:
        signal.signal(number, forward)
    if flag.received is not None:
        forward(signal.Signals[flag.received], None)
    code = process.wait()
    known = {int(value) for value in ExitCode}
    if code in known and code != ExitCode.ERROR:
        return code
    # a signal while the ranks themselves were starting ends them before they can answer it
    return int(ExitCode.RESUME_ME if forwarded else ExitCode.RANK_FAILED)
