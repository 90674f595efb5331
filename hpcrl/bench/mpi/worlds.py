"""Worlds as a run has them, for a measurement."""

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
    """A world in which every rank learns, closed afterwards. Collective over `comm`. `nodes` as in `open_world`."""
    world = open_world(comm, _config(transport, comm.size, RanksConfig(workers=comm.size)), 1, nodes)
    yield world
    world.close()


@contextmanager
def opened_pipeline(comm: Comm, transport: Literal["auto", "messages"] = "auto") -> Iterator[World]:
    """A world of one replay rank, one learner and actors, closed afterwards. Collective over 3 ranks or more."""
    world = open_world(comm, _config(transport, comm.size, RanksConfig(actors=comm.size - 2)), 1)
    yield world
    world.close()


def _config(transport: Literal["auto", "messages"], size: int, ranks: RanksConfig) -> RunConfig:
    return RunConfig(
        name="bench",
        scheme="synchronous" if ranks.workers == size else "pipeline",
        env=EnvConfig(id="none", engine="toy", num_envs=size),
        algorithm=PPOConfig(unroll_length=64),
        ranks=ranks,
        comm=CommConfig(transport=transport),
    )


def layout(world: World) -> dict[str, Any]:
    """Where the ranks are: {"ranks", "nodes", "ranks_per_node" (of the smallest node)}. Local."""
    nodes = [seat["node"] for seat in world.seats]
    return {
        "ranks": len(nodes),
        "nodes": len(set(nodes)),
        "ranks_per_node": min(nodes.count(node) for node in nodes),
    }
