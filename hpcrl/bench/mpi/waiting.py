"""How soon a rank that waits takes in what came, and how much of a core it takes until then."""

from __future__ import annotations

import statistics
import time
from typing import TYPE_CHECKING, Any

import numpy as np

from hpcrl.bench.mpi.compare import figure
from hpcrl.bench.mpi.timing import meet
from hpcrl.bench.mpi.worlds import layout, opened
from hpcrl.comm.stream import Receiver, Sender, Tag
from hpcrl.comm.world import World
from hpcrl.config import ConfigError

if TYPE_CHECKING:
    from hpcrl.bench.raw_mpi import Comm

_LONG_S = 0.5


def waiting(comm: Comm, rounds: int) -> dict[str, Any]:
    """Notes from the last rank to rank 0, which waits, woken by its bell or on the ladder of sleeps alone.

    Collective over `comm`; 2 ranks or more.
    """
    if comm.size < 2:
        raise ConfigError("waiting is measured between two ranks; start 2 or more")
    found = []
    with opened(comm) as shared, opened(comm, "messages") as messages:
        where = layout(shared)
        ways = {"by messages, sleeping": messages}
        if shared.seats[0]["node"] == shared.seats[-1]["node"]:
            ways = {"in the node, bell": shared} | ways
        for name, world in ways.items():
            notes = Notes(world)
            # the clock of one node: across nodes only the CPU share can be told
            late = [notes.wait(0.005) for _ in range(4 * rounds)]
            _, share = notes.wait(_LONG_S)
            notes.close()
            if len(ways) == 2:
                found.append(figure(f"wake-up, {name}", statistics.median(entry[0] for entry in late), "s"))
            found.append(figure(f"CPU of a waiting rank, {name}", 100 * share, "%", at_most=5.0))
    title = f"Waiting, {where['ranks']} ranks on {where['nodes']} nodes"
    return {"title": title, **where, "cases": {}, "lines": found}


class Notes:
    """Small messages from the last rank to rank 0."""

    def __init__(self, world: World) -> None:
        """Local."""
        self._world = world
        last = world.comm.size - 1
        self._sender: Sender | None = world.sender(0, Tag.GRANT) if world.rank == last else None
        self._receiver: Receiver | None = world.receiver(last, Tag.GRANT) if world.rank == 0 else None

    def wait(self, seconds: float) -> tuple[float, float]:
        """Have rank 0 wait for a note that comes after `seconds`; (lateness in s, CPU seconds per second) on all ranks.

        Collective over the world.
        """
        waiter = self._world.waiter
        outcome = (0.0, 0.0)
        if self._receiver is not None:
            self._receiver.post(np.zeros(1, np.float64))
        meet(self._world.comm, waiter)
        if self._sender is not None:
            time.sleep(seconds)
            self._sender.send(np.array([time.perf_counter()]))
            waiter.until(lambda: self._sender is None or self._sender.poll() == 0)
        if self._receiver is not None:
            outcome = self._receive(self._receiver)
        result: tuple[float, float] = self._world.comm.bcast(outcome)
        return result

    def _receive(self, receiver: Receiver) -> tuple[float, float]:
        waiter = self._world.waiter
        waiter.reset()
        cpu, start = time.process_time(), time.perf_counter()
        while (note := receiver.poll()) is None:
            waiter.idle()
        now = time.perf_counter()
        return now - float(note[0]), (time.process_time() - cpu) / (now - start)

    def close(self) -> None:
        """Drain. Collective over both ranks."""
        waiter = self._world.waiter
        if self._sender is not None:
            self._sender.close()
        for end in (self._sender, self._receiver):
            if end is not None:
                waiter.until(lambda end=end: end.drained)  # type: ignore[misc]
        if self._receiver is not None:
            self._receiver.cancel()
