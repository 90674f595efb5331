"""What a sum over learners takes, on ranks of its own: for `bench.mpi.ranks.start_ranks`."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from hpcrl.bench.mpi.sums import Sum
from hpcrl.bench.mpi.worlds import opened
from hpcrl.bench.plan.clocks import read_clock
from hpcrl.comm.reduce import HierarchicalReducer
from hpcrl.config import ReductionConfig

if TYPE_CHECKING:
    from hpcrl.bench.raw_mpi import Comm

_CALLS = 50


def measure_sums(comm: Comm, nbytes: int, rounds: int) -> dict[str, Any]:
    """{"reduce", "agree"}: {"cpu_s", "span_s"} on one rank, of a sum of a gradient and of a few numbers.

    Medians over `rounds`. Collective over `comm`.
    """
    with opened(comm) as world:
        if world.learners is None:
            raise RuntimeError("a rank of this world does not learn")
        gradient = Sum(world, nbytes, ReductionConfig())
        numbers = HierarchicalReducer(world.learners, world.waiter, ReductionConfig())
        few = np.zeros(4)
        works: dict[str, Callable[[], object]] = {
            "reduce": gradient.sum,
            "agree": lambda: numbers.sum_array(few),
        }
        found = {name: _median([_timed(work) for _ in range(rounds)]) for name, work in works.items()}
        numbers.close()
        gradient.close()
    return found


def _timed(work: Callable[[], object]) -> tuple[float, float]:
    """CPU and span seconds of one call. All ranks call alike."""
    work()
    before, start = read_clock(os.getpid()), time.perf_counter()
    for _ in range(_CALLS):
        work()
    wall_s = time.perf_counter() - start
    clock = read_clock(os.getpid()) - before
    # a rank also waits for others that have no core: never less than what it computed itself
    return clock.cpu_s / _CALLS, max(wall_s - clock.queued_s, clock.cpu_s) / _CALLS


def _median(times: list[tuple[float, float]]) -> dict[str, float]:
    return {
        "cpu_s": float(np.median([cpu_s for cpu_s, _ in times])),
        "span_s": float(min(span_s for _, span_s in times)),
    }
