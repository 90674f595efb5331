"""How a run ends early or on time: signals set a flag, the learners agree, learner 0 tells everybody."""

from __future__ import annotations

import signal

import numpy as np

from hpcrl.comm.signals import SignalFlag
from hpcrl.comm.stream import Tag, all_drained
from hpcrl.comm.world import World


class Control:
    """One rank's part in stopping. Point-to-point; ranks without a learner ask, learner 0 announces."""

    def __init__(self, world: World, flag: SignalFlag) -> None:
        """Local. Opens one stream from learner 0 and one to each learner (or their other ends)."""
        self._flag = flag
        self.stopped = False
        """Learner 0 has announced the end: start no new work, drain."""
        learners = world.plan.ranks("learner") or world.plan.ranks("worker")
        others = [rank for rank in range(world.comm.size) if rank not in learners]
        me = world.rank
        self._asking = [world.sender(rank, Tag.STOP_REQUEST) for rank in learners] if me in others else []
        self._asked = [world.receiver(rank, Tag.STOP_REQUEST) for rank in others] if me in learners else []
        self._announce = [world.sender(rank, Tag.STOP) for rank in others] if me == learners[0] else []
        self._announced = [world.receiver(learners[0], Tag.STOP)] if me in others else []
        for receiver in self._asked + self._announced:
            receiver.post(np.zeros(1, np.int64))
        self._has_asked = False
        self._asking_closed = False
        self._stop_cause = ""

    def poll(self) -> None:
        """Local progress: pass a signal on to the learners, take in an announcement."""
        if self._flag.received is not None and not self._has_asked and not self._asking_closed:
            self._has_asked = True
            for sender in self._asking:
                sender.send(np.full(1, signal.Signals[self._flag.received], np.int64))
        for receiver in self._announced:
            self.stopped = self.stopped or receiver.poll() is not None

    @property
    def stop_requested(self) -> bool:
        """On a learner: some rank this one knows of got a signal. To be agreed on before anybody acts on it."""
        return self.stop_cause != ""

    @property
    def stop_cause(self) -> str:
        """On a learner: the first signal it knows of, as in "SIGTERM" or "SIGUSR1 on rank 3"; empty before."""
        if not self._stop_cause and self._flag.received is not None:
            self._stop_cause = self._flag.received
        for receiver in self._asked:
            note = receiver.poll()
            if note is not None and not self._stop_cause:
                self._stop_cause = f"{signal.Signals(int(note[0])).name} on rank {receiver.source}"
        return self._stop_cause

    def announce_stop(self) -> None:
        """On every learner, after all have agreed: learner 0 tells the other ranks."""
        self.stopped = True
        for sender in self._announce:
            sender.send(np.ones(1, np.int64))

    def close(self) -> None:
        """This rank announces nothing more. It may ask until learner 0 has closed, after its evaluation."""
        for sender in self._announce:
            sender.close()

    @property
    def drained(self) -> bool:
        """After `close`: nothing of the control streams is under way. Takes in what still comes."""
        for receiver in self._asked + self._announced:
            receiver.poll()
        if not self._asking_closed and all_drained(self._announced):
            self._asking_closed = True
            for sender in self._asking:
                sender.close()
        return all_drained([*self._asking, *self._announce, *self._asked, *self._announced])

    def cancel(self) -> None:
        """Take the posted buffers back; only after `drained`."""
        for receiver in self._asked + self._announced:
            receiver.cancel()
