"""Batches from a replay rank to a learner, beside the gathering of the rows that nobody can save."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from hpcrl.bench.mpi.compare import Comparison, lines, size_label
from hpcrl.bench.mpi.timing import Case, meet, time_cases
from hpcrl.bench.mpi.worlds import layout, opened
from hpcrl.comm.replay_link import SLOTS, BatchClient, BatchServer
from hpcrl.comm.rows import Arena, Bytes
from hpcrl.comm.world import World
from hpcrl.config import ConfigError

if TYPE_CHECKING:
    from hpcrl.bench.raw_mpi import Comm

_ROWS = 256
_BATCHES = 20
_STORE_BYTES = 64 << 20


def batches(comm: Comm, sizes: Sequence[int], rounds: int, store_bytes: int = _STORE_BYTES) -> dict[str, Any]:
    """Batches of 256 random rows of `sizes` bytes, from the last rank to rank 0, which asks two ahead.

    Collective over `comm`; 2 ranks or more.
    """
    if comm.size < 2:
        raise ConfigError("batches travel between two ranks; start 2 or more")
    measured: dict[str, Any] = {}
    comparisons: list[Comparison] = []
    with opened(comm) as shared, opened(comm, "messages") as messages:
        where = layout(shared)
        ways = {"by messages": messages}
        if shared.seats[0]["node"] == shared.seats[-1]["node"]:
            ways = {"in the node": shared} | ways
        for nbytes in sizes:
            label = f"256 rows of {size_label(nbytes)}"
            store = Store(nbytes, store_bytes) if comm.rank == comm.size - 1 else None
            links = {name: Link(world, nbytes, store) for name, world in ways.items()}
            cases = {}
            for name, link in links.items():
                cases[f"{label}, {name}"] = Case(link.move, units=_BATCHES)
                # into memory of the same kind: shared memory comes in smaller pages than a process's own
                cases[f"{label}, np.take alone, {name}"] = Case(link.gather_alone, units=_BATCHES)
            measured |= time_cases(comm, cases, rounds)
            # between nodes the link decides: no aim
            aims = {"in the node": 1.6, "by messages": 2.5 if where["nodes"] == 1 else None}
            for name in links:
                alone = f"{label}, np.take alone, {name}"
                comparisons.append(Comparison(f"{label}, {name}", alone, "time", aims[name], _ROWS * nbytes))
            for link in links.values():
                link.close()
    title = f"Batches for a learner, {where['ranks']} ranks on {where['nodes']} nodes"
    return {"title": title, **where, "cases": measured, "lines": lines(measured, comparisons)}


class Store:
    """Rows of a replay rank, and which of them the next batches take."""

    def __init__(self, nbytes: int, store_bytes: int) -> None:
        """Local."""
        rng = np.random.default_rng(0)
        count = max(_ROWS, store_bytes // nbytes)
        self._rows = rng.integers(0, 255, (count, nbytes), np.uint8)
        self._indices = [np.sort(rng.integers(0, count, _ROWS)) for _ in range(_BATCHES)]

    def gather(self, batch: int, into: npt.NDArray[np.uint8]) -> None:
        """Copy the rows of a batch to `into` [256, nbytes]."""
        np.take(self._rows, self._indices[batch], axis=0, out=into, mode="clip")


class Link:
    """One rank's part in the link between rank 0 and the last rank."""

    def __init__(self, world: World, nbytes: int, store: Store | None) -> None:
        """`store`: on the last rank. Collective over the world."""
        last = world.comm.size - 1
        arena = Arena(world, SLOTS if world.rank == 0 else 0, _ROWS * nbytes)
        self._own = Arena(world, int(world.rank == last), _ROWS * nbytes).row(last, 0)
        self._comm, self._waiter = world.comm, world.waiter
        self._client = BatchClient(world, last, arena, 0) if world.rank == 0 else None
        self._server = BatchServer(world, 0, arena, 0) if world.rank == last else None
        self._store = store

    def move(self) -> None:
        """Ask for all batches, serve them, look at each. Collective over both ranks."""
        if self._client is not None:
            self._ask(self._client)
        if self._server is not None and self._store is not None:
            self._serve(self._server, self._store)

    def gather_alone(self) -> None:
        """Every batch, into memory of the last rank. Local."""
        if self._store is not None:
            for batch in range(_BATCHES):
                self._store.gather(batch, self._own.reshape(_ROWS, -1))

    def close(self) -> None:
        """Drain. Collective over the world."""
        for end in (self._client, self._server):
            if end is not None:
                end.close()
                self._waiter.until(partial(_drained, end))
                end.cancel()
        # the next link has the same tags: its messages must not meet receives that are about to be cancelled
        meet(self._comm, self._waiter)

    def _ask(self, client: BatchClient) -> None:
        self._waiter.reset()
        for _ in range(SLOTS):
            client.ask()
        for batch in range(_BATCHES):
            while (answer := client.poll()) is None:
                self._waiter.idle()
            answer[0]
            self._waiter.reset()
            if batch + SLOTS < _BATCHES:
                client.ask()

    def _serve(self, server: BatchServer, store: Store) -> None:
        self._waiter.reset()
        for batch in range(_BATCHES):
            while (slot := self._slot(server)) is None:
                self._waiter.idle()
            store.gather(batch, slot.reshape(_ROWS, -1))
            server.send()
            self._waiter.reset()

    def _slot(self, server: BatchServer) -> Bytes | None:
        server.poll()
        server.take_request()
        return server.begin()


def _drained(end: BatchClient | BatchServer) -> bool:
    return end.drained
