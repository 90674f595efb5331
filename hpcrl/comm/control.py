"""How a run ends early or on time: signals set a flag, the learners agree, learner 0 tells everybody."""

from __future__ import annotations

import signal

import numpy as np

from hpcrl.comm.signals import SignalFlag
from hpcrl.comm.stream import Receiver, Tag, all_drained
from hpcrl.comm.world import World


class Control:
    """One rank's part in stopping. Point-to-point with learner 0: every rank tells it of a signal, it tells the others.

    A learner that waits for its batch must know of a signal that came to another one, or the two would wait for each
    other at the next vote; so learner 0 passes requests on to the learners at once.
    """

    def __init__(self, world: World, flag: SignalFlag) -> None:
        """Local. Opens a stream to learner 0 and one from it (or their other ends)."""
        self._flag = flag
        self.stopped = False
        """The learners have agreed on the end: start no new work, drain."""
        learners = world.plan.ranks("learner") or world.plan.ranks("worker")
        root, self._rank = learners[0], world.rank
        others = [rank for rank in range(world.comm.size) if rank != root]
        self._learners = [rank for rank in learners if rank != root]
        self._asking = world.sender(root, Tag.STOP_REQUEST) if world.rank != root else None
        self._orders = world.receiver(root, Tag.STOP) if world.rank != root else None
        self._asked = {rank: world.receiver(rank, Tag.STOP_REQUEST) for rank in others if world.rank == root}
        self._ordering = {rank: world.sender(rank, Tag.STOP) for rank in others if world.rank == root}
        for receiver in self._receivers:
            receiver.post(np.zeros(2, np.int64))
        if self._orders is not None:  # a request passed on, then the end
            self._orders.post(np.zeros(2, np.int64))
        self._has_asked = False
        self._asking_closed = False
        self._stop_cause = ""

    def poll(self) -> None:
        """Local progress: take in requests and orders, pass a signal on."""
        if self._flag.received is not None:
            self._note(self._flag.received, signal.Signals[self._flag.received], self._rank)
        for rank, receiver in self._asked.items():
            if (note := receiver.poll()) is not None:
                number = signal.Signals(int(note[0]))
                self._note(f"{number.name} on rank {rank}", number, rank)
        while self._orders is not None and (order := self._orders.poll()) is not None:
            order_number, origin = (int(value) for value in order)
            self.stopped = self.stopped or order_number == 0
            if order_number:
                self._has_asked = True  # learner 0 knows
                self._note(f"{signal.Signals(order_number).name} on rank {origin}", order_number, origin)

    @property
    def stop_requested(self) -> bool:
        """Some rank this one knows of got a signal. To be agreed on by the learners before anybody acts on it."""
        return self.stop_cause != ""

    @property
    def stop_cause(self) -> str:
        """The first signal this rank knows of, as in "SIGTERM" or "SIGUSR1 on rank 3"; empty before."""
        self.poll()
        return self._stop_cause

    def announce_stop(self) -> None:
        """On every learner, after all have agreed: learner 0 tells the other ranks."""
        self.stopped = True
        for sender in self._ordering.values():
            sender.send(np.array([0, self._rank], np.int64))

    def close(self) -> None:
        """This rank announces nothing more. It may ask until learner 0 has closed, after its evaluation."""
        for sender in self._ordering.values():
            sender.close()

    @property
    def drained(self) -> bool:
        """After `close`: nothing of the control streams is under way. Takes in what still comes."""
        self.poll()
        if self._asking is not None and self._orders is not None and self._orders.drained:
            self._asking_closed = True
            self._asking.close()
        senders = [*self._ordering.values(), *([self._asking] if self._asking is not None else [])]
        return all_drained([*senders, *self._receivers])

    def cancel(self) -> None:
        """Take the posted buffers back; only after `drained`."""
        for receiver in self._receivers:
            receiver.cancel()

    @property
    def _receivers(self) -> list[Receiver]:
        return [*self._asked.values(), *([self._orders] if self._orders is not None else [])]

    def _note(self, cause: str, number: int, rank: int) -> None:
        """The first request counts: learner 0 passes it on to the learners, others pass it to learner 0."""
        if not self._stop_cause:
            self._stop_cause = cause
            for learner in self._learners if self._ordering and not self.stopped else []:
                self._ordering[learner].send(np.array([number, rank], np.int64))
        if self._asking is not None and not self._has_asked and not self._asking_closed:
            self._has_asked = True
            self._asking.send(np.array([number, rank], np.int64))
