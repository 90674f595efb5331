"""Large messages of one size, written and read where they lie: rows of an arena.

The receiver of a row stream owns rows. It offers one (`post`), the sender fills it, the receiver gets it back
(`poll`). Inside a node the row is shared memory: the sender writes straight into it, and only its number travels, as
mail. Between nodes the sender fills a slot of its own, which travels by a persistent request straight into the row.

Protocols above (grants, requests) name the row, and see to it that none is filled that was not offered.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Protocol

import numpy as np
import numpy.typing as npt
from mpi4py import MPI

from hpcrl.comm.stream import Tag, complete, parts, receiver_state, sender_state
from hpcrl.comm.window import SharedWindow, fits_in_shared_memory

if TYPE_CHECKING:
    from hpcrl.comm.world import World

Bytes = npt.NDArray[np.uint8]
ALIGNMENT = 64


class Arena:
    """Rows of equal size on every rank that owns some; shared with the ranks of its node where there is room."""

    def __init__(self, world: World, rows: int, nbytes: int) -> None:
        """Make `rows` rows (may differ, may be 0) of `nbytes` bytes (equal on all ranks). Collective over the node.

        The world closes it. Memory is touched, and counts, only when a row is used.
        """
        self.nbytes = nbytes
        self._stride = max(-(-nbytes // ALIGNMENT) * ALIGNMENT, ALIGNMENT)
        self._private: dict[int, Bytes] = {}
        self._node = world.node
        wanted = rows * self._stride
        self._window: SharedWindow | None = None
        if world.node.bells is not None and fits_in_shared_memory(world.node.comm, wanted):
            self._window = SharedWindow(world.node.comm, wanted)
            world.on_close(self._window.close)

    def shared_with(self, rank: int) -> bool:
        """Whether this rank and world rank `rank` see each other's rows. Local."""
        return self._window is not None and rank in self._node.ranks

    def row(self, owner: int, index: int) -> Bytes:
        """uint8 [nbytes]: a row of world rank `owner`; aligned to 64 bytes. Local."""
        if self._window is not None:
            start = index * self._stride
            return self._window.segments[self._node.ranks.index(owner)][start : start + self.nbytes]
        if index not in self._private:
            self._private[index] = aligned(self.nbytes)
        return self._private[index]


class RowSender(Protocol):
    """The sending end of a row stream. Point-to-point, nonblocking."""

    dest: int
    tag: Tag
    messages: int
    bytes: int

    def begin(self, row: int) -> Bytes | None:
        """Where to write what will be row `row` of the receiver, or None while every own slot is under way.

        The buffer is the caller's until `send`. A row that was begun may also be left unsent.
        """

    def send(self, row: int) -> None:
        """Give the receiver its row `row`, begun and filled."""

    def poll(self) -> int:
        """Progress; the number of rows under way."""

    def close(self) -> None:
        """Tell the receiver how many rows there were; nothing may be sent afterwards."""

    @property
    def drained(self) -> bool:
        """Closed, and nothing is under way."""

    def state(self) -> str:
        """For a report: what this end has done and waits for."""


class RowReceiver(Protocol):
    """The receiving end of a row stream. Point-to-point, nonblocking."""

    source: int
    tag: Tag
    messages: int
    bytes: int

    def post(self, row: int) -> None:
        """Offer a row: it belongs to the stream until `poll` returns it."""

    @property
    def posted(self) -> int:
        """Rows offered and not returned."""

    def poll(self) -> int | None:
        """A row that was filled, in the order of sending, or None."""

    @property
    def drained(self) -> bool:
        """The sender has closed and every row it sent was returned by `poll`."""

    def cancel(self) -> None:
        """Take back what is still offered; only after `drained`."""

    def state(self) -> str:
        """For a report: what this end has done and waits for."""


class SharedRowSender:
    """Sends rows of an arena that both ends see."""

    def __init__(self, world: World, dest: int, tag: Tag, arena: Arena) -> None:
        """Local."""
        self.dest, self.tag = dest, tag
        self._mail, self._to = world.node.mailboxes, world.node.ranks.index(dest)
        self._arena = arena
        self._closed = False
        self.messages = self.bytes = 0

    def begin(self, row: int) -> Bytes:
        """The receiver's own row."""
        return self._arena.row(self.dest, row)

    def send(self, row: int) -> None:
        """Announce a row."""
        if self._closed:
            raise RuntimeError(f"stream {self.tag.name} to rank {self.dest} is closed")
        self._mail.put(self._to, self.tag, row.to_bytes(8, "little"))
        self.messages += 1
        self.bytes += self._arena.nbytes

    def poll(self) -> int:
        """Progress of the mail; 1 while some of it is still here."""
        return 0 if self._mail.flush(self._to) else 1

    def close(self) -> None:
        """Announce the end."""
        if not self._closed:
            self._closed = True
            self._mail.put(self._to, self.tag + 1, self.messages.to_bytes(8, "little"))

    @property
    def drained(self) -> bool:
        """Closed, and all of it announced."""
        return self.poll() == 0 and self._closed

    def state(self) -> str:
        """One line."""
        return sender_state(self, self.poll(), self._closed)


class SharedRowReceiver:
    """Receives rows of an arena that both ends see."""

    def __init__(self, world: World, source: int, tag: Tag, arena: Arena) -> None:
        """Local."""
        self.source, self.tag = source, tag
        self._mail, self._from = world.node.mailboxes, world.node.ranks.index(source)
        self._arena = arena
        self._expected: int | None = None
        self.posted = 0
        self.messages = self.bytes = 0

    def post(self, row: int) -> None:
        """Counted only: who fills it learns its number by the protocol above."""
        self.posted += 1

    def poll(self) -> int | None:
        """The oldest row announced."""
        message = self._mail.take(self._from, self.tag)
        if message is None:
            return None
        self.posted -= 1
        self.messages += 1
        self.bytes += self._arena.nbytes
        return int.from_bytes(message, "little")

    @property
    def drained(self) -> bool:
        """Whether the end was announced and all before it is here."""
        if self._expected is None and (note := self._mail.take(self._from, self.tag + 1)) is not None:
            self._expected = int.from_bytes(note, "little")
        return self._expected == self.messages

    def cancel(self) -> None:
        """Forget what is offered."""
        if not self.drained:
            raise RuntimeError(f"stream {self.tag.name} from rank {self.source} still expects messages")
        self.posted = 0

    def state(self) -> str:
        """One line."""
        return receiver_state(self, self._expected)


class MessageRowSender:
    """Sends rows from slots of its own, by persistent requests."""

    def __init__(self, world: World, dest: int, tag: Tag, arena: Arena, slots: int) -> None:
        """Local. Rows of more than comm.chunk_bytes travel in parts."""
        self.dest, self.tag = dest, tag
        self._comm = world.comm_of(tag)
        self._wake = world.wake(dest)
        self._slots = [aligned(arena.nbytes) for _ in range(slots)]
        self._requests = [
            [
                self._comm.Send_init([slot[part], MPI.BYTE], dest, tag)
                for part in parts(arena.nbytes, world.chunk_bytes)
            ]
            for slot in self._slots
        ]
        self._free = deque(range(slots))
        self._begun: dict[int, int] = {}
        self._pending: deque[int] = deque()
        self._end_note = np.zeros(1, np.int64)
        self._end_request: MPI.Request | None = None
        self.messages = self.bytes = 0

    def begin(self, row: int) -> Bytes | None:
        """A free slot of this rank."""
        self.poll()
        if row not in self._begun:
            if not self._free:
                return None
            self._begun[row] = self._free.popleft()
        return self._slots[self._begun[row]]

    def send(self, row: int) -> None:
        """Start sending the slot that was begun for `row`."""
        if self._end_request is not None:
            raise RuntimeError(f"stream {self.tag.name} to rank {self.dest} is closed")
        slot = self._begun.pop(row)
        MPI.Prequest.Startall(self._requests[slot])
        self._pending.append(slot)
        self.messages += 1
        self.bytes += self._slots[slot].nbytes
        self._wake()

    def poll(self) -> int:
        """Slots that have left are free again."""
        while self._pending and complete(self._requests[self._pending[0]]):
            self._free.append(self._pending.popleft())
        return len(self._pending)

    def close(self) -> None:
        """Send the count."""
        if self._end_request is None:
            self._end_note[0] = self.messages
            self._end_request = self._comm.Isend([self._end_note, MPI.INT64_T], self.dest, self.tag + 1)
            self._wake()

    @property
    def drained(self) -> bool:
        """Closed and complete; the requests are given back then."""
        done = self.poll() == 0 and self._end_request is not None and bool(self._end_request.Test())
        if done:
            free_requests(self._requests)
        return done

    def state(self) -> str:
        """One line."""
        return sender_state(self, len(self._pending), self._end_request is not None)


class MessageRowReceiver:
    """Receives into rows of this rank, by one persistent request for each part of each row."""

    def __init__(self, world: World, source: int, tag: Tag, arena: Arena) -> None:
        """Local."""
        self.source, self.tag = source, tag
        self._comm = world.comm_of(tag)
        self._rank = world.rank
        self._chunk_bytes = world.chunk_bytes
        self._arena = arena
        self._requests: dict[int, list[MPI.Prequest]] = {}
        self._posted: deque[int] = deque()
        self._end_note = np.full(1, -1, np.int64)
        self._end_request = self._comm.Irecv([self._end_note, MPI.INT64_T], source, tag + 1)
        self.messages = self.bytes = 0

    def post(self, row: int) -> None:
        """Start the receives of a row; messages fill rows in the order in which they were posted."""
        if row not in self._requests:
            memory = self._arena.row(self._rank, row)
            self._requests[row] = [
                self._comm.Recv_init([memory[part], MPI.BYTE], self.source, self.tag)
                for part in parts(memory.nbytes, self._chunk_bytes)
            ]
        MPI.Prequest.Startall(self._requests[row])
        self._posted.append(row)

    @property
    def posted(self) -> int:
        """Rows offered and not returned."""
        return len(self._posted)

    def poll(self) -> int | None:
        """The row posted first, once it is complete."""
        if not self._posted or not complete(self._requests[self._posted[0]]):
            return None
        self.messages += 1
        self.bytes += self._arena.nbytes
        return self._posted.popleft()

    @property
    def drained(self) -> bool:
        """Whether the count has come and is reached."""
        return bool(self._end_request.Test()) and self.messages == int(self._end_note[0])

    def cancel(self) -> None:
        """Cancel what is posted and give all requests back."""
        if not self.drained:
            raise RuntimeError(f"stream {self.tag.name} from rank {self.source} still expects messages")
        for row in self._posted:
            for request in self._requests[row]:
                request.Cancel()
                request.Wait()
        self._posted.clear()
        free_requests(list(self._requests.values()))
        self._requests.clear()

    def state(self) -> str:
        """One line."""
        expected = int(self._end_note[0])
        return receiver_state(self, None if expected < 0 else expected)


def aligned(nbytes: int) -> Bytes:
    """uint8 [nbytes] of this process, zeros, aligned to 64 bytes. Local."""
    raw = np.zeros(nbytes + ALIGNMENT, np.uint8)
    start = -raw.ctypes.data % ALIGNMENT
    return raw[start : start + nbytes]


def free_requests(requests: list[list[MPI.Prequest]]) -> None:
    """Free persistent requests that are not under way; a second call does nothing. Local."""
    for group in requests:
        for request in group:
            request.Free()
        group.clear()
