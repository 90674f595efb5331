"""Parameters from the learner to the actors: how long the learner is held, and when the actors have them."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from hpcrl.bench.mpi.compare import Comparison, figure, lines, size_label
from hpcrl.bench.mpi.timing import meet, summary
from hpcrl.bench.mpi.worlds import layout, opened_pipeline
from hpcrl.comm.publish import ParameterExchange
from hpcrl.comm.window import SharedWindow
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


Vector = npt.NDArray[np.float32]


class Publication:
    """One rank's part in publishing vectors of one size."""

    def __init__(self, world: World, nbytes: int) -> None:
        """Collective over the world."""
        size = nbytes // 4
        self._world = world
        self._vector, own = np.ones(size, np.float32), np.zeros(size, np.float32)
        self._copies = {"memcpy to own memory": own}
        self._window: SharedWindow | None = None
        if world.node.bells is not None:
            # shared memory comes in smaller pages than a process's own, which alone makes a copy slower
            learns = world.rank in world.plan.ranks("learner")
            self._window = SharedWindow(world.node.comm, nbytes if learns else 0)
            self._copies["memcpy to shared memory"] = self._window.mine[:nbytes].view(np.float32)
        self._exchange = ParameterExchange(world, size)
        self._version = -1

    def publish(self) -> dict[str, float]:
        """Publish one version that nobody waits for, as when actors work, and one that all actors wait for.

        Collective over the world. Returns seconds, the same on all ranks: a `memcpy` by the learner to each kind of
        memory, `held` by publishing the first, `age` of the second when the last actor had it (meaningful within one
        node).
        """
        mine = {name: self._time_memcpy(copy) for name, copy in self._copies.items()}
        mine["held"], _ = self._publish(wait=False)
        _, age = self._publish(wait=True)
        found: dict[str, float] = self._world.comm.bcast(mine, self._world.plan.ranks("learner")[0])
        return found | {"age": age}

    def _publish(self, *, wait: bool) -> tuple[float, float]:
        """Seconds in this rank's own call, and until the last actor had the version (with `wait`)."""
        world = self._world
        self._version += 1
        self._update()
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
        if self._window is not None:
            self._copies.clear()
            self._window.close()
        # the next ones have the same tags: their messages must not meet receives that are about to be cancelled
        meet(self._world.comm, self._world.waiter)

    def _time_memcpy(self, copy: Vector) -> float:
        self._update()
        start = time.perf_counter()
        if self._exchange.publisher is not None:
            np.copyto(copy, self._vector)
        return time.perf_counter() - start

    def _update(self) -> None:
        """Meet; the learner comes with parameters that it has just written, as after an update."""
        meet(self._world.comm, self._world.waiter)
        if self._exchange.publisher is not None:
            self._vector += 1.0
        self._world.comm.Barrier()

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
    held = f"{name}, learner held"
    kinds = [kind for kind in rounds[0] if kind.startswith("memcpy")]
    for kind in kinds:
        measured[f"{name}, {kind}"] = summary([entry[kind] for entry in rounds])
    measured[held] = summary([entry["held"] for entry in rounds])
    # the learner copies into memory of the last kind
    aims = [None] * (len(kinds) - 1) + [1.3 if nodes == 1 else None]
    found = lines(
        measured,
        [
            Comparison(held, f"{name}, {kind}", "time", aim, nbytes)
            for kind, aim in zip(kinds, aims, strict=True)
        ],
    )
    if nodes == 1:  # across nodes clocks differ
        age = statistics.median(entry["age"] for entry in rounds)
        found.append(figure(f"{name}, last actor has it", age, "s"))
    return found
