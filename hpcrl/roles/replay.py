"""The replay rank as a queue: grants out, trajectories in, batches on to the learners that asked."""

from __future__ import annotations

from collections import Counter

import numpy as np

from hpcrl.comm.failures import RankLost
from hpcrl.comm.ranks import Placement
from hpcrl.comm.replay_link import SLOTS, BatchServer
from hpcrl.comm.rows import Bytes, RowReceiver
from hpcrl.comm.stream import Sender, Tag, all_drained
from hpcrl.data.admission import Admission, still_in_time
from hpcrl.data.reuse import reuse_of
from hpcrl.data.trajectory import TrajectoryLayout
from hpcrl.roles.arenas import part_layout, part_positions, shard_positions, trajectory_rows
from hpcrl.roles.cut import MARK
from hpcrl.roles.queue_state import QueueState
from hpcrl.roles.session import RoleLoop, Session, Timers, drain, record_event, record_timers
from hpcrl.storage.parts import Given


def run_replay(session: Session, placement: Placement) -> RoleLoop:
    """Serve until the run stops and everything is drained. Point-to-point; waits for nobody."""
    timers = Timers(session.open_hops)
    shard = ReplayShard(session, placement, timers)
    while not session.control.stopped:
        progress = session.parameters.poll()
        progress |= shard.take_notes()
        if shard.cut_at is None:
            progress |= shard.grant()
            progress |= shard.receive()
            progress |= shard.serve()
        else:
            progress |= shard.cut(shard.cut_at)
        if progress:
            session.report(f"{shard.served} batches sent, {shard.admission.under_way} trajectories under way")
        yield progress
    shard.close_senders()
    yield from drain(shard.drained, session)
    if session.control.save_at is not None:
        session.cuts.write(session.control.save_at, placement, {"queue": shard.queue()}, final=True)
    shard.cancel()
    record_timers(session, placement, timers)


class ReplayShard:
    """Rows of trajectories, their admission, and the streams around them."""

    def __init__(self, session: Session, placement: Placement, timers: Timers) -> None:
        config, world = session.config, session.world
        self._session = session
        self._placement = placement
        self._timers = timers
        shard = placement.role_rank
        self._layout = TrajectoryLayout(session.trajectory_spec)
        self._positions = shard_positions(config, shard)
        actors = range(placement.role_rank, config.ranks.actors, config.ranks.replay)
        actor_ranks = [world.plan.ranks("actor")[index] for index in actors]
        self._actors = {rank: index for index, rank in enumerate(actor_ranks)}
        """Living actors of this replay rank: world rank -> number in `admission`."""
        if world.failures is not None:
            world.failures.on_death(self.lose_actor)
        self._arena = session.arenas.trajectories
        self._trajectories: list[RowReceiver] = [
            world.row_receiver(rank, Tag.TRAJECTORY, self._arena) for rank in actor_ranks
        ]
        self._grants: list[Sender] = [world.sender(rank, Tag.GRANT) for rank in actor_ranks]
        ranks = world.plan.ranks("learner")
        counts = {index: len(part_positions(config, shard, index)) for index in range(config.ranks.learners)}
        self._parts = {
            index: part_layout(config, session.trajectory_spec, shard, index)
            for index, count in counts.items()
            if count
        }
        self._links = {
            index: BatchServer(world, ranks[index], session.arenas.batches, SLOTS * shard)
            for index in self._parts
        }
        self._versions = world.receiver(ranks[0], Tag.VERSION)
        for _ in range(4):  # two versions ahead, each perhaps with a mark
            self._versions.post(np.zeros(2, np.int64))
        self._fresh = iter(range(trajectory_rows(config, shard)))
        """Rows that were never used; taken only when no other is free, so that memory grows with need."""
        self._free: list[int] = []
        self._row_of: dict[int, int] = {}
        """Rows of the trajectories that have arrived, by grant."""
        self._reuse = reuse_of(config, session.cuts.first_update)
        self.served = self._reuse.first_batch
        """Number of the next batch."""
        self.cut_at: int | None = None
        """A checkpoint at this update waits for everything that has been granted."""
        self.admission = Admission(
            batch=len(self._positions),
            max_lag=config.max_lag_when_new,
            actors=len(actor_ranks),
            grants_per_actor=config.comm.slots,
            overdue=config.lag.overdue,
            deterministic=config.deterministic,
            reuse=self._reuse,
            waiting=self._restore(),
        )

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
                self.admission.publish(version)
            self._versions.post(note)
            progress = True
        for link in self._links.values():
            while link.take_request() is not None:
                progress = True
        return progress

    def grant(self, *, before_cut: bool = False) -> bool:
        """Let actors start trajectories: a row is posted for each before its grant leaves."""
        progress = False
        for sender in self._grants:
            sender.poll()
        next_grant = self.admission.next_grant_before_cut if before_cut else self.admission.next_grant
        while (grant := next_grant()) is not None:
            row = self._free.pop() if self._free else next(self._fresh)
            self._trajectories[grant.actor].post(row)
            self._grants[grant.actor].send(np.array([grant.number, grant.version, row], np.int64))
            progress = True
        return progress

    def receive(self) -> bool:
        """Take in complete trajectories."""
        progress = False
        for receiver in self._trajectories:
            while (row := receiver.poll()) is not None:
                progress = True
                with self._timers("replay.insert"):
                    self._insert(row)
        return progress

    def lose_actor(self, rank: int) -> None:
        """An actor is dead: take in what it has sent, and let the others do what it had under way.

        The rows that were offered to it stay with it: MPI may still write to one. Raises RankLost when none is left.
        """
        if rank not in self._actors:
            return
        world, published = self._session.world, self.admission.published_version
        (placement,) = world.plan.of_rank(rank)
        self.receive()
        actor = self._actors.pop(rank)
        if not self._actors:
            raise RankLost(
                f"actor {placement.role_rank} (rank {rank}) has died, the last that gives to replay rank "
                f"{self._placement.role_rank}"
            )
        lost = self.admission.lose_actor(actor)
        text = (
            f"on {world.seats[rank]['node']}, after version {published}; {lost} trajectories under way lost"
        )
        record_event(self._session, placement, "actor_died", text)

    def cut(self, update: int) -> bool:
        """Take in what has been granted; once all is here, pass the mark on and write this rank's part."""
        progress = self.grant(before_cut=True)
        progress |= self.receive()
        if self.admission.under_way:
            return progress
        for sender in self._grants:
            sender.send(np.array([MARK, update, 0], np.int64))
        self._session.cuts.write(update, self._placement, {"queue": self.queue()})
        self.cut_at = None
        return True

    def queue(self) -> Given:
        """Every trajectory that has arrived and was not sent on, as a component."""
        state = QueueState(self._session.trajectory_spec)
        batch = self._session.config.batch_trajectories
        for grant in self.admission.waiting_grants:
            number, place = divmod(grant.number, len(self._positions))
            row = self._memory(self._row_of[grant.number])
            state.add(row, number * batch + self._positions[place], grant.version)
        return state.values()

    def serve(self) -> bool:
        """Send the next batch once every learner it serves has asked for it and the lag contract allows it."""
        for link in self._links.values():
            link.poll()
        buffers = {index: link.begin() for index, link in self._links.items()}
        if any(buffer is None for buffer in buffers.values()):
            return False
        self._drop_overdue()
        numbers = self.admission.take_batch(self.served)
        if numbers is None:
            return False
        with self._timers("replay.sample"):
            self._answer(numbers, {index: buffer for index, buffer in buffers.items() if buffer is not None})
        self.served += 1
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
        return all_drained(
            [*self._trajectories, *self._links.values(), self._versions, *self._grants, parameters]
        )

    def cancel(self) -> None:
        """Take the offered rows back; only after `drained`."""
        for receiver in self._trajectories:
            receiver.cancel()
        for link in self._links.values():
            link.cancel()
        self._versions.cancel()

    def _memory(self, row: int) -> Bytes:
        return self._arena.row(self._session.world.rank, row)

    def _restore(self) -> list[int]:
        """Put this rank's share of the saved trajectories into rows; their versions, in the order of their grants."""
        session, config, saved = self._session, self._session.config, self._session.cuts.saved
        if saved is None:
            return []
        queue = QueueState(session.trajectory_spec)
        for part in [*saved.of_role("learner"), *saved.of_role("replay")]:
            saved.restore(part, "queue", queue.load)
        whole, shard = config.batch_trajectories, self._placement.role_rank
        mine = [one for one in queue.in_order() if one[0] % whole % config.ranks.replay == shard]
        batch = len(self._positions)
        versions = [version for _, version, _ in mine]
        kept = still_in_time(versions, reuse=self._reuse, batch=batch, max_lag=config.max_lag_when_new)
        for place, index in enumerate(kept):
            row, number = next(self._fresh), self._reuse.first_batch * batch + place
            self._memory(row)[: self._layout.nbytes] = mine[index][2]
            header = self._layout.view(self._memory(row)).header
            header["attempt"], header["grant"] = session.world.attempt, number
            self._row_of[number] = row
        lost = len(mine) - len(kept) + (queue.foreign if shard == 0 else 0)
        if lost:
            text = "saved in another layout, or too old under lag.max_lag, when the run was resumed"
            record_event(session, self._placement, "dropped_trajectory", text, lost)
        return [mine[index][1] for index in kept]

    def _insert(self, row: int) -> None:
        number = int(self._layout.check(self._memory(row), self._session.world.attempt).header["grant"])
        if self.admission.arrive(number):
            self._row_of[number] = row
        else:  # given up, and counted, before it came
            self._release(row)

    def _answer(self, numbers: list[int], buffers: dict[int, Bytes]) -> None:
        """Write each learner's trajectories, in the order of their positions, into its slot."""
        number_of = dict(zip(self._positions, numbers, strict=True))
        for learner, buffer in buffers.items():
            positions = part_positions(self._session.config, self._placement.role_rank, learner)
            rows = [self._row_of.pop(number_of[position]) for position in positions]
            self._parts[learner].join(buffer, [self._layout.view(self._memory(row)) for row in rows])
            self._links[learner].send()
            for row in rows:
                self._release(row)

    def _drop_overdue(self) -> None:
        """Drop what would be too old, here or still with an actor; counted when decided, whether it comes or not.

        Noted as its actor's, unless that is one of an earlier attempt that there is no more.
        """
        before = Counter(self.admission.overdue_under_way)
        dropped: Counter[int] = Counter()
        for row in map(self._row_of.pop, self.admission.drop_overdue(self.served)):
            dropped[int(self._layout.view(self._memory(row)).header["actor"])] += 1
            self._release(row)
        for actor, count in (Counter(self.admission.overdue_under_way) - before).items():
            dropped[self._placement.role_rank + actor * self._session.config.ranks.replay] += count
        update, max_lag = self._reuse.first_use(self.served) + 1, self._session.config.lag.max_lag
        actors = [one for one in self._session.world.plan.placements if one.role == "actor"]
        for role_rank, count in dropped.items():
            text = f"of actor {role_rank}: too old for update {update} under lag.max_lag={max_lag}"
            befell = actors[role_rank] if role_rank < len(actors) else self._placement
            record_event(self._session, befell, "dropped_trajectory", text, count)

    def _release(self, row: int) -> None:
        if self._session.config.comm.debug:
            self._memory(row)[...] = 0xFF
        self._free.append(row)
