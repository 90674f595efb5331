"""What a sum over learners takes, on ranks of its own: for `bench.mpi.ranks.start_ranks`."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from hpcrl.bench.mpi.sums import Sum
from hpcrl.bench.mpi.worlds import opened
from hpcrl.comm.reduce import HierarchicalReducer
from hpcrl.config import ReductionConfig

if TYPE_CHECKING:
    from hpcrl.bench.raw_mpi import Comm

_CALLS = 200


def measure_sums(comm: Comm, nbytes: int) -> dict[str, Any]:
    """{"reduce", "agree"}: {"cpu_s", "span_s"} on one rank, of a sum of a gradient and of a few numbers.

    CPU seconds are the mean of many calls, spans the best, in which both ranks had a core. Collective over `comm`.
    """
    with opened(comm) as world:
        if world.learners is None:
            raise RuntimeError("a rank of this world does not learn")
        gradient = Sum(world, nbytes, ReductionConfig())
        numbers = HierarchicalReducer(world.learners, world.waiter, ReductionConfig())
        few = np.zeros(4)
        found = {"reduce": _timed(gradient.sum), "agree": _timed(lambda: numbers.sum_array(few))}
        numbers.close()
        gradient.close()
    return found


def _timed(work: Callable[[], object]) -> dict[str, float]:
    """All ranks call alike."""
    work()
    spans, cpu_s = [], time.process_time()
    for _ in range(_CALLS):
        start = time.perf_counter()
        work()
        spans.append(time.perf_counter() - start)
    return {"cpu_s": (time.process_time() - cpu_s) / _CALLS, "span_s": min(spans)}
