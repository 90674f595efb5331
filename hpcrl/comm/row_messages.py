"""Row streams between nodes: own slots, persistent requests, straight into the receiver's rows."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

import numpy as np
from mpi4py import MPI

from hpcrl.comm.rows import Arena, Bytes, aligned
from hpcrl.comm.stream import Tag, complete, parts, receiver_state, sender_state

if TYPE_CHECKING:
    from hpcrl.comm.world import World


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
        start_in_order(self._requests[slot])
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
        start_in_order(self._requests[row])
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


def start_in_order(requests: list[MPI.Prequest]) -> None:
    """Start the parts of a message; Startall would leave their order, and so what meets what, to the library. Local."""
    for request in requests:
        request.Start()


def free_requests(requests: list[list[MPI.Prequest]]) -> None:
    """Free persistent requests that are not under way; a second call does nothing. Local."""
    for group in requests:
        for request in group:
            request.Free()
        group.clear()
