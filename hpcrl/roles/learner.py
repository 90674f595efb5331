"""The learner: batch -> algorithm.update -> publisher.publish -> ask for the next batch."""

from __future__ import annotations

import numpy as np

from hpcrl.algorithms import make_algorithm
from hpcrl.comm.publish import Publisher
from hpcrl.comm.ranks import Placement, share
from hpcrl.comm.stream import Receiver, Sender, Tag, all_drained
from hpcrl.data.trajectory import Bytes, Trajectory, TrajectoryLayout
from hpcrl.roles.learning import Learning
from hpcrl.roles.replay import learner_of_position, shard_positions
from hpcrl.roles.session import RoleLoop, Session, Timers, drain, record_timers


def run_learner(session: Session, placement: Placement) -> RoleLoop:
    """Update until the budget is used or all agree to stop. Collective over the learners in `vote` and `update`.

    Two batches are asked for ahead, so that one arrives while the other is trained on.
    """
    config = session.config
    timers = Timers()
    learning = Learning(session, placement, make_algorithm(config, session.env_spec), timers)
    batches = BatchStreams(session, placement)
    publication = Publication(session, placement, learning)
    publication.publish(0)
    batches.ask()
    batches.ask()
    while True:
        with timers("batch.wait"):
            while not batches.ready() and not session.control.stop_requested:
                publication.poll()
                yield False
        if learning.vote():
            break
        learning.update(batches.trajectories(), batches.column_offset, batches.total_columns)
        with timers("publisher.publish"):
            if learning.updates % config.lag.publish_every_updates == 0:
                publication.publish(learning.updates)
        batches.ask()
        yield True
    session.control.announce_stop()
    batches.close()
    publication.close()
    yield from drain(lambda: batches.drained() & publication.drained())
    batches.cancel()
    learning.finish()
    record_timers(session, placement, timers)


class BatchStreams:
    """A learner's share of each batch: requests out, rows in, in two alternating slots. Point-to-point."""

    def __init__(self, session: Session, placement: Placement) -> None:
        config, world = session.config, session.world
        self._layout = TrajectoryLayout(session.trajectory_spec)
        self._attempt = world.attempt
        positions = share(config.batch_trajectories, config.ranks.learners, placement.role_rank)
        self.column_offset = positions.start * session.trajectory_spec.num_envs
        self.total_columns = config.batch_trajectories * session.trajectory_spec.num_envs
        shards = world.plan.ranks("replay")
        mine = [
            [
                p
                for p in shard_positions(config, index)
                if learner_of_position(config, p) == placement.role_rank
            ]
            for index in range(len(shards))
        ]
        self._rows_of = {index: len(rows) for index, rows in enumerate(mine) if rows}
        self._receivers: dict[int, Receiver] = {
            i: world.receiver(shards[i], Tag.BATCH) for i in self._rows_of
        }
        self._requests: dict[int, Sender] = {i: world.sender(shards[i], Tag.REQUEST) for i in self._rows_of}
        self._slots = [self._layout.allocate(len(positions), poison=config.comm.debug) for _ in range(2)]
        self._asked = 0
        self._arrived: dict[int, list[Bytes]] = {index: [] for index in self._rows_of}

    def ask(self) -> None:
        """Post the rows of the older slot again and ask every shard for its part of one more batch.

        The trajectories of the update before the last are overwritten from here on.
        """
        slot = self._slots[self._asked % 2]
        start = 0
        for index, rows in self._rows_of.items():
            for row in slot[start : start + rows]:
                self._receivers[index].post(row)
            start += rows
            self._requests[index].send(np.array([self._asked], np.int64))
        self._asked += 1
        self._arrived = {index: [] for index in self._rows_of}

    def ready(self) -> bool:
        """Whether every row of the next batch is here; at once for a learner without rows."""
        for sender in self._requests.values():
            sender.poll()
        for index, rows in self._rows_of.items():
            arrived = self._arrived[index]
            while len(arrived) < rows and (row := self._receivers[index].poll()) is not None:
                arrived.append(row)
        return all(len(self._arrived[index]) == rows for index, rows in self._rows_of.items())

    def trajectories(self) -> list[Trajectory]:
        """The batch, in the order of the slot; valid until the next but one `ask`."""
        rows = [row for arrived in self._arrived.values() for row in arrived]
        return [self._layout.check(row, self._attempt) for row in rows]

    def close(self) -> None:
        """Ask for nothing more."""
        for sender in self._requests.values():
            sender.close()

    def drained(self) -> bool:
        """Take in rows still under way; True when the shards have closed and all of it is here."""
        for receiver in self._receivers.values():
            while receiver.poll() is not None:
                pass
        return all_drained([*self._receivers.values(), *self._requests.values()])

    def cancel(self) -> None:
        """Take the posted rows back; only after `drained`."""
        for receiver in self._receivers.values():
            receiver.cancel()


class Publication:
    """Learner 0 tells the actors the parameters and the shards the version; the other learners do nothing."""

    def __init__(self, session: Session, placement: Placement, learning: Learning) -> None:
        world, config = session.world, session.config
        self._vector = learning.algorithm.parameters.numpy
        root = placement.role_rank == 0
        self._publisher = (
            Publisher(world, self._vector.size, every_version=config.deterministic) if root else None
        )
        shards = world.plan.ranks("replay") if root else []
        self._versions: list[Sender] = [world.sender(rank, Tag.VERSION) for rank in shards]

    def publish(self, version: int) -> None:
        """Start sending; waits for nobody."""
        if self._publisher is None:
            return
        self._publisher.publish(version, self._vector)
        for sender in self._versions:
            sender.send(np.array([version], np.int64))

    def poll(self) -> None:
        """Progress."""
        if self._publisher is not None:
            self._publisher.poll()
        for sender in self._versions:
            sender.poll()

    def close(self) -> None:
        """No more versions."""
        if self._publisher is not None:
            self._publisher.close()
        for sender in self._versions:
            sender.close()

    def drained(self) -> bool:
        """Closed, and nothing is under way."""
        published = self._publisher is None or self._publisher.drained
        return all_drained(self._versions) and published
