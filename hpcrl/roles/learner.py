"""The learner: batch -> algorithm.update -> publisher.publish -> ask for the next batch."""

from __future__ import annotations

from hpcrl.algorithms import make_algorithm
from hpcrl.comm.ranks import Placement, share
from hpcrl.comm.replay_link import SLOTS, BatchClient
from hpcrl.comm.rows import Bytes
from hpcrl.comm.stream import all_drained
from hpcrl.data.trajectory import Trajectory, TrajectoryLayout
from hpcrl.roles.arenas import part_layout, part_positions
from hpcrl.roles.learning import Learning
from hpcrl.roles.publication import Publication
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
            while not (learning.over or batches.ready() or session.control.stop_requested):
                publication.poll()
                yield False
            yield from publication.meet()
        publication.poll()
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
    yield from drain(lambda: batches.drained() & publication.drained(), session)
    batches.cancel()
    publication.cancel()
    learning.finish()
    record_timers(session, placement, timers)


class BatchStreams:
    """A learner's share of each batch: one part from every replay rank that has some of it. Point-to-point."""

    def __init__(self, session: Session, placement: Placement) -> None:
        config, world, spec = session.config, session.world, session.trajectory_spec
        learner = placement.role_rank
        self._attempt = world.attempt
        self.column_offset = (
            spec.num_envs * share(config.batch_trajectories, config.ranks.learners, learner).start
        )
        self.total_columns = spec.num_envs * config.batch_trajectories
        self._layouts: dict[int, TrajectoryLayout] = {}
        self._links: dict[int, BatchClient] = {}
        for shard, rank in enumerate(world.plan.ranks("replay")):
            if part_positions(config, shard, learner):
                self._layouts[shard] = part_layout(config, spec, shard, learner)
                self._links[shard] = BatchClient(world, rank, session.arenas.batches, SLOTS * shard)
        self._arrived: dict[int, Bytes] = {}

    def ask(self) -> None:
        """Ask every shard for its part of one more batch.

        The trajectories of the update before the last are overwritten from here on.
        """
        for link in self._links.values():
            link.ask()
        self._arrived = {}

    def ready(self) -> bool:
        """Whether every part of the next batch is here; at once for a learner without any."""
        for shard, link in self._links.items():
            if shard not in self._arrived and (part := link.poll()) is not None:
                self._arrived[shard] = part
        return len(self._arrived) == len(self._links)

    def trajectories(self) -> list[Trajectory]:
        """The batch, a trajectory of many columns from each shard; valid until the next but one `ask`."""
        return [self._layouts[shard].check(self._arrived[shard], self._attempt) for shard in self._links]

    def close(self) -> None:
        """Ask for nothing more."""
        for link in self._links.values():
            link.close()

    def drained(self) -> bool:
        """Take in parts still under way; True when the shards have closed and all of it is here."""
        return all_drained(self._links.values())

    def cancel(self) -> None:
        """Take the offered slots back; only after `drained`."""
        for link in self._links.values():
            link.cancel()
