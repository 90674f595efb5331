"""One time for all ranks, whatever node's clock they read."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter

import numpy as np
from mpi4py import MPI

_ROUNDS = 10


def common_time(comm: MPI.Intracomm, began: float, clock: Callable[[], float] = perf_counter) -> float:
    """What to add to this rank's `clock` for the time since the first rank `began`, seconds. Collective; blocking.

    Each rank asks rank 0 for its time a few times; the quickest answer counts, and is right to half of what it took.
    """
    offset = 0.0
    asked, said = np.zeros(1), np.zeros(1)
    if comm.rank == 0:
        for rank in range(1, comm.size):
            for _ in range(_ROUNDS):
                comm.Recv(asked, rank)
                said[0] = clock()
                comm.Send(said, rank)
    else:
        quickest = np.inf
        for _ in range(_ROUNDS):
            before = clock()
            comm.Sendrecv(asked, 0, recvbuf=said, source=0)
            took = clock() - before
            if took < quickest:
                quickest, offset = took, float(said[0]) - (before + took / 2)
    first = comm.allreduce(began + offset, MPI.MIN)
    return float(offset - first)
