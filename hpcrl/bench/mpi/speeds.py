"""How fast these ranks send and sum, in a few seconds: for a look around, not for a comparison."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from hpcrl.bench import raw_mpi
from hpcrl.bench.mpi.sums import Sum, Vectors
from hpcrl.bench.mpi.timing import Case, nothing, time_cases
from hpcrl.bench.mpi.worlds import opened
from hpcrl.comm.world import World
from hpcrl.config import ReductionConfig

if TYPE_CHECKING:
    from hpcrl.bench.raw_mpi import Comm

_SMALL_BYTES = 64
_LARGE_BYTES = 4 << 20
_ROUNDS = 5
_MOST_S = 1.5
"""Of links, and again of sums; one round of each may take longer."""
_MOST_NODES = 32
"""Measured with the first one, one after the other."""


def speeds(comm: Comm, nodes: Sequence[str] | None = None) -> dict[str, Any]:
    """Links and sums of all ranks; {} where there is one rank only. Collective over `comm`; the same on all ranks.

    links: one record for the nodes on which ranks send to each other (all at once, the slowest counts) and one for
    each node that the first one sends to: {"kind", "nodes", "latency_s", "bytes_per_s"}. sums: {"bytes", "hpcrl_s",
    "allreduce_s"}, each of float32 on all ranks. All are the best of a few rounds. `nodes` as in `open_world`.
    """
    if comm.size == 1:
        return {}
    with opened(comm, nodes=nodes) as world:
        return {"links": _links(world), "sums": _sums(world)}


def _links(world: World) -> list[dict[str, Any]]:
    comm, node = world.comm, world.node.comm
    nodes = list(dict.fromkeys(seat["node"] for seat in world.seats))
    full = [name for name in nodes if sum(seat["node"] == name for seat in world.seats) > 1]
    firsts = raw_mpi.Comm(
        comm.Split(int(node.rank > 0), comm.rank)
    )  # of all nodes; the other ranks' is not used
    links: list[dict[str, Any]] = []
    ends: list[tuple[Comm, int] | None] = []  # this rank's communicator, and who receives in it
    if full:
        links.append({"kind": "inside a node", "nodes": full})
        ends.append((node, 1) if node.size > 1 else None)
    for other in range(1, len(nodes[:_MOST_NODES])):
        links.append({"kind": "between nodes", "nodes": [nodes[0], nodes[other]]})
        ends.append((firsts, other) if node.rank == 0 else None)
    cases: dict[str, Case] = {}
    for number, end in enumerate(ends):
        for nbytes in (_SMALL_BYTES, _LARGE_BYTES):
            buffer = np.zeros(nbytes, np.uint8)
            work = partial(raw_mpi.one_way, end[0], buffer, end[1]) if end is not None else nothing
            cases[f"{number}, {nbytes}"] = Case(work)
    times = time_cases(comm, cases, _ROUNDS, _MOST_S)
    firsts.Free()
    for number, link in enumerate(links):
        small, large = (
            times[f"{number}, {nbytes}"]["seconds_best"] for nbytes in (_SMALL_BYTES, _LARGE_BYTES)
        )
        link |= {"latency_s": small / 2, "bytes_per_s": _LARGE_BYTES / large}
    return links


def _sums(world: World) -> dict[str, Any]:
    vectors = Vectors(world.rank, _LARGE_BYTES)
    ours = Sum(world, _LARGE_BYTES, ReductionConfig())
    cases = {
        "hpcrl_s": Case(ours.sum, partial(np.copyto, ours.gradient, vectors.gradient)),
        "allreduce_s": Case(partial(world.comm.Allreduce, vectors.own, vectors.total)),
    }
    times = time_cases(world.comm, cases, _ROUNDS, _MOST_S)
    ours.close()
    return {"bytes": _LARGE_BYTES} | {name: time["seconds_best"] for name, time in times.items()}
