"""The MPI world of a run: communicators by role and by traffic class, and what each rank sits on."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import partial
from typing import Any

from mpi4py import MPI

from hpcrl.comm.failures import Failures, MortalReceiver, MortalSender
from hpcrl.comm.groups import LearnerComms, Node, learner_comms, node_name, open_node
from hpcrl.comm.mailbox import MOST_BYTES, Mailboxes, MailReceiver, MailSender
from hpcrl.comm.ranks import Placement, RankPlan, crowded_nodes, plan_ranks
from hpcrl.comm.row_messages import MessageRowReceiver, MessageRowSender
from hpcrl.comm.rows import Arena, RowReceiver, RowSender, SharedRowReceiver, SharedRowSender
from hpcrl.comm.stream import MessageReceiver, MessageSender, Receiver, ReceivingEnd, Sender, SendingEnd, Tag
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
    Tag.WORK: Traffic.RECORDS,
    Tag.STOP: Traffic.CONTROL,
    Tag.STOP_REQUEST: Traffic.CONTROL,
}


_SMALL = {Tag.GRANT, Tag.REQUEST, Tag.VERSION, Tag.STOP, Tag.STOP_REQUEST, Tag.WORK}
"""Their messages fit a mailbox cell (unless the opener says otherwise)."""


@dataclass(slots=True)
class World:
    """One rank's view of the run's world. Made and closed collectively over the communicator it was given."""

    comm: MPI.Intracomm
    plan: RankPlan
    config: RunConfig
    waiter: Waiter
    learners: LearnerComms | None
    node: Node
    seats: list[dict[str, Any]]
    """One record per world rank: node, local_rank, cores, threads, pid, device (that of a learner)."""
    failures: Failures | None = None
    """None: the death of any rank ends the job."""
    core: MPI.Intracomm | None = None
    """With `failures`: the ranks that the run cannot do without; None on the others."""
    attempt: int = 1
    _by_class: dict[Traffic, MPI.Intracomm] = field(default_factory=dict)
    senders: list[SendingEnd] = field(default_factory=list)
    receivers: list[ReceivingEnd] = field(default_factory=list)
    _closing: list[Callable[[], None]] = field(default_factory=list)
    _abandoned: list[tuple[MPI.Request, bytearray, bytearray]] = field(default_factory=list)

    @property
    def rank(self) -> int:
        """World rank."""
        return int(self.comm.rank)

    @property
    def placements(self) -> list[Placement]:
        """Roles of this rank."""
        return self.plan.of_rank(self.rank)

    def sender(self, dest: int, tag: Tag, nbytes: int = MOST_BYTES) -> Sender:
        """Open the sending end of a stream. Local; the other end is opened by `receiver` on rank `dest`.

        `nbytes`: no message of a small kind is longer; equal at both ends.
        """
        sender: Sender
        mail = self._mail_to(dest, tag, nbytes)
        if mail is not None:
            sender = MailSender(mail, dest, self.node.ranks.index(dest), tag)
        else:
            sender = MessageSender(self.comm_of(tag), dest, tag, self.chunk_bytes, self.wake(dest))
        if (failures := self.failures_of(dest)) is not None:
            sender = MortalSender(sender, failures)
        self.senders.append(sender)
        return sender

    def receiver(self, source: int, tag: Tag, nbytes: int = MOST_BYTES) -> Receiver:
        """Open the receiving end of a stream. Local."""
        receiver: Receiver
        mail = self._mail_to(source, tag, nbytes)
        if mail is not None:
            receiver = MailReceiver(mail, source, self.node.ranks.index(source), tag)
        else:
            receiver = MessageReceiver(self.comm_of(tag), source, tag, self.chunk_bytes)
        if (failures := self.failures_of(source)) is not None:
            receiver = MortalReceiver(receiver, failures)
        self.receivers.append(receiver)
        return receiver

    def row_sender(self, dest: int, tag: Tag, arena: Arena, slots: int) -> RowSender:
        """Open the sending end of a row stream into `arena` of rank `dest`. Local.

        `slots`: buffers of this rank's own where the row itself is out of reach.
        """
        sender: RowSender
        if arena.shared_with(dest):
            sender = SharedRowSender(self, dest, tag, arena)
        else:
            sender = MessageRowSender(self, dest, tag, arena, slots)
        self.senders.append(sender)
        return sender

    def row_receiver(self, source: int, tag: Tag, arena: Arena) -> RowReceiver:
        """Open the receiving end of a row stream into this rank's rows of `arena`. Local."""
        receiver: RowReceiver
        if arena.shared_with(source):
            receiver = SharedRowReceiver(self, source, tag, arena)
        else:
            receiver = MessageRowReceiver(self, source, tag, arena)
        if (failures := self.failures_of(source)) is not None:
            receiver = MortalReceiver(receiver, failures)
        self.receivers.append(receiver)
        return receiver

    def failures_of(self, rank: int) -> Failures | None:
        """What a stream to or from `rank` must reckon with; None where its death ends the job. Local."""
        return self.failures if self.failures is not None and rank in self.failures.mortal else None

    def comm_of(self, tag: Tag) -> MPI.Intracomm:
        """The communicator of a message kind."""
        return self._by_class[_CLASS_OF_TAG[tag]]

    def wake(self, rank: int) -> Callable[[], None]:
        """What to call after a message to `rank` has left: rings its bell if it is on this node."""
        node = self.node
        if node.bells is None or rank == self.rank or rank not in node.ranks:
            return _nobody_sleeps
        return partial(node.bells.ring, node.ranks.index(rank))

    @property
    def chunk_bytes(self) -> int:
        """Longer messages travel in parts."""
        return self.config.comm.chunk_bytes

    def on_close(self, close: Callable[[], None]) -> None:
        """Have `close` called by `close`, last come first. Local; equally on all ranks if `close` is collective."""
        self._closing.append(close)

    def _mail_to(self, other: int, tag: Tag, nbytes: int) -> Mailboxes | None:
        small = tag in _SMALL and nbytes <= MOST_BYTES
        return self.node.mail if small and other in self.node.ranks else None

    def come_together(self) -> None:
        """Wait for all ranks before a blocking collective at start-up. Collective over the world, polled.

        Whoever waits inside MPI keeps a core busy, and may share it with a rank that it waits for.
        """
        self.waiter.until(self.comm.Ibarrier().Test)

    def worst_exit_code(self, code: int, timeout_s: float = 60.0) -> int:
        """The largest exit code of any rank. Collective over the world, polled; also the last barrier.

        Raises TimeoutError when some rank does not come.
        """
        if self.failures is not None:
            return self.failures.agree(code, timeout_s)
        mine, worst = bytearray(code.to_bytes(4, "little")), bytearray(4)
        request = self.comm.Iallreduce([mine, MPI.INT32_T], [worst, MPI.INT32_T], MPI.MAX)
        if not self.waiter.until(request.Test, timeout_s):
            self._abandoned.append(
                (request, mine, worst)
            )  # MPI may still write, and mpi4py does not hold buffers
            raise TimeoutError(f"rank {self.rank}: not all ranks reached the end within {timeout_s:.0f} s")
        return int.from_bytes(worst, "little")

    def gather(self, value: Any) -> list[Any]:
        """The values of all ranks that the run cannot do without, on the writer; [] elsewhere. Collective over them.

        Pickled, at the end of a run only.
        """
        comm, writer = self.comm, self.plan.writer
        if self.failures is not None:
            if self.core is None:
                return []
            comm, writer = self.core, _core_ranks(self.comm, self.failures).index(writer)
        return comm.gather(value, writer) or []

    def meet(self, timeout_s: float = 60.0) -> None:
        """Wait for all ranks, or all that live. Collective over them, polled; the last thing before `close`."""
        if self.failures is None:
            self.come_together()
        else:
            self.failures.meet(timeout_s)

    def report(self) -> str:
        """Every stream of this rank that is not at its end, one line each. Local."""
        ends = [*self.senders, *self.receivers]
        return "\n".join(f"  {end.state()}" for end in ends if not end.drained) or "  no stream is open"

    def close(self) -> None:
        """Free every communicator. Collective over the world. Raises RuntimeError if messages are left over.

        With `failures` nothing is freed, and MPI must not be finalized: both would wait for the dead.
        """
        left = [stream.tag.name for stream in self.senders if not stream.drained]
        left += [stream.tag.name for stream in self.receivers if stream.posted or not stream.drained]
        if left:
            raise RuntimeError(
                f"rank {self.rank} ends with messages in flight on streams {sorted(set(left))}"
            )
        if self.failures is not None:
            return
        while self._closing:
            self._closing.pop()()
        for comm in self._by_class.values():
            comm.Free()
        if self.learners is not None:
            for comm in (self.learners.group, self.learners.node, self.learners.cross):
                comm.Free()
        self.node.comm.Free()
        self.comm.Free()


def open_world(
    parent: MPI.Intracomm, config: RunConfig, threads: int, nodes: Sequence[str] | None = None
) -> World:
    """Partition `parent`. Collective over `parent`; pickled messages, at start-up only.

    `nodes[r]` overrides the node of each rank (tests of uneven node maps on one host).
    """
    comm = MPI.Intracomm(parent.Dup())
    host = node_name(comm) if nodes is None else nodes[comm.rank]
    cores = sorted(os.sched_getaffinity(0))
    seat = {"node": host, "cores": cores, "threads": threads, "pid": os.getpid(), "device": "cpu"}
    seats = comm.allgather(seat)
    for rank, seat in enumerate(seats):
        seat["local_rank"] = sum(other["node"] == seat["node"] for other in seats[:rank])
    names = [seat["node"] for seat in seats]
    plan = plan_ranks(config, names)
    node = open_node(comm, names, shared=config.comm.transport == "auto")
    crowded = bool(crowded_nodes([seat for seat in seats if seat["node"] == host]))
    all_ring = node.bells is not None and len(node.ranks) == comm.size
    waiter = Waiter(config.comm.wait, crowded=crowded, alarm=node.bells, all_ring=all_ring)
    survives = config.faults.actor_death == "continue" and comm.size > 1
    failures = Failures(comm, plan, waiter) if survives else None
    world = World(
        comm=comm,
        plan=plan,
        config=config,
        waiter=waiter,
        learners=learner_comms(comm, plan, names),
        node=node,
        seats=seats,
        failures=failures,
        core=None if failures is None else _core(comm, failures),
        _by_class={traffic: MPI.Intracomm(comm.Dup()) for traffic in Traffic},
    )
    if node.bells is not None and node.mail is not None:
        world.on_close(node.bells.close)
        world.on_close(node.mail.close)
    return world


def _core_ranks(comm: MPI.Intracomm, failures: Failures) -> list[int]:
    return [rank for rank in range(comm.size) if rank not in failures.mortal]


def _core(comm: MPI.Intracomm, failures: Failures) -> MPI.Intracomm | None:
    """Collective over `comm`."""
    mine = comm.rank in _core_ranks(comm, failures)
    core = comm.Split(0 if mine else MPI.UNDEFINED, comm.rank)
    return MPI.Intracomm(core) if mine else None


def _nobody_sleeps() -> None:
    """On another node, or this rank itself: no bell to ring."""
