"""A learner's part in publication: parameters to the actors, versions to the replay ranks."""

from __future__ import annotations

import math
import time

import numpy as np

from hpcrl.comm.ranks import Placement
from hpcrl.comm.stream import Sender, Tag, all_drained
from hpcrl.models.staging import HostCopy
from hpcrl.roles.learning import Learning
from hpcrl.roles.session import RoleLoop, Session


class Publication:
    """Learner 0 publishes; a learner that shares its memory, or receives for its node, makes progress in `poll`."""

    def __init__(self, session: Session, placement: Placement, learning: Learning) -> None:
        """Local."""
        world = session.world
        self._parameters = learning.algorithm.parameters
        self._exchange = session.parameters
        self._publisher = session.parameters.publisher if placement.role_rank == 0 else None
        shards = world.plan.ranks("replay") if placement.role_rank == 0 else []
        self._versions: list[Sender] = [world.sender(rank, Tag.VERSION) for rank in shards]
        self._copy = HostCopy()
        self._version: int | None = None
        """Whose parameters are on their way to host memory."""
        self._every_updates = session.config.lag.publish_every_updates
        self._every_s = session.config.lag.publish_every_seconds or math.inf
        self._last = time.perf_counter()

    def after(self, update: int) -> None:
        """After each update: publish it where its number or the clock says so.

        Learner 0 decides; the others, which publish nothing, only make progress.
        """
        if update % self._every_updates == 0 or time.perf_counter() - self._last >= self._every_s:
            self.publish(update)

    def publish(self, version: int) -> None:
        """Make the learner's parameters that version, on learner 0.

        Waits for nobody: parameters on a device are published by a later `poll`, and may change meanwhile.
        """
        self._last = time.perf_counter()
        if self._publisher is not None:
            if self._version is not None:
                self._copy.wait()  # begun an update ago
                self._hand_over(self._version)
            self._copy.start(self._parameters.vector)
            self._version = version
        self.poll()

    def mark(self, update: int) -> None:
        """After the versions before it: a cut lies at `update`. On learner 0, to the replay ranks."""
        if self._version is not None:
            self._copy.wait()
            self._hand_over(self._version)
        for sender in self._versions:
            sender.send(np.array([update, 1], np.int64))

    def poll(self) -> None:
        """Progress."""
        if self._version is not None and self._copy.ready():
            self._hand_over(self._version)
        self._exchange.poll()
        for sender in self._versions:
            sender.poll()

    def _hand_over(self, version: int) -> None:
        self._version = None
        if self._publisher is not None:
            self._publisher.publish(version, self._copy.array)
        for sender in self._versions:
            sender.send(np.array([version, 0], np.int64))

    def meet(self) -> RoleLoop:
        """Yield until every learner has come here. Collective over the learners.

        To be gone through before their other collectives: as long as one of them waits for trajectories, parameters
        must go on reaching the actors, with the help of the others.
        """
        if self._exchange.learners_must_meet:
            here = self._exchange.meet_learners()
            while not here():
                self.poll()
                yield False

    def close(self) -> None:
        """No more versions; one that has not been published yet is forgotten."""
        self._version = None
        if self._publisher is not None:
            self._publisher.close()
        for sender in self._versions:
            sender.close()

    def drained(self) -> bool:
        """Closed, and nothing is under way."""
        return all_drained([self._exchange, *self._versions])

    def cancel(self) -> None:
        """Only after `drained`."""
        self._exchange.cancel()
