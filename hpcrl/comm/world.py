"""The MPI world of a run: communicators by role and by traffic class, and what each rank sits on."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from mpi4py import MPI

from hpcrl.comm.ranks import Placement, RankPlan, Role, plan_ranks
from hpcrl.comm.stream import Receiver, Sender, Tag
from hpcrl.comm.wait import Waiter
from hpcrl.config import RunConfig


class Traffic(Enum):
    """Traffic classes; each has a communicator of its own, so that their messages cannot meet."""

    TRAJECTORIES = "trajectories"
    REPLAY = "replay"
    PARAMETERS = "parameters"
    RECORDS = "records"
    CONTROL = "control"


_CLASS_OF_TAG = {
    Tag.TRAJECTORY: Traffic.TRAJECTORIES,
    Tag.GRANT: Traffic.TRAJECTORIES,
    Tag.BATCH: Traffic.REPLAY,
    Tag.REQUEST: Traffic.REPLAY,
    Tag.PARAMETERS: Traffic.PARAMETERS,
    Tag.VERSION: Traffic.CONTROL,
    Tag.RECORDS: Traffic.RECORDS,
    Tag.STOP: Traffic.CONTROL,
    Tag.STOP_REQUEST: Traffic.CONTROL,
}


@dataclass(frozen=True, slots=True)
class LearnerComms:
    """Communicators of one learner (or synchronous worker)."""

    group: MPI.Intracomm
    """All learners, rank = role_rank."""
    node: MPI.Intracomm
    """Learners that share memory with this one."""
    cross: MPI.Intracomm
    """Learners with the same rank in `node`, one per node (only nodes that have one)."""


@dataclass(slots=True)
class World:
    """One rank's view of the run's world. Made and closed collectively over the communicator it was given."""

    comm: MPI.Intracomm
    plan: RankPlan
    config: RunConfig
    waiter: Waiter
    learners: LearnerComms | None
    seats: list[dict[str, Any]]
    """One record per world rank: node, local_rank, cores, threads, pid."""
    attempt: int = 1
    _by_class: dict[Traffic, MPI.Intracomm] = field(default_factory=dict)
    senders: list[Sender] = field(default_factory=list)
    receivers: list[Receiver] = field(default_factory=list)
    _abandoned: list[tuple[MPI.Request, bytearray, bytearray]] = field(default_factory=list)

    @property
    def rank(self) -> int:
        """World rank."""
        return int(self.comm.rank)

    @property
    def placements(self) -> list[Placement]:
        """Roles of this rank."""
        return self.plan.of_rank(self.rank)

    def sender(self, dest: int, tag: Tag) -> Sender:
        """Open the sending end of a stream. Local; the other end is opened by `receiver` on rank `dest`."""
        sender = Sender(self._by_class[_CLASS_OF_TAG[tag]], dest, tag, self.config.comm.chunk_bytes)
        self.senders.append(sender)
        return sender

    def receiver(self, source: int, tag: Tag) -> Receiver:
        """Open the receiving end of a stream. Local."""
        receiver = Receiver(self._by_class[_CLASS_OF_TAG[tag]], source, tag, self.config.comm.chunk_bytes)
        self.receivers.append(receiver)
        return receiver

    def worst_exit_code(self, code: int, timeout_s: float = 60.0) -> int:
        """The largest exit code of any rank. Collective over the world, polled; also the last barrier.

        Raises TimeoutError when some rank does not come.
        """
        mine, worst = bytearray(code.to_bytes(4, "little")), bytearray(4)
        request = self.comm.Iallreduce([mine, MPI.INT32_T], [worst, MPI.INT32_T], MPI.MAX)
        if not self.waiter.until(request.Test, timeout_s):
            self._abandoned.append(
                (request, mine, worst)
            )  # MPI may still write, and mpi4py does not hold buffers
            raise TimeoutError(f"rank {self.rank}: not all ranks reached the end within {timeout_s:.0f} s")
        return int.from_bytes(worst, "little")

    def close(self) -> None:
        """Free every communicator. Collective over the world. Raises RuntimeError if messages are left over."""
        left = [stream.tag.name for stream in self.senders if not stream.drained]
        left += [stream.tag.name for stream in self.receivers if stream.posted or not stream.drained]
        if left:
            raise RuntimeError(
                f"rank {self.rank} ends with messages in flight on streams {sorted(set(left))}"
            )
        for comm in self._by_class.values():
            comm.Free()
        if self.learners is not None:
            for comm in (self.learners.group, self.learners.node, self.learners.cross):
                comm.Free()
        self.comm.Free()


def open_world(
    parent: MPI.Intracomm, config: RunConfig, threads: int, nodes: Sequence[str] | None = None
) -> World:
    """Partition `parent`. Collective over `parent`; pickled messages, at start-up only.

    `nodes[r]` overrides the node of each rank (tests of uneven node maps on one host).
    """
    comm = parent.Dup()
    host = MPI.Get_processor_name() if nodes is None else nodes[comm.rank]
    cores = sorted(os.sched_getaffinity(0))
    seats = comm.allgather({"node": host, "cores": cores, "threads": threads, "pid": os.getpid()})
    for rank, seat in enumerate(seats):
        seat["local_rank"] = sum(other["node"] == seat["node"] for other in seats[:rank])
    plan = plan_ranks(config, [seat["node"] for seat in seats])
    return World(
        comm=comm,
        plan=plan,
        config=config,
        waiter=Waiter(config.comm.wait, crowded=bool(crowded_nodes([s for s in seats if s["node"] == host]))),
        learners=_learner_comms(comm, plan, [seat["node"] for seat in seats]),
        seats=seats,
        _by_class={traffic: comm.Dup() for traffic in Traffic},
    )


def crowded_nodes(seats: Sequence[dict[str, Any]]) -> list[str]:
    """One sentence for each node on which ranks outnumber the cores they may use. Pure."""
    ranks = Counter(seat["node"] for seat in seats)
    sentences = []
    for node, count in ranks.items():
        cores = {core for seat in seats if seat["node"] == node for core in seat["cores"]}
        if count > len(cores):
            noun = "core" if len(cores) == 1 else "cores"
            sentences.append(f"{count} ranks share {len(cores)} {noun} on {node}")
    return sentences


def _learner_comms(comm: MPI.Intracomm, plan: RankPlan, nodes: Sequence[str]) -> LearnerComms | None:
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
