"""Versioned parameters from learner 0 to the actors: whole versions, used where they lie, and nobody waits.

Each node that has actors has one window (`comm.parameters`). Learner 0 copies each version into the window of its own
node, which the actors there read in place; from there it goes to one receiver on every other node (`comm.slices`).
Where nothing is shared, every actor is a node of its own, its own receiver and only reader.

Who waits for whom. An actor waits for a version only while it holds no pin; a pin lasts as long as the work on one
trajectory, which waits for environments and for the replay rank to take what was sent, and for no version. An order
to another node lasts as long as its messages, into a buffer that was offered. So a buffer that is in use is free again
without any new version, and an owed one is made up at the next `poll`. Every rank polls while it waits; the one
exception are collectives of the learners, and those who send slices or receive must not be in one while another
learner waits for trajectories: `meet_learners` first.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from hpcrl.comm.failures import MortalSliceSender, RankLost
from hpcrl.comm.parameters import ParameterReader, ParameterWindow, Vector
from hpcrl.comm.ranks import RankPlan, share
from hpcrl.comm.slices import Orders, SliceReceiver, SliceSender, num_buffers, order_words, window_bytes
from hpcrl.comm.stream import all_drained
from hpcrl.comm.window import fits_in_shared_memory
from hpcrl.comm.world import World


@dataclass(frozen=True, slots=True)
class NodePart:
    """Who does what with the window of one node. World ranks."""

    ranks: tuple[int, ...]
    """Those that share it, by rank in the node's communicator."""
    writer: int
    readers: tuple[int, ...]


def plan_parts(plan: RankPlan, groups: Sequence[tuple[int, ...]]) -> list[NodePart]:
    """One part for the group of learner 0, first, and for each other group with actors. Pure.

    `groups`: a partition of the world into ranks that share memory. The writer elsewhere is the rank that polls most
    steadily: a replay rank, else a learner, else an actor. Without learners (synchronous) there are no parts.
    """
    if not plan.ranks("learner"):
        return []
    actors = set(plan.ranks("actor"))
    root = plan.ranks("learner")[0]
    by_choice = [root, *plan.ranks("replay"), *plan.ranks("learner"), *plan.ranks("actor")]
    parts = []
    for group in sorted(groups, key=lambda group: root not in group):
        readers = tuple(rank for rank in group if rank in actors)
        if readers or root in group:
            parts.append(NodePart(group, next(rank for rank in by_choice if rank in group), readers))
    return parts


class ParameterPublisher:
    """Learner 0's end: one memcpy per version, whatever the others do. Nonblocking."""

    def __init__(
        self,
        window: ParameterWindow,
        orders: Sequence[Orders],
        wake_readers: Callable[[], None],
        wake_senders: Callable[[], None],
        *,
        every_version: bool,
    ) -> None:
        """Local. `wake_readers`: called after each version; `wake_senders`: after orders.

        `every_version`: each node gets each version in order; else the newest, one at a time.
        """
        self._window = window
        self._orders, self._end_word = list(orders), 2 * len(orders)
        self._wake_readers, self._wake_senders = wake_readers, wake_senders
        self._every_version = every_version
        self._queues: list[deque[int]] = [deque() for _ in orders]
        """Per node: buffers still to be sent there."""
        self._owed: deque[tuple[int, Vector]] = deque()
        """Versions that found no free buffer; one at most, unless every version counts."""
        self._closed = False

    def publish(self, version: int, vector: Vector) -> None:
        """Copy float32 `vector` [size] where readers find it, now or, if no buffer is free, at a later `poll`.

        Never waits; `vector` may change afterwards. Versions rise.
        """
        if self._closed:
            raise RuntimeError("publication is closed")
        if not self._every_version:
            self._owed.clear()
        if self._owed or not self._store(version, vector):
            self._owed.append((version, vector.copy()))
        if self._orders:
            self.poll()

    def poll(self) -> None:
        """Make up what is owed, and give orders to nodes that are ready."""
        while self._owed and self._store(*self._owed[0]):
            self._owed.popleft()
        given = False
        for orders, queue in zip(self._orders, self._queues, strict=True):
            if orders.poll() and queue:
                orders.give(queue.popleft())
                given = True
        if given:
            self._wake_senders()

    def forget(self, receiver: int) -> None:
        """A receiver (world rank) has died that was the only reader of its node: nothing is sent there any more."""
        for node, orders in enumerate(self._orders):
            if orders.receiver == receiver:
                del self._orders[node], self._queues[node]
                return

    def close(self) -> None:
        """No more versions; what is owed or waits for a node is forgotten."""
        self._closed = True
        self._owed.clear()
        for queue in self._queues:
            queue.clear()
        self._window.sync()
        self._window.set_word(self._end_word, 1)
        self._wake_senders()

    @property
    def drained(self) -> bool:
        """Closed, and nothing is under way."""
        return self._closed and all_drained(self._orders)

    def cancel(self) -> None:
        """Only after `drained`."""
        for orders in self._orders:
            orders.cancel()

    def _store(self, version: int, vector: Vector) -> bool:
        for orders in self._orders:
            orders.poll()  # what has left in the meantime is free
        in_use = {index for queue in self._queues for index in queue}
        in_use |= {orders.under_way for orders in self._orders if orders.under_way is not None}
        index = self._window.claim(in_use)
        if index is None:
            return False
        np.copyto(self._window.vectors[index], vector)
        self._window.announce(index, version)
        for queue in self._queues:
            if not self._every_version:
                queue.clear()
            queue.append(index)
        self._wake_readers()
        return True


class ParameterExchange:
    """One rank's part in the publication, whatever its roles."""

    def __init__(self, world: World, num_parameters: int) -> None:
        """Collective over the world; pickled messages, at start-up only. The world frees the memory.

        Deterministic runs get every version, and the newest two are kept, because their grants name one of these.
        Otherwise the newest counts. The lag contract lets actors work under at most max_lag + 1 versions at a time:
        with that many buffers a publication hardly ever finds none free.
        """
        config = world.config
        every_version = config.deterministic
        buffers = num_buffers(config)
        groups = _groups(world, window_bytes(config, num_parameters, world.comm.size))
        parts = plan_parts(world.plan, groups)
        mine = next((part for part in parts if world.rank in part.ranks), None)
        home, others = parts[:1], parts[1:]
        learners = world.plan.ranks("learner")
        senders = tuple(rank for rank in learners if home and rank in home[0].ranks)
        serving = {part.writer for part in others} | (set(senders) if others else set())
        self.learners_must_meet = not serving.isdisjoint(learners[1:])
        """Some learner other than learner 0 sends or receives."""
        self.publisher: ParameterPublisher | None = None
        """On learner 0."""
        self.reader: ParameterReader | None = None
        """On actors."""
        self._learners = world.learners.group if world.learners is not None else None
        self._senders: list[SliceSender | MortalSliceSender] = []
        self._receiver: SliceReceiver | None = None
        if mine is None:
            return
        window = ParameterWindow(
            world.node.comm if len(mine.ranks) > 1 else None,
            mine.ranks.index(mine.writer),
            num_parameters,
            buffers=buffers,
            retain=2 if every_version else 1,
            words=order_words(len(others)),
        )
        world.on_close(window.close)
        if world.failures is not None:
            world.failures.on_death(partial(self._lose_actor, world.rank, window, mine, others))
        bells = [(mine.ranks.index(rank), world.wake(rank)) for rank in mine.readers]
        self._wake_readers = partial(_wake_waiting, window, bells)
        if world.rank in mine.readers:
            self.reader = ParameterReader(window)
        if mine in home and world.rank in senders:
            self._open_senders(world, window, others, senders, num_parameters)
        if mine in home and world.rank == mine.writer:
            places = tuple(mine.ranks.index(rank) for rank in senders)
            orders = [
                Orders(world, window, part.writer, node, len(others), places)
                for node, part in enumerate(others)
            ]
            wake_senders = partial(_call_all, [world.wake(rank) for rank in senders])
            self.publisher = ParameterPublisher(
                window, orders, self._wake_readers, wake_senders, every_version=every_version
            )
        elif world.rank == mine.writer:
            self._receiver = SliceReceiver(world, window, senders, num_parameters)
            world.receivers.append(self._receiver)

    def poll(self) -> bool:
        """Progress of what this rank does for others; whether a version came in. To be called all the time."""
        if self.publisher is not None:
            self.publisher.poll()
        for sender in self._senders:
            sender.poll()
        arrived = self._receiver is not None and self._receiver.poll()
        if arrived:
            self._wake_readers()
        return arrived

    def meet_learners(self) -> Callable[[], bool]:
        """Start a barrier of the learners; call the result, and `poll`, until it is true. Collective over them."""
        if self._learners is None:
            raise RuntimeError("only learners meet")
        request = self._learners.Ibarrier()
        return lambda: bool(request.Test())

    @property
    def drained(self) -> bool:
        """Learner 0 has closed, and nothing is under way to or from this rank. Takes in what still comes."""
        ends = [end for end in (self.publisher, self._receiver) if end is not None]
        return all_drained([*ends, *self._senders])

    def cancel(self) -> None:
        """Take back what was offered; only after `drained`."""
        if self.publisher is not None:
            self.publisher.cancel()

    def _open_senders(
        self,
        world: World,
        window: ParameterWindow,
        others: list[NodePart],
        senders: tuple[int, ...],
        size: int,
    ) -> None:
        part = share(size, len(senders), senders.index(world.rank))
        for node, other in enumerate(others):
            sender = SliceSender(world, window, other.writer, node, len(others), part)
            failures = world.failures_of(other.writer)
            self._senders.append(sender if failures is None else MortalSliceSender(sender, failures))
        world.senders += self._senders

    def _lose_actor(
        self, own: int, window: ParameterWindow, mine: NodePart, others: Sequence[NodePart], rank: int
    ) -> None:
        """An actor is dead: what it pinned is free, and nothing is sent to it. Local.

        Raises RankLost if it received for others.
        """
        if rank in mine.ranks and own == mine.writer:
            window.forget(mine.ranks.index(rank))
        if any(part.writer == rank and len(part.readers) > 1 for part in [mine, *others]):
            raise RankLost(
                f"rank {rank} has died, which received the parameters for the other actors of its node; a node with "
                "a replay or learner rank does not depend on one of its actors"
            )
        if self.publisher is not None:
            self.publisher.forget(rank)


def _wake_waiting(window: ParameterWindow, bells: Sequence[tuple[int, Callable[[], None]]]) -> None:
    """Ring the bells of readers (rank in the node, bell) that asked for a version in vain."""
    for reader, ring in bells:
        if window.waiting(reader):
            ring()


def _call_all(functions: Sequence[Callable[[], None]]) -> None:
    for function in functions:
        function()


def _groups(world: World, nbytes: int) -> list[tuple[int, ...]]:
    """The ranks that share parameters: nodes where there is room, else each rank alone. Collective over the world."""
    node = world.node
    shared = node.bells is not None and fits_in_shared_memory(node.comm, nbytes if node.comm.rank == 0 else 0)
    keys: list[str | int] = world.comm.allgather(world.seats[world.rank]["node"] if shared else world.rank)
    return [tuple(rank for rank, other in enumerate(keys) if other == key) for key in dict.fromkeys(keys)]
