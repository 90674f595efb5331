"""Puts one fault into one rank of a run that has this folder on its PYTHONPATH; environment variables say which.

Python imports this module at its start. What it changes it changes in the rank's own process, once MPI is up there.
"""

import os
import signal
import sys
import time
from pathlib import Path

FAULT, NOTE = "HPCRL_TEST_FAULT", "HPCRL_TEST_FAULT_NOTE"
"""Role, phase and kind, divided by blanks; the file that gets the time of the fault."""


def strike(kind):
    Path(os.environ[NOTE]).write_text(str(time.monotonic()))
    if kind == "exception":
        raise RuntimeError("put here by the fault table")
    if kind == "sys.exit(3)":
        sys.exit(3)
    if kind == "os._exit(9)":
        os._exit(9)
    if kind == "SIGKILL":
        os.kill(os.getpid(), signal.SIGKILL)
    while True:
        pass


def plant(role, phase, kind):
    """Into the role's loop, or between two steps of its second save: the first checkpoint is complete by then."""
    from hpcrl.launch import rank
    from hpcrl.storage import checkpoint

    role_loop = rank._role_loop
    written = []

    def faulty_loop(session, placement):
        loop = role_loop(session, placement)
        if placement.role != role:
            return loop
        if phase == "checkpoint":
            checkpoint.reached = reached
        return with_fault(loop, session.run_dir / "checkpoints")

    def with_fault(loop, sets):
        yield next(loop)  # all is made, nothing done yet
        if phase == "start":
            strike(kind)
        for progress in loop:
            if phase == "middle" and progress and list(sets.glob("[0-9]*")) and not list(sets.glob(".*")):
                strike(kind)
            yield progress

    def reached(step):
        written.append(step)
        if written.count("part written") == 2:
            strike(kind)

    rank._role_loop = faulty_loop


if FAULT in os.environ and "PMI_RANK" in os.environ:
    from hpcrl.launch import inside

    start_mpi = inside._start_mpi
    role, phase, kind = os.environ[FAULT].split()

    def start_mpi_and_plant(situation, nodes):
        if phase == "before-MPI" and situation.rank == int(role):
            strike(kind)
        refusal = start_mpi(situation, nodes)
        plant(role, phase, kind)
        return refusal

    inside._start_mpi = start_mpi_and_plant
