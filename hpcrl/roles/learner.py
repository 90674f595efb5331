"""The learner: batch -> algorithm.update -> publisher.publish -> ask for the next batch."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from hpcrl.algorithms import make_algorithm
from hpcrl.comm.ranks import Placement, share
from hpcrl.comm.replay_link import SLOTS, BatchClient
from hpcrl.comm.rows import Bytes
from hpcrl.comm.stream import all_drained
from hpcrl.data.reuse import Reuse
from hpcrl.data.trajectory import Trajectory, TrajectoryLayout
from hpcrl.roles.arenas import batch_positions, part_layout, part_positions
from hpcrl.roles.batch import normalize_weights
from hpcrl.roles.learning import Learning
from hpcrl.roles.publication import Publication
from hpcrl.roles.queue_state import QueueState
from hpcrl.roles.session import RoleLoop, Session, drain
from hpcrl.roles.update_notes import UpdateNote, note_bytes, write_note
from hpcrl.storage.parts import Given

Vector = npt.NDArray[np.float32]


def run_learner(session: Session, placement: Placement) -> RoleLoop:
    """Update until the budget is used or all agree to stop. Collective over the learners in `vote` and `update`.

    Two batches are asked for ahead, so that one arrives while the other is trained on.
    """
    config, timers = session.config, session.timers
    learning = Learning(session, placement, make_algorithm(config, session.env_spec), cut_ahead=SLOTS)
    batches = BatchStreams(session, placement, learning.reuse)
    publication = Publication(session, placement, learning)
    publication.publish(learning.updates)
    batches.ask_ahead()
    while True:
        with timers("batch.wait"):
            while not (
                learning.over or learning.cut_here or batches.ready(learning.updates) or learning.stop_heard
            ):
                publication.poll()
                learning.poll()
                yield False
        with timers("learners.meet"):
            yield from publication.meet()
        publication.poll()
        learning.poll()
        was_stopping = learning.stopping
        if learning.vote():
            break
        if learning.cut_here:
            learning.cut(batches.components(learning.updates))
            publication.mark(learning.updates)
            if learning.stopping:
                break
            batches.ask_ahead()
            continue
        if learning.stopping and not was_stopping:
            continue  # agreed on before each has its batch
        batch = batches.trajectories(learning.updates)
        priorities = learning.update(batch, batches.column_offset, batches.total_columns)
        with timers("publisher.publish"):
            publication.after(learning.updates)
        batches.note(learning.updates, learning.env_steps, priorities)
        batches.next(learning.updates, learning.cut_at)  # before a cut the batches ahead are used up
        yield True
    with timers("end.wait"):
        yield from learning.end(publication.poll)
        batches.close()
        publication.close()
        yield from drain(lambda: batches.drained() & publication.drained(), session)
        batches.cancel()
        publication.cancel()
        yield from learning.finish(batches.components(learning.updates))


class BatchStreams:
    """A learner's share of each batch: one part from every replay rank that has some of it. Point-to-point.

    Batches that are trained on again are copied to memory of this learner's own.
    """

    def __init__(self, session: Session, placement: Placement, reuse: Reuse) -> None:
        config, world, spec = session.config, session.world, session.trajectory_spec
        learner = placement.role_rank
        self._session, self._learner = session, learner
        self._sampled = config.algorithm.uses_replay
        positions, columns = batch_positions(config), 1 if self._sampled else spec.num_envs
        self.column_offset = columns * share(positions, config.ranks.learners, learner).start
        self.total_columns = columns * positions
        self._layouts: dict[int, TrajectoryLayout] = {}
        self._links: dict[int, BatchClient] = {}
        for shard, rank in enumerate(world.plan.ranks("replay")):
            count = len(part_positions(config, shard, learner))
            if count or self._sampled:
                nbytes = note_bytes(config, count)
                self._layouts[shard] = part_layout(config, session.env_spec, spec, shard, learner)
                self._links[shard] = BatchClient(world, rank, session.arenas.batches, SLOTS * shard, nbytes)
        self._weighted = config.replay.sampling == "prioritized"
        self._notes: dict[int, bytes] = {}
        """To be sent with the next requests."""
        self._arrived: dict[int, Bytes] = {}
        self._reuse = reuse
        self._asked = reuse.first_batch
        """Number of the first batch that has not been asked for."""
        self._kept = {
            shard: layout.allocate(reuse.batches if reuse.uses > 1 else 0)
            for shard, layout in self._layouts.items()
        }
        """This learner's part of each batch in the circular buffer."""

    def ask_ahead(self) -> None:
        """Ask for as many batches as may be asked for; at the start and after a cut."""
        for _ in range(SLOTS):
            self._ask()

    def next(self, update: int, cut_at: int | None) -> None:
        """`update` is the next one: ask every shard for its part of one more batch, if one was used up.

        None is asked for that is new only after the cut. Where one is, the batch before the last is overwritten.
        """
        if not self._reuse.is_new(update - 1):
            return
        self._arrived = {}
        if cut_at is None or self._asked < self._reuse.batches_before(cut_at):
            self._ask()
        elif self._sampled:
            for shard, link in self._links.items():
                link.tell(self._notes.pop(shard))

    def note(self, update: int, env_steps: int, priorities: Vector | None) -> None:
        """To be sent by `next`: what a replay memory has to know of the update that was made, now `update` of them."""
        if not self._sampled:
            return
        start = 0
        for shard, layout in self._layouts.items():
            columns = slice(start, start + layout.spec.num_envs)
            td = None if priorities is None or not self._weighted else priorities[columns]
            self._notes[shard] = write_note(UpdateNote(update - 1, env_steps, td))
            start = columns.stop

    def _ask(self) -> None:
        self._asked += 1
        for shard, link in self._links.items():
            link.ask(self._notes.pop(shard, b""))

    def ready(self, update: int) -> bool:
        """Whether every part of the batch of `update` is here; at once for a learner without any."""
        if not self._reuse.is_new(update):
            return True
        for shard, link in self._links.items():
            if shard not in self._arrived and (part := link.poll()) is not None:
                self._arrived[shard] = part
        return len(self._arrived) == len(self._links)

    def trajectories(self, update: int) -> list[Trajectory]:
        """The batch of `update`, which is `ready`: a trajectory of many columns from each shard.

        Valid until the next but one `next`, or until another batch takes its place in the buffer.
        """
        attempt, place = self._session.world.attempt, self._reuse.place(update)
        parts = self._arrived
        if self._reuse.uses > 1:
            parts = {shard: rows[place] for shard, rows in self._kept.items()}
            if self._reuse.is_new(update):
                for shard, part in self._arrived.items():
                    parts[shard][...] = part[: parts[shard].nbytes]
        found = [layout.check(parts[shard], attempt) for shard, layout in self._layouts.items()]
        if self._sampled:
            normalize_weights(found)
        return found

    def components(self, update: int) -> dict[str, Given]:
        """What is here of the batches of `update` and later ones and is not trained on, unless it was only sampled.

        Before a cut nothing is; at the end of a run only after `drained`.
        """
        config = self._session.config
        if self._sampled:
            return {}
        queue = QueueState(self._session.trajectory_spec)
        for shard, link in self._links.items():
            positions = part_positions(config, shard, self._learner)
            first = [self._arrived[shard]] if shard in self._arrived else []
            for ahead, part in enumerate([*first, *link.unread]):
                number = self._reuse.batches_before(update) + ahead
                numbers = [number * config.batch_trajectories + place for place in positions]
                queue.add_joined(self._layouts[shard].view(part), numbers)
        return {"queue": queue.values()}

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
