"""Small messages inside a node, through shared memory: descriptors, grants, requests, notes.

One ring of cells per ordered pair of ranks; a cell holds a tag and up to `MOST_BYTES` bytes. Messages of one pair
arrive in the order they were sent, and none is lost: what finds the ring full waits with its sender.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

import numpy.typing as npt
from mpi4py import MPI

from hpcrl.comm.bell import Bells
from hpcrl.comm.stream import Tag, receiver_state, sender_state
from hpcrl.comm.window import SharedWindow

CELLS = 64
CELL_BYTES = 64
MOST_BYTES = CELL_BYTES - 16
"""Longest message."""
_LINE = 128
"""Bytes between words that different ranks write."""


class Mailboxes:
    """The mail of one rank. Each message wakes its receiver if that sleeps on its bell.

    Memory: rank d's segment has, for each source s, a word `sent` (written by s) and a word `taken` (written by d), and
    a ring of cells that s fills while `sent - taken < CELLS`.
    """

    def __init__(self, node: MPI.Intracomm, bells: Bells) -> None:
        """Collective over `node`."""
        size, self._rank = node.size, node.rank
        self._bells = bells
        self._window = SharedWindow(node, size * (2 * _LINE + CELLS * CELL_BYTES))
        self._window.mine[: size * 2 * _LINE] = 0
        cells = size * 2 * _LINE
        self._words = [segment.data.cast("q") for segment in self._window.segments]
        self._bytes = [segment.data for segment in self._window.segments]
        self._cells_of = [cells + source * CELLS * CELL_BYTES for source in range(size)]
        self._sent, self._taken = [0] * size, [0] * size
        self._waiting: list[deque[tuple[int, bytes]]] = [deque() for _ in range(size)]
        self._inbox: dict[tuple[int, int], deque[bytes]] = {}
        node.Barrier()

    def put(self, dest: int, tag: int, message: bytes) -> None:
        """Send up to MOST_BYTES bytes to `dest` (rank of the node). Local; never waits, and the message is copied."""
        if self.flush(dest) and self._store(dest, tag, message):
            return
        self._waiting[dest].append((tag, message))

    def flush(self, dest: int) -> bool:
        """Store what found the ring of `dest` full; whether all of it is there now. Local."""
        waiting = self._waiting[dest]
        while waiting and self._store(dest, *waiting[0]):
            waiting.popleft()
        return not waiting

    def take(self, source: int, tag: int) -> bytes | None:
        """The oldest message of `source` (rank of the node) under `tag`, or None. Local."""
        inbox = self._inbox.get((source, tag))
        if not inbox:
            self._collect(source)
            inbox = self._inbox.get((source, tag))
        return inbox.popleft() if inbox else None

    def close(self) -> None:
        """Collective over the node."""
        for view in [*self._words, *self._bytes]:
            view.release()
        self._window.close()

    def _store(self, dest: int, tag: int, message: bytes) -> bool:
        words, sent = self._words[dest], self._sent[dest]
        line = self._rank * (2 * _LINE // 8)
        if sent - words[line + _LINE // 8] >= CELLS:
            return False
        start = self._cells_of[self._rank] + sent % CELLS * CELL_BYTES
        words[start // 8], words[start // 8 + 1] = tag, len(message)
        self._bytes[dest][start + 16 : start + 16 + len(message)] = message
        self._window.sync()  # the message before the count that announces it
        self._sent[dest] = words[line] = sent + 1
        if dest != self._rank:
            self._bells.ring(dest)
        return True

    def _collect(self, source: int) -> None:
        words, taken = self._words[self._rank], self._taken[source]
        line = source * (2 * _LINE // 8)
        sent = words[line]
        if sent == taken:
            return
        self._window.sync()  # the count before the messages
        while taken < sent:
            start = self._cells_of[source] + taken % CELLS * CELL_BYTES
            tag, nbytes = words[start // 8], words[start // 8 + 1]
            message = bytes(self._bytes[self._rank][start + 16 : start + 16 + nbytes])
            self._inbox.setdefault((source, tag), deque()).append(message)
            taken += 1
        self._window.sync()  # the messages are out before their cells are free
        self._taken[source] = words[line + _LINE // 8] = taken


class MailSender:
    """A Sender whose messages fit a cell."""

    def __init__(self, mail: Mailboxes, dest: int, rank: int, tag: Tag) -> None:
        """Local. `dest` is a world rank, `rank` the same by rank of the node."""
        self.dest, self.tag = dest, tag
        self._mail, self._to = mail, rank
        self._closed = False
        self.messages = self.bytes = 0

    def send(self, buffer: npt.NDArray[Any], on_sent: Callable[[], None] | None = None) -> None:
        """Send a copy; the buffer is free at once."""
        if self._closed:
            raise RuntimeError(f"stream {self.tag.name} to rank {self.dest} is closed")
        self._mail.put(self._to, self.tag, buffer.tobytes())
        self.messages += 1
        self.bytes += buffer.nbytes
        if on_sent is not None:
            on_sent()

    def poll(self) -> int:
        """Progress; 1 while some of this rank's mail to that rank found its ring full."""
        return 0 if self._mail.flush(self._to) else 1

    def close(self) -> None:
        """Send the count."""
        if not self._closed:
            self._closed = True
            self._mail.put(self._to, self.tag + 1, self.messages.to_bytes(8, "little"))

    @property
    def drained(self) -> bool:
        """Closed, and all of it is in the mailbox."""
        return self.poll() == 0 and self._closed

    def state(self) -> str:
        """One line."""
        return sender_state(self, self.poll(), self._closed)


class MailReceiver:
    """A Receiver of messages that fit a cell."""

    def __init__(self, mail: Mailboxes, source: int, rank: int, tag: Tag) -> None:
        """Local. `source` is a world rank, `rank` the same by rank of the node."""
        self.source, self.tag = source, tag
        self._mail, self._from = mail, rank
        self._posted: deque[npt.NDArray[Any]] = deque()
        self._expected: int | None = None
        self.messages = self.bytes = 0

    def post(self, buffer: npt.NDArray[Any]) -> None:
        """Offer a contiguous array."""
        self._posted.append(buffer)

    @property
    def posted(self) -> int:
        """Buffers offered and not returned."""
        return len(self._posted)

    def poll(self) -> npt.NDArray[Any] | None:
        """The oldest posted buffer, with the next message in it, if there are both."""
        if not self._posted:
            return None
        message = self._mail.take(self._from, self.tag)
        if message is None:
            return None
        buffer = self._posted.popleft()
        buffer.data.cast("B")[: len(message)] = message
        self.messages += 1
        self.bytes += buffer.nbytes
        return buffer

    @property
    def drained(self) -> bool:
        """Whether the count has come and is reached."""
        if self._expected is None and (note := self._mail.take(self._from, self.tag + 1)) is not None:
            self._expected = int.from_bytes(note, "little")
        return self._expected == self.messages

    def cancel(self) -> None:
        """Forget what is posted."""
        if not self.drained:
            raise RuntimeError(f"stream {self.tag.name} from rank {self.source} still expects messages")
        self._posted.clear()

    def state(self) -> str:
        """One line."""
        return receiver_state(self, self._expected)
