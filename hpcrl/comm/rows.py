"""Large messages of one size, written and read where they lie: rows of an arena.

The receiver of a row stream owns rows. It offers one (`post`), the sender fills it, the receiver gets it back
(`poll`). Inside a node the row is shared memory: the sender writes straight into it, and only its number travels, by
a ring of the arena. Between nodes the sender fills a slot of its own, which travels by a persistent request straight
into the row (`comm.row_messages`).

Protocols above (grants, requests) name the row, and see to it that none is filled that was not offered.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from hpcrl.comm.stream import ClosableEnd, OfferingEnd, Tag, receiver_state, sender_state
from hpcrl.comm.window import SharedWindow, fits_in_shared_memory

if TYPE_CHECKING:
    from hpcrl.comm.world import World

Bytes = npt.NDArray[np.uint8]
ALIGNMENT = 64
_HEAD_WORDS = 16
"""A ring begins with the number of rows sent and, once closed, the number in all, in a cache line of their own."""
_SENT, _TOTAL = 0, 1


class Arena:
    """Rows of equal size on every rank that owns some; shared with the ranks of its node where there is room.

    An owner's segment: a ring of row numbers for each rank of the node, then its rows. A ring has as many cells as the
    owner has rows, each of which is offered to one sender at a time: it cannot overflow.
    """

    def __init__(self, world: World, rows: int, nbytes: int) -> None:
        """Make `rows` rows (may differ, may be 0) of `nbytes` bytes (equal on all ranks). Collective over the node.

        The world closes it. Memory is touched, and counts, only when a row is used.
        """
        self.nbytes = nbytes
        self._node = world.node
        self._views: dict[tuple[int, int], Bytes] = {}
        self._stride = _stride(nbytes)
        size = world.node.comm.size
        wanted = arena_bytes(size, rows, nbytes)
        self.window: SharedWindow | None = None
        """None: rows are private."""
        if world.node.bells is not None and fits_in_shared_memory(world.node.comm, wanted):
            self.window = SharedWindow(world.node.comm, wanted)
            self._rows_of = world.node.comm.allgather(rows)
            for source in range(size if rows else 0):
                ring = self.ring(world.rank, source)
                ring[_SENT], ring[_TOTAL] = 0, -1
            world.node.comm.Barrier()
            world.on_close(self._close)

    def shared_with(self, rank: int) -> bool:
        """Whether this rank and world rank `rank` see each other's rows. Local."""
        return self.window is not None and rank in self._node.ranks

    def row(self, owner: int, index: int) -> Bytes:
        """uint8 [nbytes]: a row of world rank `owner`; aligned to 64 bytes. Local."""
        found = self._views.get((owner, index))
        if found is None:
            found = self._views[owner, index] = self._find(owner, index)
        return found

    def ring(self, owner: int, source: int) -> memoryview[int]:
        """int64 words: the ring through which rank `source` of the node returns rows to world rank `owner`. Local."""
        if self.window is None:
            raise RuntimeError("rows that are not shared have no rings")
        place = self._node.ranks.index(owner)
        nbytes = ring_bytes(self._rows_of[place])
        return self.window.segments[place][source * nbytes : (source + 1) * nbytes].data.cast("q")

    def _find(self, owner: int, index: int) -> Bytes:
        if self.window is None:
            return aligned(self.nbytes)
        place = self._node.ranks.index(owner)
        start = len(self._node.ranks) * ring_bytes(self._rows_of[place]) + index * self._stride
        return self.window.segments[place][start : start + self.nbytes]

    def _close(self) -> None:
        self._views.clear()
        if self.window is not None:
            self.window.close()


def arena_bytes(ranks: int, rows: int, nbytes: int) -> int:
    """Shared memory that the owner of `rows` rows of `nbytes` bytes takes on a node of `ranks` ranks. Pure."""
    return ranks * ring_bytes(rows) + rows * _stride(nbytes) if rows else 0


def ring_bytes(rows: int) -> int:
    """Bytes of a ring for `rows` row numbers, whole cache lines. Pure."""
    return -(-(8 * (_HEAD_WORDS + rows)) // 128) * 128


def _stride(nbytes: int) -> int:
    return max(-(-nbytes // ALIGNMENT) * ALIGNMENT, ALIGNMENT)


class RowSender(ClosableEnd, Protocol):
    """The sending end of a row stream. Point-to-point, nonblocking."""

    def begin(self, row: int) -> Bytes | None:
        """Where to write what will be row `row` of the receiver, or None while every own slot is under way.

        The buffer is the caller's until `send`. A row that was begun may also be left unsent.
        """

    def send(self, row: int) -> None:
        """Give the receiver its row `row`, begun and filled."""


RowReceiver: TypeAlias = OfferingEnd[int]
"""The receiving end of a row stream."""


class SharedRowSender:
    """Sends rows of an arena that both ends see."""

    def __init__(self, world: World, dest: int, tag: Tag, arena: Arena) -> None:
        """Local."""
        if arena.window is None:
            raise RuntimeError(f"rank {dest} does not share its rows")
        self.dest, self.tag = dest, tag
        self._arena = arena
        self._sync, self._wake = arena.window.sync, world.wake(dest)
        self._ring = arena.ring(dest, world.node.comm.rank)
        self._cells = len(self._ring) - _HEAD_WORDS
        self._closed = False
        self.messages = 0
        world.on_close(self._ring.release)

    @property
    def bytes(self) -> int:
        """Payload so far."""
        return self.messages * self._arena.nbytes

    def begin(self, row: int) -> Bytes:
        """The receiver's own row."""
        return self._arena.row(self.dest, row)

    def send(self, row: int) -> None:
        """Announce a row."""
        if self._closed:
            raise RuntimeError(f"stream {self.tag.name} to rank {self.dest} is closed")
        self._ring[_HEAD_WORDS + self.messages % self._cells] = row
        self._sync()  # row and cell before the count that announces them
        self.messages += 1
        self._ring[_SENT] = self.messages
        self._wake()

    def poll(self) -> int:
        """Nothing is ever under way."""
        return 0

    def close(self) -> None:
        """Announce the end."""
        if not self._closed:
            self._closed = True
            self._ring[_TOTAL] = self.messages
            self._wake()

    @property
    def drained(self) -> bool:
        """Closed."""
        return self._closed

    def state(self) -> str:
        """One line."""
        return sender_state(self, 0, self._closed)


class SharedRowReceiver:
    """Receives rows of an arena that both ends see."""

    def __init__(self, world: World, source: int, tag: Tag, arena: Arena) -> None:
        """Local."""
        if arena.window is None:
            raise RuntimeError("the rows of this rank are not shared")
        self.source, self.tag = source, tag
        self._arena = arena
        self._sync = arena.window.sync
        self._ring = arena.ring(world.rank, world.node.ranks.index(source))
        self._cells = len(self._ring) - _HEAD_WORDS
        self._offered = 0
        self.messages = 0
        world.on_close(self._ring.release)

    @property
    def bytes(self) -> int:
        """Payload so far."""
        return self.messages * self._arena.nbytes

    @property
    def posted(self) -> int:
        """Rows offered and not returned."""
        return self._offered - self.messages

    def post(self, row: int) -> None:
        """Counted only: who fills it learns its number by the protocol above."""
        self._offered += 1

    def poll(self) -> int | None:
        """The oldest row announced."""
        if self._ring[_SENT] == self.messages:
            return None
        self._sync()  # the count before the cell and the row
        row = self._ring[_HEAD_WORDS + self.messages % self._cells]
        self.messages += 1
        return row

    @property
    def drained(self) -> bool:
        """Whether the end was announced and all before it is here."""
        return self._ring[_TOTAL] == self.messages

    def cancel(self) -> None:
        """Forget what is offered."""
        if not self.drained:
            raise RuntimeError(f"stream {self.tag.name} from rank {self.source} still expects messages")
        self._offered = self.messages

    def state(self) -> str:
        """One line."""
        total = self._ring[_TOTAL]
        return receiver_state(self, None if total < 0 else total)


def aligned(nbytes: int) -> Bytes:
    """uint8 [nbytes] of this process, zeros, aligned to 64 bytes. Local."""
    raw = np.zeros(nbytes + ALIGNMENT, np.uint8)
    start = -raw.ctypes.data % ALIGNMENT
    return raw[start : start + nbytes]
