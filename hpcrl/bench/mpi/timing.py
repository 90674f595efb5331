"""Time cases in turn, round by round, so that a machine whose speed drifts is the same for all of them."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hpcrl.comm.wait import Waiter

if TYPE_CHECKING:
    from hpcrl.bench.raw_mpi import Comm

Measured = dict[str, Any]
"""{"seconds": median over rounds, "seconds_best": ..., "seconds_rounds": [...]}, JSON types only."""


_MOST_S = 30.0


def nothing() -> None:
    """What ranks do that have no part in a case."""


@dataclass(frozen=True, slots=True)
class Case:
    """One rank's part in something to be timed; every rank has a part, if only `nothing`."""

    work: Callable[[], object]
    prepare: Callable[[], object] = nothing
    """Called before each timing, not timed."""
    units: int = 1
    """What `work` does so many times; times are those of one."""


def time_cases(
    comm: Comm, cases: Mapping[str, Case], rounds: int, most_s: float = _MOST_S
) -> dict[str, Measured]:
    """Time every case once per round, after one round that does not count. Collective over `comm`.

    No further round is begun after `most_s` of work, and the first counts if it was that long: a blocking collective of
    more ranks than cores can take a second per MB.

    A round's time is that of the slowest rank, for one unit. Ranks that have ended wait without taking a core from
    the others.
    """
    waiter = Waiter(crowded=True)
    rounds_of: dict[str, list[float]] = {name: [] for name in cases}
    worked = 0.0
    for index in range(1 + rounds):
        if worked > most_s:  # equal on all ranks
            break
        if index == 1:
            rounds_of = {name: [] for name in cases}
        for name, case in cases.items():
            case.prepare()
            meet(comm, waiter)
            comm.Barrier()
            start = time.perf_counter()
            case.work()
            seconds = time.perf_counter() - start
            meet(comm, waiter)
            slowest = max(comm.allgather(seconds))
            worked += slowest
            rounds_of[name].append(slowest / case.units)
    return {name: summary(seconds) for name, seconds in rounds_of.items()}


def summary(seconds: list[float]) -> Measured:
    """Median and best of the rounds. Pure."""
    return {
        "seconds": statistics.median(seconds),
        "seconds_best": min(seconds),
        "seconds_rounds": seconds,
    }


def meet(comm: Comm, waiter: Waiter) -> None:
    """A barrier in which ranks sleep. Collective over `comm`."""
    waiter.until(comm.Ibarrier().Test)
