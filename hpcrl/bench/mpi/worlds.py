"""Worlds as a run has them, for a measurement: every rank a worker, so that each may be any end of a stream."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal

from hpcrl.comm.world import World, open_world
from hpcrl.config import CommConfig, EnvConfig, PPOConfig, RanksConfig, RunConfig

if TYPE_CHECKING:
    from hpcrl.bench.raw_mpi import Comm


@contextmanager
def opened(
    comm: Comm, transport: Literal["auto", "messages"] = "auto", nodes: Sequence[str] | None = None
) -> Iterator[World]:
    """A world over `comm`, closed afterwards. Collective over `comm`. `nodes` as in `open_world`."""
    config = RunConfig(
        name="bench",
        scheme="synchronous",
        env=EnvConfig(id="none", engine="toy", num_envs=comm.size),
        algorithm=PPOConfig(unroll_length=64),
        ranks=RanksConfig(workers=comm.size),
        comm=CommConfig(transport=transport),
    )
    world = open_world(comm, config, 1, nodes)
    yield world
    world.close()


def layout(world: World) -> dict[str, Any]:
    """Where the ranks are: {"ranks", "nodes", "ranks_per_node" (of the smallest node)}. Local."""
    nodes = [seat["node"] for seat in world.seats]
    return {
        "ranks": len(nodes),
        "nodes": len(set(nodes)),
        "ranks_per_node": min(nodes.count(node) for node in nodes),
    }
