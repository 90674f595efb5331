"""The replay rank as a queue: each trajectory goes on to the learners once, within the lag contract."""

from __future__ import annotations

from collections import Counter

from hpcrl.comm.ranks import Placement
from hpcrl.comm.rows import Bytes
from hpcrl.data.admission import Admission, still_in_time
from hpcrl.data.reuse import reuse_of
from hpcrl.data.trajectory import Trajectory
from hpcrl.roles.arenas import part_layout, part_positions, shard_positions, trajectory_rows
from hpcrl.roles.queue_state import QueueState
from hpcrl.roles.session import Session, record_event
from hpcrl.roles.shard import Shard
from hpcrl.storage.parts import Given


class QueueShard(Shard):
    """Rows of trajectories, and their admission."""

    def __init__(self, session: Session, placement: Placement) -> None:
        """Local."""
        config, shard = session.config, placement.role_rank
        counts = {index: len(part_positions(config, shard, index)) for index in range(config.ranks.learners)}
        super().__init__(session, placement, {index: 0 for index, count in counts.items() if count})
        self._positions = shard_positions(config, shard)
        self._parts = {
            index: part_layout(config, session.env_spec, session.trajectory_spec, shard, index)
            for index in self._links
        }
        self._fresh = iter(range(trajectory_rows(config, shard)))
        """Rows that were never used; taken only when no other is free, so that memory grows with need."""
        self._free: list[int] = []
        self._row_of: dict[int, int] = {}
        """Rows of the trajectories that have arrived, by grant."""
        self._reuse = reuse_of(config, session.cuts.first_update)
        self.served = self._reuse.first_batch
        self.admission = Admission(
            batch=len(self._positions),
            max_lag=config.max_lag_when_new,
            actors=len(self._actor_numbers),
            grants_per_actor=config.comm.slots,
            overdue=config.lag.overdue,
            deterministic=config.deterministic,
            reuse=self._reuse,
            waiting=self._restore(),
        )

    @property
    def under_way(self) -> int:
        """As Shard.under_way."""
        return self.admission.under_way

    def grant(self, *, before_cut: bool = False) -> bool:
        """As Shard.grant."""
        progress = False
        for sender in self._grants:
            sender.poll()
        self.admission.publish(self.published)
        next_grant = self.admission.next_grant_before_cut if before_cut else self.admission.next_grant
        while (grant := next_grant()) is not None:
            row = self._free.pop() if self._free else next(self._fresh)
            self._offer(grant.actor, grant.number, grant.version, row, 0)
            progress = True
        return progress

    def components(self) -> dict[str, Given]:
        """Every trajectory that has arrived and was not sent on."""
        state = QueueState(self._session.trajectory_spec)
        batch = self._session.config.batch_trajectories
        for grant in self.admission.waiting_grants:
            number, place = divmod(grant.number, len(self._positions))
            row = self._memory(self._row_of[grant.number])
            state.add(row, number * batch + self._positions[place], grant.version)
        return {"queue": state.values()}

    def serve(self) -> bool:
        """As Shard.serve; the lag contract has to allow the batch."""
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
        self._timers.counter("trajectories waiting", len(self._row_of))
        self.served += 1
        return True

    def _note(self, learner: int, note: bytes) -> None:
        """There is nothing in it."""

    def _lose(self, actor: int) -> int:
        return self.admission.lose_actor(actor)

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

    def _insert(self, actor: int, row: int, trajectory: Trajectory) -> None:
        number = int(trajectory.header["grant"])
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
        self._poison(row)
        self._free.append(row)
