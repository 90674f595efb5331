"""Small messages inside a node, through shared memory: descriptors, grants, requests, notes.

One ring of cells per ordered pair of ranks; a cell holds a tag and up to `MOST_BYTES` bytes. Messages of one pair
arrive in the order they were sent, and none is lost: what finds the ring full waits with its sender.
"""

from __future__ import annotations

from collections import deque
from typing import Any

import numpy as np
import numpy.typing as npt
from mpi4py import MPI

from hpcrl.comm.bell import Bells
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


class MailRoute:
    """`Isend` and `Irecv` of a stream between this rank and another of its node, for messages that fit a cell."""

    def __init__(self, mail: Mailboxes, other: int) -> None:
        """`other`: rank of the node."""
        self._mail = mail
        self._other = other

    def Isend(self, message: list[Any], dest: int, tag: int) -> MailSend:
        """Send the buffer `message[0]`; it is copied at once. Local."""
        self._mail.put(self._other, tag, message[0].tobytes())
        return MailSend(self._mail, self._other)

    def Irecv(self, message: list[Any], source: int, tag: int) -> MailReceive:
        """Offer the buffer `message[0]`. Local."""
        return MailReceive(self._mail, self._other, tag, message[0])


class MailSend:
    """A message on its way into the receiver's mailbox."""

    def __init__(self, mail: Mailboxes, dest: int) -> None:
        self._mail = mail
        self._dest = dest

    def Test(self) -> bool:
        """Whether it, and all that was sent before and after it to the same rank, is in the mailbox."""
        return self._mail.flush(self._dest)


class MailReceive:
    """A buffer that waits for its message. Those of one stream must be tested in the order they were offered."""

    def __init__(self, mail: Mailboxes, source: int, tag: int, buffer: npt.NDArray[Any]) -> None:
        self._mail, self._source, self._tag = mail, source, tag
        self._buffer: npt.NDArray[Any] | None = buffer

    def Test(self) -> bool:
        """Whether the message has come; it is in the buffer then."""
        if self._buffer is None:
            return True
        message = self._mail.take(self._source, self._tag)
        if message is None:
            return False
        flat = self._buffer.reshape(-1).view(np.uint8)
        flat[: len(message)] = np.frombuffer(message, np.uint8)
        self._buffer = None
        return True

    def Cancel(self) -> None:
        """Take the buffer back."""
        self._buffer = None

    def Wait(self) -> None:
        """Nothing is under way after `Cancel`."""
