"""A run that goes on when an actor dies (faults.actor_death=continue): who is dead, and streams that may lose an end.

Needs ULFM, the part of MPI for failed processes. Every rank looks for deaths now and then (`poll`) and tells those who
have asked (`on_death`), who give back what the dead one held. Its streams end by themselves: `MortalSender` and the
others stand around the usual ends on ranks that serve actors, from the moment MPI or `poll` says that there is nobody
at the other end. Nothing is ever freed that was made together with the dead, and MPI is not finalized: `agree` is the
only collective at the end of such a run.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import numpy as np
import numpy.typing as npt
from mpi4py import MPI

from hpcrl.comm.ranks import RankPlan
from hpcrl.comm.wait import Waiter
from hpcrl.config import ExitCode

if TYPE_CHECKING:
    from hpcrl.comm.slices import SliceSender
    from hpcrl.comm.stream import OfferingEnd, ReceivingEnd, Sender, SendingEnd

T = TypeVar("T")
Item = TypeVar("Item")
_INTERVAL_S = 0.02
_CODES = sorted(int(code) for code in ExitCode)


class RankLost(RuntimeError):
    """A rank has died that the run cannot do without."""

    def __init__(self, text: str, *, said: bool = False) -> None:
        """`said`: the parent of the dead rank has said all there is to say."""
        super().__init__(text)
        self.said = said


class Failures:
    """One rank's knowledge of who has died. Local but for `agree`."""

    def __init__(self, comm: MPI.Intracomm, plan: RankPlan, waiter: Waiter) -> None:
        """Local. `comm`: the world's; MPI must be one with ULFM."""
        self._comm, self._waiter = comm, waiter
        self._group = comm.Get_group()
        self.mortal = frozenset(plan.ranks("actor"))
        """Ranks whose death the run survives."""
        self.dead: set[int] = set()
        """World ranks, each noted after all who asked for it have been told."""
        self._told: list[Callable[[int], None]] = []
        self._next = 0.0
        self._abandoned: list[Any] = []

    def on_death(self, tell: Callable[[int], None]) -> None:
        """Have `tell(rank)` called once for every actor that dies. Local. It may raise RankLost."""
        self._told.append(tell)

    def poll(self) -> bool:
        """Look for deaths; whether there is a new one. Local. Raises RankLost if the run cannot go on."""
        now = time.perf_counter()
        if now < self._next:
            return False
        self._next = now + _INTERVAL_S
        self._comm.Iprobe(self._comm.rank)  # MPI learns of failures inside its calls
        group = self._comm.Get_failed()
        found: Sequence[int] = ()
        if group.size > len(self.dead):
            found = group.Translate_ranks(range(group.size), self._group)
        group.Free()
        new = [rank for rank in found if rank not in self.dead]
        for rank in new:
            if rank not in self.mortal:
                raise RankLost(f"rank {rank} has died", said=True)
            for tell in self._told:
                tell(rank)
            self.dead.add(rank)
        return bool(new)

    def agree(self, code: int, timeout_s: float) -> int:
        """The largest exit code of the living ranks. Collective over them, polled; also a barrier.

        Raises TimeoutError when some living rank does not come.
        """
        deadline = time.perf_counter() + timeout_s
        place = _CODES.index(code)
        while True:
            # ones from the place of the code on: what is left after a bitwise and begins at the largest
            flags = np.array([(1 << len(_CODES)) - (1 << place)], np.int32)
            self._comm.Ack_failed()
            try:
                request = self._comm.Iagree(flags)
                if not self._waiter.until(request.Test, deadline - time.perf_counter()):
                    self._abandoned.append((request, flags))  # MPI may still write
                    raise TimeoutError(
                        f"rank {self._comm.rank}: not all living ranks reached the end within {timeout_s:.0f} s"
                    )
            except MPI.Exception as error:
                if not _is_death(error):
                    raise
                continue  # on all alike: a death that not all had acknowledged
            left = int(flags[0])
            return _CODES[(left & -left).bit_length() - 1]

    def meet(self, timeout_s: float) -> None:
        """Wait for the living ranks. Collective over them, polled; the last thing, for then they leave."""
        request = self._comm.Iagree(np.ones(1, np.int32))
        try:
            self._waiter.until(request.Test, timeout_s)
        except MPI.Exception as error:
            if not _is_death(error):
                raise


class _MortalEnd:
    """What all ends have in common. Local."""

    def __init__(self, end: SendingEnd | ReceivingEnd, other: int, failures: Failures) -> None:
        self._end, self._other, self._failures = end, other, failures
        self._lost = False
        self.tag = end.tag

    @property
    def messages(self) -> int:
        """Messages so far."""
        return self._end.messages

    @property
    def bytes(self) -> int:
        """Payload so far."""
        return self._end.bytes

    @property
    def drained(self) -> bool:
        """As the end says, or nobody is at the other end."""
        return self._attempt(lambda: self._end.drained, otherwise=True)

    def state(self) -> str:
        """For a report: what this end has done and waits for."""
        return self._end.state() + (" (the other end is dead)" if self._is_over() else "")

    def _is_over(self) -> bool:
        return self._lost or self._other in self._failures.dead

    def _attempt(self, call: Callable[[], T], otherwise: T) -> T:
        """`call()`; `otherwise` when nobody is at the other end."""
        if self._is_over():
            return otherwise
        try:
            return call()
        except MPI.Exception as error:
            if not _is_death(error):
                raise
            self._lost = True  # `poll` of Failures tells the others
            return otherwise


class MortalSender(_MortalEnd):
    """A Sender to an actor: once that is dead, what is sent is lost and the buffer free at once."""

    def __init__(self, end: Sender, failures: Failures) -> None:
        """Local."""
        super().__init__(end, end.dest, failures)
        self.dest = end.dest
        self._sender = end

    def send(self, buffer: npt.NDArray[Any], on_sent: Callable[[], None] | None = None) -> None:
        """As Sender.send."""
        self._attempt(lambda: self._sender.send(buffer, on_sent), otherwise=None)
        if self._is_over() and on_sent is not None:
            on_sent()

    def poll(self) -> int:
        """As Sender.poll."""
        return self._attempt(self._sender.poll, otherwise=0)

    def close(self) -> None:
        """As Sender.close."""
        self._attempt(self._sender.close, otherwise=None)


class MortalReceiver(_MortalEnd, Generic[Item]):
    """A Receiver or RowReceiver from an actor: once that is dead, nothing comes.

    Buffers offered to it stay with MPI, and rows are never used again.
    """

    def __init__(self, end: OfferingEnd[Item], failures: Failures) -> None:
        """Local."""
        super().__init__(end, end.source, failures)
        self.source = end.source
        self._receiver = end

    def post(self, item: Item, /) -> None:
        """As that of the end."""
        self._attempt(lambda: self._receiver.post(item), otherwise=None)

    @property
    def posted(self) -> int:
        """As that of the end; nothing counts any more once the sender is dead."""
        return 0 if self._is_over() else self._receiver.posted

    def poll(self) -> Item | None:
        """As that of the end."""
        return self._attempt(self._receiver.poll, otherwise=None)

    def cancel(self) -> None:
        """As that of the end."""
        self._attempt(self._receiver.cancel, otherwise=None)


class MortalSliceSender(_MortalEnd):
    """A SliceSender to an actor."""

    def __init__(self, end: SliceSender, failures: Failures) -> None:
        """Local."""
        super().__init__(end, end.dest, failures)
        self.dest = end.dest
        self._sender = end

    def poll(self) -> None:
        """As SliceSender.poll."""
        self._attempt(self._sender.poll, otherwise=None)


def _is_death(error: MPI.Exception) -> bool:
    return error.Get_error_class() in (MPI.ERR_PROC_FAILED, MPI.ERR_PROC_FAILED_PENDING)
