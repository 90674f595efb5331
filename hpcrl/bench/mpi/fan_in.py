"""Many senders, one receiver, small messages: what a replay rank with many actors takes per second."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from hpcrl.bench import raw_mpi
from hpcrl.bench.mpi.compare import Comparison, lines, size_label
from hpcrl.bench.mpi.rowstream import GRANTS, Sink, Source
from hpcrl.bench.mpi.timing import Case, time_cases
from hpcrl.bench.mpi.worlds import layout, opened
from hpcrl.comm.rows import Arena
from hpcrl.comm.world import World
from hpcrl.config import ConfigError

if TYPE_CHECKING:
    from hpcrl.bench.raw_mpi import Comm

_NBYTES = 4096
_RAW_WINDOW = 8


def fan_in(comm: Comm, rounds: int, messages: int = 6000) -> dict[str, Any]:
    """About `messages` of 4 KB from all other ranks to rank 0. Collective over `comm`; 2 ranks or more."""
    if comm.size < 2:
        raise ConfigError("fan-in is measured on two ranks or more")
    sources = list(range(1, comm.size))
    each = max(1, messages // len(sources) // 4) * 4
    with opened(comm) as shared, opened(comm, "messages") as by_messages:
        where = layout(shared)
        streams = {"in place": Many(shared, sources), "by messages": Many(by_messages, sources)}
        units = each * len(sources)
        cases = {
            name: Case(partial(stream.move, each), units=units)
            for name, stream in streams.items()
            if name != "in place" or where["nodes"] == 1
        }
        raw = "plain MPI loop"
        cases[raw] = Case(partial(_raw, comm, sources, each), units=units)
        measured = time_cases(comm, cases, rounds)
        for stream in streams.values():
            stream.close()
    label = f"one of {size_label(_NBYTES)}"
    named = {f"{label}, {name}": result for name, result in measured.items()}
    comparisons = [
        Comparison(f"{label}, {name}", f"{label}, {raw}", "speed", 0.7, _NBYTES) for name in streams
    ]
    title = f"Fan-in from {len(sources)} senders, {where['ranks']} ranks on {where['nodes']} nodes"
    return {"title": title, **where, "cases": named, "lines": lines(named, comparisons)}


class Many:
    """One rank's part in streams from all `sources` to rank 0."""

    def __init__(self, world: World, sources: list[int]) -> None:
        """Collective over the world."""
        arena = Arena(world, GRANTS * len(sources) if world.rank == 0 else 0, _NBYTES)
        self._sink = Sink(world, sources, arena, GRANTS) if world.rank == 0 else None
        self._source = Source(world, 0, arena) if world.rank in sources else None
        self._made = np.ones(_NBYTES, np.uint8)

    def move(self, count: int) -> None:
        """Send `count` messages from each source. Collective over the world."""
        if self._source is not None:
            self._source.send(count, lambda row: np.copyto(row, self._made))
        if self._sink is not None:
            self._sink.receive(count, self._look)

    def close(self) -> None:
        """Drain. Collective over the world."""
        for end in (self._source, self._sink):
            if end is not None:
                end.close()

    def _look(self, row: raw_mpi.Bytes) -> None:
        """The rows are the store."""
        row[0]


def _raw(comm: Comm, sources: list[int], count: int) -> None:
    if comm.rank == 0:
        raw_mpi.receive_persistent(comm, sources, np.zeros((1024, _NBYTES), np.uint8), count)
    elif comm.rank in sources:
        raw_mpi.send_persistent(comm, 0, np.ones((_RAW_WINDOW, _NBYTES), np.uint8), count)
