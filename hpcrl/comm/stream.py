"""Nonblocking point-to-point streams of fixed-size messages between two ranks, counted and drained at the end.

A stream has one sender and one receiver, on one communicator and tag. Messages arrive in the order they were sent.
The receiver decides how many may be under way: it posts buffers; the protocols above a stream (grants, requests)
make sure that nothing is sent without one, so that no message waits unexpected and sends always complete.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from enum import IntEnum
from typing import Any, Protocol, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt
from mpi4py import MPI

Bytes = npt.NDArray[np.uint8]
Item = TypeVar("Item")
"""What is offered to a stream: a buffer or the number of a row."""


class Tag(IntEnum):
    """Message kinds. The end note of a stream travels under tag + 1."""

    TRAJECTORY = 10
    GRANT = 20
    BATCH = 30
    REQUEST = 40
    PARAMETERS = 50
    VERSION = 60
    RECORDS = 70
    STOP = 80
    STOP_REQUEST = 90
    WORK = 100


def parts(nbytes: int, limit: int) -> list[slice]:
    """Cut [0, nbytes) into ceil(nbytes / limit) pieces of at most `limit` bytes; one empty piece for 0 bytes."""
    return [slice(start, min(start + limit, nbytes)) for start in range(0, max(nbytes, 1), limit)]


class Drainable(Protocol):
    """An end of a stream."""

    @property
    def drained(self) -> bool:
        """Progress; whether nothing is under way any more.

        A sending end: it is closed and every buffer is free. A receiving end: the other is closed, and every message it
        sent was returned by `poll`.
        """


class End(Drainable, Protocol):
    """What a world keeps of whatever sends or receives."""

    tag: Tag

    @property
    def messages(self) -> int:
        """Messages (or rows) so far."""

    @property
    def bytes(self) -> int:
        """Payload so far."""

    def state(self) -> str:
        """For a report: what this end has done and waits for."""


class SendingEnd(End, Protocol):
    """An end that sends."""

    dest: int


class ReceivingEnd(End, Protocol):
    """An end that receives."""

    source: int

    @property
    def posted(self) -> int:
        """Buffers (or rows) offered and not returned."""


class ClosableEnd(SendingEnd, Protocol):
    """An end that sends until it is closed. Point-to-point, nonblocking."""

    def poll(self) -> int:
        """Progress; the number of messages whose buffer is not free yet, or of rows under way."""

    def close(self) -> None:
        """Tell the receiver how many there were; nothing may be sent afterwards."""


class Sender(ClosableEnd, Protocol):
    """The sending end of messages: `MessageSender`, or inside a node `comm.mailbox.MailSender`."""

    def send(self, buffer: npt.NDArray[Any], on_sent: Callable[[], None] | None = None) -> None:
        """Start sending a contiguous array; `on_sent` is called when the buffer is free again, by `poll` at the latest.

        Until then it belongs to the stream. Raises RuntimeError after `close`.
        """


class OfferingEnd(ReceivingEnd, Protocol[Item]):
    """An end that receives into what it is offered: buffers or rows. Point-to-point, nonblocking."""

    def post(self, item: Item, /) -> None:
        """Offer one: a contiguous array of the message's size, or a row. It belongs to the stream until `poll`."""

    def poll(self) -> Item | None:
        """The oldest one offered if it was filled, in the order of sending, else None."""

    def cancel(self) -> None:
        """Take back what is still offered; only after `drained`, else RuntimeError.

        Before another stream of this tag is opened between the same ranks, both must have come to the end of this one:
        a message that meets a receive about to be cancelled is lost.
        """


Receiver: TypeAlias = OfferingEnd[npt.NDArray[Any]]
"""The receiving end of messages: `MessageReceiver`, or in a node `comm.mailbox.MailReceiver`."""


class MessageSender:
    """A Sender by MPI."""

    def __init__(
        self,
        comm: MPI.Intracomm,
        dest: int,
        tag: Tag,
        chunk_bytes: int,
        wake: Callable[[], None] | None = None,
    ) -> None:
        """Local. `wake` is called when a message has left for a receiver that may sleep."""
        self._comm = comm
        self._wake = wake
        self.dest = dest
        self.tag = tag
        self._chunk_bytes = chunk_bytes
        self._pending: deque[tuple[list[MPI.Request], Bytes, Callable[[], None] | None]] = deque()
        self._end_note = np.zeros(1, np.int64)
        self._end_request: MPI.Request | None = None
        self.messages = 0
        self.bytes = 0

    def send(self, buffer: npt.NDArray[Any], on_sent: Callable[[], None] | None = None) -> None:
        """Start sending a contiguous array; `on_sent` is called (by `poll`) when the buffer is free again."""
        if self._end_request is not None:
            raise RuntimeError(f"stream {self.tag.name} to rank {self.dest} is closed")
        flat = buffer.reshape(-1).view(np.uint8)
        requests = [
            self._comm.Isend([flat[part], MPI.BYTE], self.dest, self.tag)
            for part in parts(flat.nbytes, self._chunk_bytes)
        ]
        self._pending.append((requests, flat, on_sent))
        self.messages += 1
        self.bytes += flat.nbytes
        if self._wake is not None:
            self._wake()

    def poll(self) -> int:
        """Progress; the number of messages whose buffer is not free yet."""
        while self._pending and complete(self._pending[0][0]):
            _, _, on_sent = self._pending.popleft()
            if on_sent is not None:
                on_sent()
        return len(self._pending)

    def close(self) -> None:
        """Tell the receiver how many messages there were; nothing may be sent afterwards."""
        if self._end_request is None:
            self._end_note[0] = self.messages
            self._end_request = self._comm.Isend([self._end_note, MPI.INT64_T], self.dest, self.tag + 1)
            if self._wake is not None:
                self._wake()

    @property
    def drained(self) -> bool:
        """Closed, and every buffer is free."""
        return self.poll() == 0 and self._end_request is not None and bool(self._end_request.Test())

    def state(self) -> str:
        """For a report: what this end has done and waits for."""
        return sender_state(self, len(self._pending), self._end_request is not None)


class MessageReceiver:
    """A Receiver by MPI."""

    def __init__(self, comm: MPI.Intracomm, source: int, tag: Tag, chunk_bytes: int) -> None:
        self._comm = comm
        self.source = source
        self.tag = tag
        self._chunk_bytes = chunk_bytes
        self._posted: deque[tuple[list[MPI.Request], npt.NDArray[Any]]] = deque()
        self._end_note = np.full(1, -1, np.int64)
        self._end_request: MPI.Request = comm.Irecv([self._end_note, MPI.INT64_T], source, tag + 1)
        self._ended = False
        self.messages = 0
        self.bytes = 0

    def post(self, buffer: npt.NDArray[Any]) -> None:
        """Offer a contiguous array for the next message; its size must be the sender's."""
        flat = buffer.reshape(-1).view(np.uint8)
        requests = [
            self._comm.Irecv([flat[part], MPI.BYTE], self.source, self.tag)
            for part in parts(flat.nbytes, self._chunk_bytes)
        ]
        self._posted.append((requests, buffer))

    @property
    def posted(self) -> int:
        """Buffers offered and not returned."""
        return len(self._posted)

    def poll(self) -> npt.NDArray[Any] | None:
        """The oldest posted buffer if its message is complete, else None."""
        if not self._posted or not complete(self._posted[0][0]):
            return None
        _, buffer = self._posted.popleft()
        self.messages += 1
        self.bytes += buffer.nbytes
        return buffer

    @property
    def drained(self) -> bool:
        """The sender has closed and every message it sent was returned by `poll`."""
        if not self._ended:
            self._ended = bool(self._end_request.Test())
        return self._ended and self.messages == int(self._end_note[0])

    def cancel(self) -> None:
        """Take back what is still posted; only after `drained`."""
        if not self.drained:
            raise RuntimeError(f"stream {self.tag.name} from rank {self.source} still expects messages")
        for requests, _ in self._posted:
            for request in requests:
                request.Cancel()
                request.Wait()
        self._posted.clear()

    def state(self) -> str:
        """For a report: what this end has done and waits for."""
        return receiver_state(self, int(self._end_note[0]) if self._ended else None)


def sender_state(end: SendingEnd, pending: int, closed: bool) -> str:
    """One line on a sending end, for a report. Pure."""
    done = "closed" if closed else "open"
    return f"{end.tag.name} to rank {end.dest}: {end.messages} sent, {pending} still under way, {done}"


def receiver_state(end: ReceivingEnd, expected: int | None) -> str:
    """One line on a receiving end, for a report. Pure."""
    of = "an unknown number" if expected is None else str(expected)
    return f"{end.tag.name} from rank {end.source}: {end.messages} of {of} received"


def complete(requests: Sequence[MPI.Request]) -> bool:
    """Whether all parts of a message are complete; progress on every one of them."""
    return all([request.Test() for request in requests])  # noqa: C419 - a generator would stop polling early


def all_drained(streams: Iterable[Drainable]) -> bool:
    """Poll every stream, also those behind one that is not drained yet; whether all are."""
    return all([stream.drained for stream in streams])  # noqa: C419 - a generator would stop polling early
