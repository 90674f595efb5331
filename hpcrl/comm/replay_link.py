"""Batches from a replay rank to a learner: asked for two ahead, written where the learner reads them.

A request names a slot of the learner's arena by its number (number % 2) and may carry a note, such as the priorities of
the batch just trained on. There is one answer to each request. A note may also be told by itself, and gets none.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from hpcrl.comm.rows import Arena, Bytes
from hpcrl.comm.stream import Tag, all_drained

if TYPE_CHECKING:
    from hpcrl.comm.world import World

SLOTS = 2
"""Requests outstanding, and rows of the learner's arena, per link."""
_NO_REQUEST = -1
"""Stands for a request's number where a note is told by itself."""


class BatchClient:
    """The learner's end. Point-to-point with one replay rank, nonblocking."""

    def __init__(self, world: World, shard: int, arena: Arena, first_row: int, note_bytes: int = 0) -> None:
        """Local. Answers of world rank `shard` go to rows first_row and first_row + 1 of this rank."""
        self._arena, self._rank, self._first_row = arena, world.rank, first_row
        self._answers = world.row_receiver(shard, Tag.BATCH, arena)
        self._requests = world.sender(shard, Tag.REQUEST, 8 + note_bytes)
        self._note_bytes = note_bytes
        self.asked = 0
        self.unread: list[Bytes] = []
        """Answers that came after `close` and were taken in by `drained`; each lies in its row."""

    def ask(self, note: bytes = b"") -> None:
        """Ask for one more batch. The answer before the last is overwritten from here on."""
        self._answers.post(self._first_row + self.asked % SLOTS)
        self._send(self.asked, note)
        self.asked += 1

    def tell(self, note: bytes) -> None:
        """Send a note without asking for anything; at most SLOTS of them between two requests."""
        self._send(_NO_REQUEST, note)

    def _send(self, number: int, note: bytes) -> None:
        message = number.to_bytes(8, "little", signed=True) + note.ljust(self._note_bytes, b"\0")
        self._requests.send(np.frombuffer(message, np.uint8))

    def poll(self) -> Bytes | None:
        """The next answer, in the order of the requests, or None; valid until the next but one `ask`."""
        self._requests.poll()
        row = self._answers.poll()
        return None if row is None else self._arena.row(self._rank, row)

    def close(self) -> None:
        """Ask for nothing more."""
        self._requests.close()

    @property
    def drained(self) -> bool:
        """Take in answers still under way; whether the replay rank has closed and nothing is."""
        while (answer := self.poll()) is not None:
            self.unread.append(answer)
        return all_drained([self._answers, self._requests])

    def cancel(self) -> None:
        """Take back what no answer came for; only after `drained`."""
        self._answers.cancel()


class BatchServer:
    """The replay rank's end. Point-to-point with one learner, nonblocking."""

    def __init__(self, world: World, learner: int, arena: Arena, first_row: int, note_bytes: int = 0) -> None:
        """Local. Rows first_row and first_row + 1 are those of world rank `learner`."""
        self._first_row = first_row
        self._answers = world.row_sender(learner, Tag.BATCH, arena, SLOTS)
        self._requests = world.receiver(learner, Tag.REQUEST, 8 + note_bytes)
        for _ in range(2 * SLOTS):  # requests, and notes told before them
            self._requests.post(np.zeros(8 + note_bytes, np.uint8))
        self.requested = 0
        self.served = 0
        self.unread: list[bytes] = []
        """Notes that came after `close` and were taken in by `drained`."""

    def take_request(self) -> bytes | None:
        """The note of the next request, or one told by itself, or None."""
        message = self._requests.poll()
        if message is None:
            return None
        number, note = int.from_bytes(message[:8].tobytes(), "little", signed=True), message[8:].tobytes()
        self._requests.post(message)
        self.requested += number != _NO_REQUEST
        return note

    def begin(self) -> Bytes | None:
        """Where to write the answer to the oldest open request; None while none is open or no buffer is free."""
        if self.requested == self.served:
            return None
        return self._answers.begin(self._first_row + self.served % SLOTS)

    def send(self) -> None:
        """Give the learner the answer that was begun."""
        self._answers.send(self._first_row + self.served % SLOTS)
        self.served += 1

    def poll(self) -> None:
        """Progress of answers under way."""
        self._answers.poll()

    def close(self) -> None:
        """No more answers."""
        self._answers.close()

    @property
    def drained(self) -> bool:
        """Take in requests still under way; whether the learner has closed and nothing is."""
        while (note := self.take_request()) is not None:
            self.unread.append(note)
        return all_drained([self._answers, self._requests])

    def cancel(self) -> None:
        """Take back what no request came for; only after `drained`."""
        self._requests.cancel()
