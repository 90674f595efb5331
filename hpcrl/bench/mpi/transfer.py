"""Trajectories from one rank into another's store: rows of hpcrl beside a memcpy and pickled objects."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import cycle
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from hpcrl.bench import raw_mpi
from hpcrl.bench.mpi.compare import Comparison, lines, size_label
from hpcrl.bench.mpi.rowstream import GRANTS, Sink, Source
from hpcrl.bench.mpi.timing import Case, meet, time_cases
from hpcrl.bench.mpi.worlds import layout, opened
from hpcrl.comm.rows import Arena
from hpcrl.comm.world import World
from hpcrl.config import ConfigError

if TYPE_CHECKING:
    from hpcrl.bench.raw_mpi import Comm

Bytes = npt.NDArray[np.uint8]

_SMALL_BYTES = 2048
_STORE_BYTES = 64 << 20
"""More than fits a cache, as the store of a replay rank."""
_MOST_ROWS = 2000


def transfers(
    comm: Comm, sizes: Sequence[int], rounds: int, store_bytes: int = _STORE_BYTES
) -> dict[str, Any]:
    """Rows of `sizes` bytes, and of 2 KB, from the last rank to rank 0. Collective over `comm`; 2 ranks or more."""
    if comm.size < 2:
        raise ConfigError("transfers are measured between two ranks; start 2 or more")
    measured: dict[str, Any] = {}
    comparisons: list[Comparison] = []
    with opened(comm) as shared, opened(comm, "messages") as messages:
        where = layout(shared)
        ends = [comm.size - 1, 0]
        in_place = shared.seats[ends[0]]["node"] == shared.seats[ends[1]]["node"]
        for nbytes in [*sizes, _SMALL_BYTES]:
            rows = max(GRANTS, min(_MOST_ROWS, store_bytes // nbytes))
            pairs = [
                RowPair(world, rows, nbytes) for world in ([shared, messages] if in_place else [messages])
            ]
            measured |= time_cases(comm, _cases(comm, pairs, rows, nbytes), rounds)
            comparisons += _comparisons(nbytes, one_node=where["nodes"] == 1)
            for pair in pairs:
                pair.close()
    title = f"Trajectories into the store of another rank, {where['ranks']} ranks on {where['nodes']} nodes"
    return {"title": title, **where, "cases": measured, "lines": lines(measured, comparisons)}


class RowPair:
    """One rank's part in a stream from the last rank to rank 0; the others have none."""

    def __init__(self, world: World, rows: int, nbytes: int) -> None:
        """`rows`: of the store. Collective over the world."""
        self._world = world
        last = world.comm.size - 1
        arena = Arena(world, rows if world.rank == 0 else 0, nbytes)
        self.in_place = arena.shared_with(0) and arena.shared_with(last)
        owner = 0 if self.in_place else last
        self.rows = [arena.row(owner, row) for row in range(rows if world.rank == last else 0)]
        """On the last rank: the rows that it fills, or as many of its own."""
        self._sink = Sink(world, [last], arena, rows) if world.rank == 0 else None
        self._source = Source(world, 0, arena) if world.rank == last else None

    def move(self, count: int, write: Callable[[Bytes], object]) -> None:
        """Send `count` rows, each made by `write`, and receive them. Collective over both ranks."""
        if self._source is not None:
            self._source.send(count, write)
        if self._sink is not None:
            self._sink.receive(count, _look)

    def close(self) -> None:
        """Drain. Collective over the world."""
        for end in (self._source, self._sink):
            if end is not None:
                end.close()
        # the next stream has the same tags: its messages must not meet receives that are about to be cancelled
        meet(self._world.comm, self._world.waiter)


def _cases(comm: Comm, pairs: Sequence[RowPair], count: int, nbytes: int) -> dict[str, Case]:
    """Each row of the store is used once in a timing."""
    label = size_label(nbytes)
    made = cycle(np.ones((GRANTS, nbytes), np.uint8))

    def write(row: Bytes) -> None:
        np.copyto(row, next(made))

    def copy(rows: Sequence[Bytes]) -> None:
        for row in rows:
            write(row)

    cases: dict[str, Case] = {}
    for pair in pairs:
        # shared memory comes in smaller pages than a process's own, which alone makes a copy slower
        memory = "shared" if pair.in_place else "own"
        cases[f"{label}, memcpy to {memory} memory"] = Case(partial(copy, pair.rows), units=count)
        # by messages the actor writes into its slot, while others are under way: that is not part of the transport
        work = partial(pair.move, count, write if pair.in_place else _look)
        cases[f"{label}, {'in place' if pair.in_place else 'by messages'}"] = Case(work, units=count)
    if nbytes == _SMALL_BYTES:
        cases[f"{label}, seven arrays pickled"] = Case(partial(_pickled, comm, nbytes, count), units=count)
    return cases


def _comparisons(nbytes: int, *, one_node: bool) -> list[Comparison]:
    """Between nodes the link decides: no aims."""
    label = size_label(nbytes)
    in_place, messages = f"{label}, in place", f"{label}, by messages"
    if nbytes == _SMALL_BYTES:
        pickled = f"{label}, seven arrays pickled"
        return [
            Comparison(in_place, pickled, "speed", 8.0, nbytes),
            Comparison(messages, pickled, "speed", None, nbytes),
        ]
    copy = f"{label}, memcpy to"
    return [
        Comparison(messages, f"{copy} own memory", "speed", 0.6 if one_node else None, nbytes),
        Comparison(in_place, f"{copy} shared memory", "speed", 0.85, nbytes),
        Comparison(f"{copy} shared memory", f"{copy} own memory", "speed", None, nbytes),
    ]


def _pickled(comm: Comm, nbytes: int, count: int) -> None:
    """A dict of the arrays of a small trajectory, half of its bytes observations."""
    if comm.rank == 0:
        raw_mpi.receive_pickled(comm, comm.size - 1, count)
    elif comm.rank == comm.size - 1:
        names = ("action", "reward", "terminated", "truncated", "valid", "log_prob")
        message = {name: np.ones(nbytes // 12, np.uint8) for name in names}
        message["obs"] = np.ones(nbytes // 2, np.uint8)
        raw_mpi.send_pickled(comm, 0, message, count)


def _look(row: Bytes) -> None:
    """Touch a row, as whoever fills in or reads its header does."""
    row[0]
