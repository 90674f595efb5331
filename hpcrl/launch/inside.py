"""Inside the job: one rank from MPI start to exit code. The only module that names COMM_WORLD."""

from __future__ import annotations

import os
import socket
import sys
import time
import traceback
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from hpcrl.comm.signals import SignalFlag
from hpcrl.config import ConfigError, ExitCode, RunConfig
from hpcrl.launch.aftermath import another_has_failed
from hpcrl.launch.allocation import allocation_end
from hpcrl.launch.board import Board
from hpcrl.launch.output import wait_until_read
from hpcrl.launch.pmi import honest_server
from hpcrl.launch.situation import Situation, crowded, mismatch, no_interface
from hpcrl.launch.supervise import announce_failure
from hpcrl.launch.threads import limit_threads, threads_per_rank, useful_threads
from hpcrl.storage.resume import ResumeMode
from hpcrl.storage.runlog import ResultsLost

if TYPE_CHECKING:
    from mpi4py import MPI

_LET_OTHERS_SPEAK_S = 2.0
"""A time-out comes to all ranks at about the same time, and each is to report what it waits for."""


def run_rank(
    config: RunConfig, situation: Situation, board: Board, flag: SignalFlag, resume: ResumeMode = "never"
) -> int:
    """Be one rank of the run; returns its exit code, the same on all ranks unless one fails.

    Collective over the world. An exception on any rank ends the whole job with RANK_FAILED.
    """
    board.identify(rank=situation.rank, node=socket.gethostname())
    cores_before = len(os.sched_getaffinity(0))
    threads = threads_per_rank(situation.local_size, useful_threads(config))
    limit_threads(threads)
    # asks Slurm, which a process under MPI should not
    end_time = allocation_end() if situation.rank == 0 else None
    board.enter("in the start of MPI, to which every rank must come", together=True)
    refusal = _start_mpi(situation, config.ranks.nodes)
    if refusal is not None:
        board.done()
        if situation.rank == 0 or situation.launcher != "srun":  # there rank 0 leaves first, see `leave`
            sys.stderr.write(f"hpcrl: {refusal}\n")
        return int(ExitCode.BAD_CONFIGURATION)
    from mpi4py import MPI

    from hpcrl.launch.rank import Refused, play

    environment = {
        "mpi_library": MPI.Get_library_version().strip("\x00\n "),
        "launcher": situation.launcher,
        "threads_per_rank": threads,
        "cores_before_mpi": cores_before,
        "cores_after_mpi": len(os.sched_getaffinity(0)),
        "wait": config.comm.wait,
        "allocation_end": end_time,
    }
    try:
        code = play(MPI.COMM_WORLD, config, environment, board, flag, resume)
    except Refused as error:
        if MPI.COMM_WORLD.rank == 0:
            sys.stderr.write(f"hpcrl: {error}\n")
        code = int(ExitCode.BAD_CONFIGURATION)
    except BaseException as error:
        _say_why(error, board, flag)
        board.done()
        wait_until_read()
        MPI.COMM_WORLD.Abort(int(ExitCode.RANK_FAILED))
        raise
    if MPI.COMM_WORLD.size == 1 or config.faults.actor_death == "end":
        MPI.Finalize()  # else it would wait for the dead
    board.done()
    return code


def _say_why(error: BaseException, board: Board, flag: SignalFlag) -> None:
    """Name this rank and its failure, unless that is only what the failure of another one does to MPI."""
    from mpi4py import MPI

    from hpcrl.comm.failures import RankLost

    before = flag.received
    if isinstance(error, RankLost) and error.said:
        return
    if isinstance(error, MPI.Exception) and another_has_failed(
        board.run_dir, lambda: flag.received != before
    ):
        return
    if not isinstance(error, (RankLost, ResultsLost)):
        traceback.print_exc()
    if isinstance(error, TimeoutError):
        time.sleep(_LET_OTHERS_SPEAK_S)
    announce_failure(board, f"failed: {type(error).__name__}: {error}")


def measure_rank(situation: Situation, measure: Callable[[MPI.Intracomm], Any]) -> Any:
    """Be one rank of a measurement; returns what `measure` returns for a communicator of all ranks.

    Collective over the world. Raises ConfigError where launcher and MPI library do not belong together or where
    `measure` does, which it must on all ranks; any other exception on any rank ends the whole job with RANK_FAILED.
    """
    limit_threads(threads_per_rank(situation.local_size, 1))
    refusal = _start_mpi(situation, None)
    if refusal is not None:
        raise ConfigError(refusal)
    from mpi4py import MPI

    comm = MPI.Intracomm(MPI.COMM_WORLD.Dup())
    try:
        result = measure(comm)
    except ConfigError:
        MPI.Finalize()
        raise
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
        wait_until_read()
        MPI.COMM_WORLD.Abort(int(ExitCode.RANK_FAILED))
        raise
    sys.stdout.flush()  # a rank that dies in Finalize cannot take it away
    comm.Free()
    MPI.Finalize()
    return result


def _start_mpi(situation: Situation, nodes: int | None) -> str | None:
    """Start MPI, unless that has happened; the sentence that refuses what the launcher made of it, or None.

    One thread calls MPI, but only if several might does MPICH give the core away inside blocking calls: else, with 4
    ranks on 2 cores, a barrier took 7 ms instead of 0.04 and a sum of 1 MB 280 ms instead of 3.
    `nodes`: how many the ranks must be on; None: all of the scheduler's allocation. Collective over the world.
    """
    import mpi4py

    mpi4py.rc.initialize = False
    mpi4py.rc.finalize = False
    # warnings of MPICH's network module would go to where a program may read JSON
    os.environ.setdefault("UCX_LOG_FILE", "stderr")
    from mpi4py import MPI

    library = MPI.Get_library_version()
    refusal = no_interface(situation, library)
    if refusal is not None:
        return refusal
    if not MPI.Is_initialized():
        with honest_server(os.environ):
            MPI.Init_thread(MPI.THREAD_MULTIPLE)
    refusal = mismatch(situation, MPI.COMM_WORLD.size, library)
    if refusal is not None:
        return refusal
    hosts = set(MPI.COMM_WORLD.allgather(MPI.Get_processor_name()))
    return crowded(situation, MPI.COMM_WORLD.size, hosts, nodes)
