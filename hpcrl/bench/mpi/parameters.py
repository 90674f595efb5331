"""Parameters from the learner to the actors: how long the learner is held, and when the actors have them."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from hpcrl.bench.mpi.compare import Comparison, figure, lines, size_label
from hpcrl.bench.mpi.timing import meet, summary
from hpcrl.bench.mpi.worlds import layout, opened_pipeline
from hpcrl.comm.publish import ParameterExchange
from hpcrl.comm.world import World
from hpcrl.config import ConfigError

if TYPE_CHECKING:
    from hpcrl.bench.raw_mpi import Comm


def publication(comm: Comm, sizes: Sequence[int], rounds: int) -> dict[str, Any]:
    """Vectors of `sizes` bytes from the learner to all actors. Collective over `comm`; 3 ranks or more."""
    if comm.size < 3:
        raise ConfigError("publication takes a learner, an actor and a replay rank; start 3 ranks or more")
    measured: dict[str, Any] = {}
    found: list[dict[str, Any]] = []
    with opened_pipeline(comm) as shared, opened_pipeline(comm, "messages") as messages:
        where = layout(shared)
        for nbytes in sizes:
            ways = {"in the node": shared} if where["nodes"] == 1 else {}
            ways["by messages"] = messages
            label = size_label(nbytes)
            published = {f"{label}, {name}": Publication(world, nbytes) for name, world in ways.items()}
            raw = [
                {name: publication.publish() for name, publication in published.items()}
                for _ in range(1 + rounds)
            ][1:]  # the first touches the memory
            for name, publication in published.items():
                found += _lines(measured, name, [entry[name] for entry in raw], nbytes, where["nodes"])
                publication.close()
    title = f"Parameters to {comm.size - 2} actors, {where['ranks']} ranks on {where['nodes']} nodes"
    return {"title": title, **where, "cases": measured, "lines": found}


class Publication:
    """One rank's part in publishing vectors of one size."""

    def __init__(self, world: World, nbytes: int) -> None:
        """Collective over the world."""
        size = nbytes // 4
        self._world = world
        self._vector, self._copy = np.ones(size, np.float32), np.zeros(size, np.float32)
        self._exchange = ParameterExchange(world, size)
        self._version = -1

    def publish(self) -> dict[str, float]:
        """Publish one version that nobody waits for, as when actors work, and one that all actors wait for.

        Collective over the world. Returns seconds, the same on all ranks: `memcpy` of the vector by the learner, `held`
        by publishing the first, `age` of the second when the last actor had it (meaningful within one node).
        """
        memcpy = self._time_memcpy()
        held, _ = self._publish(wait=False)
        _, age = self._publish(wait=True)
        learner = self._world.plan.ranks("learner")[0]
        both: tuple[float, float] = self._world.comm.bcast((memcpy, held), learner)
        return {"memcpy": both[0], "held": both[1], "age": age}

    def _publish(self, *, wait: bool) -> tuple[float, float]:
        """Seconds in this rank's own call, and until the last actor had the version (with `wait`)."""
        world = self._world
        self._version += 1
        meet(world.comm, world.waiter)
        world.comm.Barrier()
        start = end = time.perf_counter()
        if self._exchange.publisher is not None:
            self._exchange.publisher.publish(self._version, self._vector)
            end = time.perf_counter()
        if wait and self._exchange.reader is not None:
            world.waiter.until(self._arrived)
            end = time.perf_counter()
            self._exchange.reader.release()
        self._meet()
        everyone: list[tuple[float, float]] = world.comm.allgather((start, end))
        first, _ = everyone[world.plan.ranks("learner")[0]]
        return end - start, max(everyone[rank][1] for rank in world.plan.ranks("actor")) - first

    def close(self) -> None:
        """Drain. Collective over the world."""
        if self._exchange.publisher is not None:
            self._exchange.publisher.close()
        self._world.waiter.until(lambda: self._exchange.drained)
        self._exchange.cancel()
        # the next ones have the same tags: their messages must not meet receives that are about to be cancelled
        meet(self._world.comm, self._world.waiter)

    def _time_memcpy(self) -> float:
        meet(self._world.comm, self._world.waiter)
        start = time.perf_counter()
        if self._exchange.publisher is not None:
            np.copyto(self._copy, self._vector)
        return time.perf_counter() - start

    def _arrived(self) -> bool:
        """Whether this actor holds the version, to be used where it lies."""
        self._exchange.poll()
        reader = self._exchange.reader
        return reader is None or reader.acquire(self._version)

    def _meet(self) -> None:
        """A barrier during which every rank goes on with what it does for others."""
        request = self._world.comm.Ibarrier()

        def over() -> bool:
            self._exchange.poll()
            return bool(request.Test())

        self._world.waiter.until(over)


def _lines(
    measured: dict[str, Any],
    name: str,
    rounds: list[dict[str, float]],
    nbytes: int,
    nodes: int,
) -> list[dict[str, Any]]:
    """Enter the times of one way of publishing into `measured`, and compare them."""
    held, memcpy = f"{name}, learner held", f"{name}, memcpy"
    measured[held] = summary([entry["held"] for entry in rounds])
    measured[memcpy] = summary([entry["memcpy"] for entry in rounds])
    found = lines(measured, [Comparison(held, memcpy, "time", 1.3 if nodes == 1 else None, nbytes)])
    if nodes == 1:  # across nodes clocks differ
        age = statistics.median(entry["age"] for entry in rounds)
        found.append(figure(f"{name}, last actor has it", age, "s"))
    return found
