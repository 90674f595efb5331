"""Who sits on which node, and in which order the nodes' sums are added."""

from __future__ import annotations

from dataclasses import dataclass

from mpi4py import MPI

from hpcrl.comm.groups import LearnerComms


@dataclass(frozen=True, slots=True)
class NodeOrder:
    """The nodes of the learners, in the order of their first learners; the same for all learners."""

    cross: MPI.Intracomm
    """learners of equal rank in their nodes"""
    ranks: tuple[int, ...]
    """[position] rank in `cross`, for the nodes that have a learner of this rank in its node"""
    num_nodes: int
    smallest: int
    """learners on the smallest node: so many ranks of each node find their like on every other node"""

    @property
    def mine(self) -> int:
        """Position of this node."""
        return self.ranks.index(self.cross.rank)

    @property
    def others(self) -> list[tuple[int, int]]:
        """(position, rank in `cross`) of the other nodes."""
        return [(node, rank) for node, rank in enumerate(self.ranks) if rank != self.cross.rank]


def find_node_order(comms: LearnerComms) -> NodeOrder:
    """Collective over the learners; blocking, at start-up only."""
    first = comms.node.bcast(comms.group.rank)
    nodes = comms.group.allgather((first, comms.node.size))
    across = comms.cross.allgather(first)
    order = sorted({first for first, _ in nodes})
    return NodeOrder(
        cross=comms.cross,
        ranks=tuple(across.index(first) for first in order if first in across),
        num_nodes=len(order),
        smallest=min(size for _, size in nodes),
    )
