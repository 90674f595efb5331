"""pytest plugin for tests/mpi on emulated hosts: a node map that a test makes up never joins ranks of different hosts.

Ranks of a node share memory, which ranks of different hosts cannot. Where a made-up map says otherwise, each of its
nodes is divided by hosts; a test that gives no map gets the real one.
"""

from __future__ import annotations

from collections.abc import Sequence

from mpi4py import MPI

from hpcrl.comm import world
from hpcrl.config import RunConfig

_open_world = world.open_world


def open_world(
    parent: MPI.Intracomm, config: RunConfig, threads: int, nodes: Sequence[str] | None = None
) -> world.World:
    """As `hpcrl.comm.world.open_world`, on hosts that are really different."""
    if nodes is not None:
        hosts = parent.allgather(MPI.Get_processor_name())
        if len(set(zip(nodes, hosts, strict=True))) > len(set(nodes)):
            nodes = [f"{node} on {host}" for node, host in zip(nodes, hosts, strict=True)]
    return _open_world(parent, config, threads, nodes)


world.open_world = (
    open_world  # before any test module is imported, and only in the processes that load this plugin
)
