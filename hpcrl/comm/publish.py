"""Versioned parameters from learner 0 to the actors: whole vectors, never half of one version and half of another."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from hpcrl.comm.stream import Receiver, Sender, Tag, all_drained
from hpcrl.comm.world import World

_HEADER_BYTES = 64
"""Version (int64) and padding; the parameters follow, aligned."""


class Publisher:
    """Learner 0's end. Point-to-point to every actor, nonblocking; never waits for an actor."""

    def __init__(self, world: World, num_parameters: int, *, every_version: bool) -> None:
        """`every_version`: each actor gets each version in order; else a busy actor gets the newest when free."""
        self._every_version = every_version
        self._nbytes = _HEADER_BYTES + 4 * num_parameters
        self._senders: list[Sender] = [
            world.sender(rank, Tag.PARAMETERS) for rank in world.plan.ranks("actor")
        ]
        self._owed: set[int] = set()
        self._newest: npt.NDArray[np.uint8] | None = None
        self._users: dict[int, int] = {}
        self._free: list[npt.NDArray[np.uint8]] = []

    def publish(self, version: int, vector: npt.NDArray[np.float32]) -> None:
        """Copy `vector` and start sending it. Local plus nonblocking sends; `vector` may change afterwards."""
        buffer = self._free.pop() if self._free else np.zeros(self._nbytes, np.uint8)
        buffer[:8].view(np.int64)[0] = version
        buffer[_HEADER_BYTES:].view(np.float32)[...] = vector
        replaced, self._newest = self._newest, buffer
        self._users[id(buffer)] = 0
        if replaced is not None:
            self._release(replaced, 0)
        self._owed = set(range(len(self._senders)))
        self.poll()

    def poll(self) -> None:
        """Progress: reuse buffers that left, send the newest version to actors that became free."""
        for index, sender in enumerate(self._senders):
            pending = sender.poll()
            if index in self._owed and self._newest is not None and (self._every_version or pending == 0):
                buffer = self._newest
                self._users[id(buffer)] += 1
                sender.send(buffer, on_sent=partial(self._release, buffer, 1))
                self._owed.discard(index)

    def close(self) -> None:
        """No more versions; tells every actor how many there were."""
        self._owed.clear()
        for sender in self._senders:
            sender.close()

    @property
    def drained(self) -> bool:
        """Closed, and nothing is under way."""
        return all_drained(self._senders)

    def _release(self, buffer: npt.NDArray[np.uint8], uses: int) -> None:
        self._users[id(buffer)] -= uses
        if self._users[id(buffer)] == 0 and buffer is not self._newest:
            del self._users[id(buffer)]
            self._free.append(buffer)


class Subscriber:
    """An actor's end. Point-to-point from learner 0, nonblocking."""

    def __init__(self, world: World, num_parameters: int) -> None:
        self._receiver: Receiver = world.receiver(world.plan.ranks("learner")[0], Tag.PARAMETERS)
        self.version = -1
        self._arrived: npt.NDArray[Any] | None = None
        for _ in range(3):
            self._receiver.post(np.zeros(_HEADER_BYTES + 4 * num_parameters, np.uint8))

    def poll(self) -> None:
        """Progress while busy: set the newest version that has come aside, so that newer ones can come.

        Not for a reader of every version, who must not pass over any.
        """
        while (buffer := self._receiver.poll()) is not None:
            if self._arrived is not None:
                self._receiver.post(self._arrived)
            self._arrived = buffer

    def fetch(self, into: npt.NDArray[np.float32], *, at_least: int, exactly: bool = False) -> bool:
        """Copy the newest version that has arrived into `into`; True when it satisfies the request.

        `exactly`: stop at version `at_least` even where a newer one is here. Raises RuntimeError if that version
        was already passed.
        """
        if not exactly:
            self.poll()
        while not (exactly and self.version >= at_least):
            buffer = self._arrived if self._arrived is not None else self._receiver.poll()
            if buffer is None:
                break
            self._arrived = None
            self.version = int(buffer[:8].view(np.int64)[0])
            into[...] = buffer[_HEADER_BYTES:].view(np.float32)
            self._receiver.post(buffer)
        if exactly and self.version > at_least:
            raise RuntimeError(f"parameter version {at_least} was asked for after version {self.version}")
        return self.version >= at_least

    @property
    def drained(self) -> bool:
        """Take in what still comes; True when the learner has closed and all of it is here."""
        self.poll()
        return self._receiver.drained

    def close(self) -> None:
        """Take the posted buffers back; only after `drained`."""
        self._receiver.cancel()
