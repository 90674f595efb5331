"""What every replay rank does, whatever it holds: grants out, trajectories in, batches on to who asked."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping

import numpy as np

from hpcrl.comm.failures import RankLost
from hpcrl.comm.ranks import Placement
from hpcrl.comm.replay_link import SLOTS, BatchServer
from hpcrl.comm.rows import Bytes, RowReceiver
from hpcrl.comm.stream import Sender, Tag, all_drained
from hpcrl.data.trajectory import Trajectory, TrajectoryLayout
from hpcrl.roles.cut import MARK
from hpcrl.roles.session import Session, record_event
from hpcrl.storage.parts import Given


class Shard(ABC):
    """A replay rank's streams, and what is the same for each kind of contents. Point-to-point; waits for nobody.

    Attributes:
        cut_at: A checkpoint at this update waits for everything that has been granted.
        served: Number of the next batch.
        published: Newest parameter version, as far as known here.
    """

    def __init__(self, session: Session, placement: Placement, note_bytes: Mapping[int, int]) -> None:
        """Local. note_bytes: of the notes in the requests of each learner that is served, by role_rank."""
        config, world = session.config, session.world
        self._session, self._placement, self._timers = session, placement, session.timers
        self._layout = TrajectoryLayout(session.trajectory_spec)
        shard = placement.role_rank
        self._actor_numbers = range(shard, config.ranks.actors, config.ranks.replay)
        """role_rank of each actor of this replay rank."""
        ranks = [world.plan.ranks("actor")[index] for index in self._actor_numbers]
        self._actors = {rank: index for index, rank in enumerate(ranks)}
        """Living ones: world rank -> index among the actors of this replay rank."""
        if world.failures is not None:
            world.failures.on_death(self.lose_actor)
        self._arena = session.arenas.trajectories
        self._trajectories: list[RowReceiver] = [
            world.row_receiver(rank, Tag.TRAJECTORY, self._arena) for rank in ranks
        ]
        self._grants: list[Sender] = [world.sender(rank, Tag.GRANT) for rank in ranks]
        learners = world.plan.ranks("learner")
        self._links = {
            index: BatchServer(world, learners[index], session.arenas.batches, SLOTS * shard, nbytes)
            for index, nbytes in note_bytes.items()
        }
        self._versions = world.receiver(learners[0], Tag.VERSION)
        for _ in range(4):  # two versions ahead, each perhaps with a mark
            self._versions.post(np.zeros(2, np.int64))
        self.served = self.published = session.cuts.first_update
        self.cut_at: int | None = None

    @property
    @abstractmethod
    def under_way(self) -> int:
        """Trajectories that were granted and have not arrived."""

    @abstractmethod
    def grant(self, *, before_cut: bool = False) -> bool:
        """Let actors start trajectories: a row is posted for each before its grant leaves."""

    @abstractmethod
    def serve(self) -> bool:
        """Send the next batch once every learner has asked for it and there is one to send."""

    @abstractmethod
    def components(self) -> dict[str, Given]:
        """This rank's part of a checkpoint: at a cut, or once all is drained."""

    @abstractmethod
    def _note(self, learner: int, note: bytes) -> None:
        """What came with a learner's request."""

    @abstractmethod
    def _insert(self, actor: int, row: int, trajectory: Trajectory) -> None:
        """Take in a trajectory of an actor of this replay rank; the row is the shard's until it frees it."""

    @abstractmethod
    def _lose(self, actor: int) -> int:
        """An actor is dead: it gets no more grants; how many it had. Their rows stay with it: MPI may write to them."""

    @property
    def _settled(self) -> bool:
        """Whether everything that a cut waits for is here."""
        return not self.under_way

    def take_notes(self) -> bool:
        """Requests of the learners and the version they have published."""
        progress = False
        while (note := self._versions.poll()) is not None:
            version, marked = note.tolist()
            if marked:
                self.cut_at = version
            else:
                if version == self._session.cuts.first_update:
                    self._session.start_clock()
                self.published = max(self.published, version)
            self._versions.post(note)
            progress = True
        for learner, link in self._links.items():
            while (said := link.take_request()) is not None:
                self._note(learner, said)
                progress = True
        return progress

    def receive(self) -> bool:
        """Take in complete trajectories."""
        progress = False
        for actor, receiver in enumerate(self._trajectories):
            while (row := receiver.poll()) is not None:
                progress = True
                with self._timers("replay.insert"):
                    self._insert(
                        actor, row, self._layout.check(self._memory(row), self._session.world.attempt)
                    )
        return progress

    def lose_actor(self, rank: int) -> None:
        """An actor is dead: take in what it has sent, and let the others do what it had under way.

        Raises RankLost when none is left.
        """
        if rank not in self._actors:
            return
        world = self._session.world
        (placement,) = world.plan.of_rank(rank)
        self.receive()
        actor = self._actors.pop(rank)
        if not self._actors:
            raise RankLost(
                f"actor {placement.role_rank} (rank {rank}) has died, the last that gives to replay rank "
                f"{self._placement.role_rank}"
            )
        lost = self._lose(actor)
        text = f"on {world.seats[rank]['node']}, after version {self.published}; {lost} trajectories under way lost"
        record_event(self._session, placement, "actor_died", text)

    def cut(self, update: int) -> bool:
        """Take in what has been granted; once all is here, pass the mark on and write this rank's part."""
        progress = self.grant(before_cut=True)
        progress |= self.receive()
        if not self._settled:
            return progress
        for sender in self._grants:
            sender.send(np.array([MARK, update, 0, 0], np.int64))
        self._session.cuts.write(update, self._placement, self.components())
        self.cut_at = None
        return True

    def close_senders(self) -> None:
        """No more grants and batches."""
        for sender in self._grants:
            sender.close()
        for link in self._links.values():
            link.close()

    def drained(self) -> bool:
        """Take in what still comes; True when every stream of this shard has ended."""
        self.receive()
        self.take_notes()
        parameters = self._session.parameters
        done = all_drained(
            [*self._trajectories, *self._links.values(), self._versions, *self._grants, parameters]
        )
        for learner, link in self._links.items():
            while link.unread:
                self._note(learner, link.unread.pop(0))
        return done

    def _offer(self, actor: int, number: int, version: int, row: int, env_steps: int) -> None:
        """Post a row for an actor of this replay rank, and have the grant leave for it."""
        self._trajectories[actor].post(row)
        self._grants[actor].send(np.array([number, version, row, env_steps], np.int64))

    def _memory(self, row: int) -> Bytes:
        return self._arena.row(self._session.world.rank, row)

    def _poison(self, row: int) -> None:
        """Where comm.debug: nobody may rely on what lies in a row that is free."""
        if self._session.config.comm.debug:
            self._memory(row)[...] = 0xFF

    def cancel(self) -> None:
        """Take the offered rows back; only after `drained`."""
        for receiver in self._trajectories:
            receiver.cancel()
        for link in self._links.values():
            link.cancel()
        self._versions.cancel()
