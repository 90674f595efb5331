"""Who shares a node with this rank, and who learns with it: communicators that are made once, at the start."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mpi4py import MPI

from hpcrl.comm.bell import Bells
from hpcrl.comm.mailbox import Mailboxes
from hpcrl.comm.ranks import RankPlan, Role


@dataclass(frozen=True, slots=True)
class LearnerComms:
    """Communicators of one learner (or synchronous worker)."""

    group: MPI.Intracomm
    """All learners, rank = role_rank."""
    node: MPI.Intracomm
    """Learners that share memory with this one."""
    cross: MPI.Intracomm
    """Learners with the same rank in `node`, one per node (only nodes that have one)."""


@dataclass(frozen=True, slots=True)
class Node:
    """The ranks that share memory with this one, whatever their roles."""

    comm: MPI.Intracomm
    ranks: tuple[int, ...]
    """World rank of each rank of `comm`."""
    bells: Bells | None
    """None: comm.transport=messages, nothing is shared."""
    mail: Mailboxes | None


def node_name(comm: MPI.Intracomm) -> str:
    """Host name, the same on all ranks that share memory and different on all others. Collective over `comm`."""
    shared = comm.Split_type(MPI.COMM_TYPE_SHARED, comm.rank)
    first = int(shared.bcast(comm.rank))
    shared.Free()
    names: list[tuple[str, int]] = comm.allgather((MPI.Get_processor_name(), first))
    mine = names[first][0]
    twins = sorted({leader for name, leader in names if name == mine})  # containers may share a name
    return mine if twins == [first] else f"{mine}.{twins.index(first)}"


def open_node(comm: MPI.Intracomm, names: Sequence[str], *, shared: bool) -> Node:
    """The ranks with the same name as this one's. Collective over `comm`."""
    mine = names[comm.rank]
    node = MPI.Intracomm(comm.Split(names.index(mine), comm.rank))
    ranks = tuple(rank for rank, name in enumerate(names) if name == mine)
    if not shared:
        return Node(node, ranks, None, None)
    bells = Bells(node)
    return Node(node, ranks, bells, Mailboxes(node, bells))


def learner_comms(comm: MPI.Intracomm, plan: RankPlan, nodes: Sequence[str]) -> LearnerComms | None:
    """Communicators of a learner, whose node is `nodes[rank]`; None on other ranks. Collective over `comm`."""
    role: Role = "learner" if plan.ranks("learner") else "worker"
    ranks = plan.ranks(role)
    mine = comm.rank in ranks
    group = comm.Split(0 if mine else MPI.UNDEFINED, ranks.index(comm.rank) if mine else 0)
    if not mine:
        return None
    hosts = list(dict.fromkeys(nodes[rank] for rank in ranks))
    node = group.Split(hosts.index(nodes[comm.rank]), group.rank)
    cross = group.Split(node.rank, group.rank)
    return LearnerComms(MPI.Intracomm(group), MPI.Intracomm(node), MPI.Intracomm(cross))
