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
GRANTS = 8
"""Rows granted to a sender and not received."""
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
            self._grants.post(np.zeros(2, np.int64))

    def send(self, count: int, write: Callable[[Bytes], object]) -> None:
        """Write and send `count` rows, each as soon as it is granted. Point-to-point."""
        waiter = self._world.waiter
        waiter.reset()
        for _ in range(count):
            while (grant := self._grants.poll()) is None:
                self._rows.poll()
                waiter.idle()
            row = int(grant[0])
            self._grants.post(grant)
            while (buffer := self._rows.begin(row)) is None:
                waiter.idle()
            write(buffer)
            self._rows.send(row)
            waiter.reset()
        waiter.until(lambda: self._rows.poll() == 0)

    def close(self) -> None:
        """Drain: the Sink closes at the same time."""
        self._rows.close()
        self._world.waiter.until(lambda: self._no_grants() and self._rows.drained)
        self._grants.cancel()

    def _no_grants(self) -> bool:
        while (grant := self._grants.poll()) is not None:
            self._grants.post(grant)
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
            for _ in range(GRANTS):
                self._grant(index)

    def receive(self, count: int, read: Callable[[Bytes], object]) -> None:
        """Take `count` rows of every source, and grant another for each that was read. Point-to-point."""
        waiter = self._world.waiter
        waiter.reset()
        left = count * len(self._rows)
        while left > 0:
            before = left
            for index, receiver in enumerate(self._rows):
                while (row := receiver.poll()) is not None:
                    read(self._arena.row(self._world.rank, row))
                    self._free[index].append(row)
                    self._grant(index)
                    left -= 1
            if left == before:
                waiter.idle()
            else:
                waiter.reset()
        waiter.until(self._granted)

    def close(self) -> None:
        """Drain: the Sources close at the same time."""
        for sender in self._grants:
            sender.close()
        self._world.waiter.until(lambda: all_drained([*self._rows, *self._grants]))
        for receiver in self._rows:
            receiver.cancel()

    def _grant(self, index: int) -> None:
        row = self._free[index].popleft()
        self._rows[index].post(row)
        self._grants[index].send(np.array([row, 0], np.int64))

    def _granted(self) -> bool:
        return all([sender.poll() == 0 for sender in self._grants])  # noqa: C419 - polls every one
