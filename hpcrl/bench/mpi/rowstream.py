"""A stream of rows with grants, as between an actor and a replay rank: the sender fills only rows it was granted."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from hpcrl.comm.rows import Arena
from hpcrl.comm.stream import Tag, all_drained
from hpcrl.comm.world import World

Bytes = npt.NDArray[np.uint8]
GRANTS = 16
"""Rows granted to a sender and not received."""
_NOTE = 4
"""Rows that one note grants at most."""
_SLOTS = 4
"""The sender's own, where the row itself is out of reach."""


class Source:
    """The sending end. Between calls all its grants are here or on their way."""

    def __init__(self, world: World, dest: int, arena: Arena) -> None:
        """Local; `dest` makes a Sink."""
        self._world = world
        self._rows = world.row_sender(dest, Tag.TRAJECTORY, arena, _SLOTS)
        self._grants = world.receiver(dest, Tag.GRANT)
        for _ in range(GRANTS):
            self._grants.post(np.zeros(1 + _NOTE, np.int64))
        self._granted: deque[int] = deque()

    def send(self, count: int, write: Callable[[Bytes], object]) -> None:
        """Write and send `count` rows, each as soon as it is granted. Point-to-point."""
        waiter, rows, granted = self._world.waiter, self._rows, self._granted
        waiter.reset()
        for _ in range(count):
            if not granted:
                while not self._take_note():
                    rows.poll()
                    waiter.idle()
                waiter.reset()
            row = granted.popleft()
            while (buffer := rows.begin(row)) is None:
                waiter.idle()
            write(buffer)
            rows.send(row)
        waiter.until(lambda: rows.poll() == 0)

    def close(self) -> None:
        """Drain: the Sink closes at the same time."""
        self._rows.close()
        self._world.waiter.until(lambda: self._no_grants() and self._rows.drained)
        self._grants.cancel()

    def _take_note(self) -> bool:
        note = self._grants.poll()
        if note is None:
            return False
        self._granted.extend(note[1 : 1 + int(note[0])].tolist())
        self._grants.post(note)
        return True

    def _no_grants(self) -> bool:
        while self._take_note():
            pass
        return self._grants.drained


class Sink:
    """The receiving end of one or more Sources, which send equally many rows."""

    def __init__(self, world: World, sources: list[int], arena: Arena, rows: int) -> None:
        """Local. `rows`, at least GRANTS: each source fills that many rows of this rank's arena, over and over."""
        self._world = world
        self._arena = arena
        self._rows = [world.row_receiver(source, Tag.TRAJECTORY, arena) for source in sources]
        self._grants = [world.sender(source, Tag.GRANT) for source in sources]
        self._free = [deque(range(index * rows, (index + 1) * rows)) for index in range(len(sources))]
        for index in range(len(sources)):
            for _ in range(GRANTS // _NOTE):
                self._grant(index, _NOTE)
        self._owed = [0] * len(sources)

    def receive(self, count: int, read: Callable[[Bytes], object]) -> None:
        """Take `count` rows of every source, and grant another for each that was read. Point-to-point."""
        waiter, me, arena = self._world.waiter, self._world.rank, self._arena
        waiter.reset()
        left = count * len(self._rows)
        while left > 0:
            before = left
            for index, receiver in enumerate(self._rows):
                free = self._free[index]
                while (row := receiver.poll()) is not None:
                    read(arena.row(me, row))
                    free.append(row)
                    self._owed[index] += 1
                    left -= 1
                    if self._owed[index] == _NOTE:
                        self._repay(index)
            if left == before:
                waiter.idle()
            else:
                waiter.reset()
        for index in range(len(self._rows)):
            self._repay(index)
        waiter.until(self._granted)

    def close(self) -> None:
        """Drain: the Sources close at the same time."""
        for sender in self._grants:
            sender.close()
        self._world.waiter.until(lambda: all_drained([*self._rows, *self._grants]))
        for receiver in self._rows:
            receiver.cancel()

    def _repay(self, index: int) -> None:
        if self._owed[index]:
            self._grant(index, self._owed[index])
            self._owed[index] = 0

    def _grant(self, index: int, count: int) -> None:
        note = np.zeros(1 + _NOTE, np.int64)
        note[0] = count
        for place in range(count):
            note[1 + place] = row = self._free[index].popleft()
            self._rows[index].post(row)
        self._grants[index].send(note)

    def _granted(self) -> bool:
        return all([sender.poll() == 0 for sender in self._grants])  # noqa: C419 - polls every one
