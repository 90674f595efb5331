"""How a run ends early or on time: signals set a flag, the learners agree, learner 0 tells everybody.

And how learner 0 hears that a part of a checkpoint is written, and how well the run does then.
"""

from __future__ import annotations

import signal
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from hpcrl.comm.signals import SignalFlag
from hpcrl.comm.stream import Receiver, Tag, all_drained
from hpcrl.comm.world import World

TIME_IS_UP, DISK_REFUSES = 1000, 1001
"""Stand where a signal's number would: the allocation ends; checkpoints could not be written for too long."""
_CAUSES = {TIME_IS_UP: "the end of the allocation", DISK_REFUSES: "a disk that takes no checkpoint"}
_WORDS = 6
_STOPPED, _PART, _SCORE, _ROWS, _REFUSED = 0, -1, -2, -3, -4
"""First word of a message that is not a request to stop, whose first word is the signal's number."""
_POSTED = 4


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
        self.save_at: int | None = None
        """After `stopped`: the update whose checkpoint every rank is to write its part of, drained; None: no such."""
        self.code = 0
        """After `stopped`: the exit code of the run, where there is a reason for one; else 0."""
        self.score: float | None = None
        """On learner 0: what another rank has sent last by `send_score`."""
        self.rows_on_disk = -1
        """On learner 0: what was sent last by `send_rows`."""
        self.time_is_up: Callable[[], bool] = lambda: False
        """Asked on learner 0: whether to stop as if a signal had come."""
        learners = world.plan.ranks("learner") or world.plan.ranks("worker")
        root, self._rank = learners[0], world.rank
        others = [rank for rank in range(world.comm.size) if rank != root]
        self._learners = [rank for rank in learners if rank != root]
        self._asking = world.sender(root, Tag.STOP_REQUEST) if world.rank != root else None
        self._orders = world.receiver(root, Tag.STOP) if world.rank != root else None
        self._asked = {rank: world.receiver(rank, Tag.STOP_REQUEST) for rank in others if world.rank == root}
        self._ordering = {rank: world.sender(rank, Tag.STOP) for rank in others if world.rank == root}
        for receiver in self._receivers:
            for _ in range(_POSTED):
                receiver.post(np.zeros(_WORDS, np.int64))
        self._parts: list[tuple[int, int, bool, bytes | int]] = []
        self._has_asked = False
        self._asking_closed = False
        self._stop_cause = ""

    def poll(self) -> None:
        """Local progress: take in requests and orders, pass a signal on."""
        if self._flag.received is not None:
            self._note(self._flag.received, signal.Signals[self._flag.received], self._rank)
        if self._asking is None and not self._stop_cause and self.time_is_up():
            self.request_stop(TIME_IS_UP)
        for rank, receiver in self._asked.items():
            while (note := receiver.poll()) is not None:
                if note[0] in (_PART, _REFUSED):
                    update, final = divmod(int(note[1]), 2)
                    found = note[2:].tobytes() if note[0] == _PART else int(note[2])
                    self._parts.append((rank, update, bool(final), found))
                elif note[0] == _SCORE:
                    score = float(note[2:3].view(np.float64)[0])
                    self.score = None if np.isnan(score) else score
                elif note[0] == _ROWS:
                    self.rows_on_disk = int(note[1])
                else:
                    self._note(f"{_name(int(note[0]))} on rank {rank}", int(note[0]), rank)
                receiver.post(note)
        while self._orders is not None and (order := self._orders.poll()) is not None:
            number, argument = int(order[0]), int(order[1])
            if number == _STOPPED:
                self.stopped = True
                self.save_at = argument if argument >= 0 else None
                self.code = int(order[2])
            else:
                self._has_asked = True  # learner 0 knows
                self._note(f"{_name(number)} on rank {argument}", number, argument)
            self._orders.post(order)

    @property
    def stop_requested(self) -> bool:
        """Some rank this one knows of got a signal. To be agreed on by the learners before anybody acts on it."""
        return self.stop_cause != ""

    @property
    def stop_is_of_the_clock(self) -> bool:
        """Whether what `stop_cause` says is what comes before the end of an allocation. Local."""
        return self._stop_cause.startswith((_name(TIME_IS_UP), "SIGUSR1", "SIGUSR2"))

    @property
    def stop_cause(self) -> str:
        """The first signal this rank knows of, as in "SIGTERM" or "SIGUSR1 on rank 3"; empty before."""
        self.poll()
        return self._stop_cause

    def request_stop(self, number: int) -> None:
        """On learner 0: as if a signal had come; `number` is TIME_IS_UP or DISK_REFUSES."""
        self._note(_name(number), number, self._rank)

    def announce_stop(self, save_at: int | None = None, *, code: int = 0) -> None:
        """On learner 0, after all learners have agreed: tell the other ranks.

        `save_at`: the update whose checkpoint is to be written once everything is drained. `code`: the exit code, where
        that is not the budget's or a signal's.
        """
        self.stopped = True
        self.save_at, self.code = save_at, code
        for sender in self._ordering.values():
            order = _message(_STOPPED, -1 if save_at is None else save_at)
            order[2] = code
            sender.send(order)

    def send_part(self, update: int, digest: bytes, *, final: bool) -> None:
        """Tell learner 0 that this other rank has written its part of the checkpoint of `update`.

        digest: 32 bytes, the SHA-256 of the part. `final`: of the set that is written when all is drained.
        """
        if self._asking is None:
            raise RuntimeError("learner 0 need not tell itself")
        note = _message(_PART, 2 * update + final)
        note[2:] = np.frombuffer(digest, np.int64)
        self._asking.send(note)

    def send_refusal(self, update: int, number: int, *, final: bool) -> None:
        """In place of `send_part`: the disk has refused the part; `number` is its errno."""
        if self._asking is None:
            raise RuntimeError("learner 0 need not tell itself")
        note = _message(_REFUSED, 2 * update + final)
        note[2] = number
        self._asking.send(note)

    def send_score(self, score: float | None) -> None:
        """Tell learner 0 how well the run does, before `send_part`."""
        if self._asking is None:
            raise RuntimeError("learner 0 need not tell itself")
        note = _message(_SCORE, 0)
        note[2:3].view(np.float64)[0] = np.nan if score is None else score
        self._asking.send(note)

    def send_rows(self, number: int) -> None:
        """Tell learner 0, which may be this rank, that every row before mark `number` is in the result file."""
        if self._asking is None:
            self.rows_on_disk = number
        else:
            self._asking.send(_message(_ROWS, number))

    def take_parts(self) -> list[tuple[int, int, bool, bytes | int]]:
        """On learner 0: (world rank, update, final, digest) of the parts written since the last call. Local.

        Of a part that the disk has refused the errno stands in place of the digest.
        """
        self.poll()
        parts, self._parts = self._parts, []
        return parts

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
                self._ordering[learner].send(_message(number, rank))
        if self._asking is not None and not self._has_asked and not self._asking_closed:
            self._has_asked = True
            self._asking.send(_message(number, rank))


def _message(number: int, argument: int) -> npt.NDArray[np.int64]:
    return np.array([number, argument, 0, 0, 0, 0], np.int64)


def _name(number: int) -> str:
    return _CAUSES.get(number) or signal.Signals(number).name
