"""The replay rank as a memory: trajectories in, as many samples out as the limiter allows, priorities back.

Learners send a note after each update: the priorities of what they have trained on, and the run's env_steps. It comes
with their next request, or by itself where a cut lies ahead. A batch whose notes have not all come is `owed`.

With deterministic=true actors and learners take turns: a batch is drawn when the notes of all before it are here, and
where the limiter allows none, every actor collects a trajectory with the newest parameters; they are inserted in the
order of their grants once all of them are here. So what happens depends on nothing but the data.
"""

from __future__ import annotations

from dataclasses import dataclass
from time import perf_counter

import numpy as np
import numpy.typing as npt

from hpcrl.comm.ranks import Placement
from hpcrl.comm.rows import Bytes
from hpcrl.data.replay_memory import Sample
from hpcrl.data.trajectory import Trajectory
from hpcrl.data.turns import Turns
from hpcrl.roles.arenas import batch_positions, part_layout, part_positions, shard_envs
from hpcrl.roles.memory_state import make_limiter, memory_components, open_memory
from hpcrl.roles.records import table_row
from hpcrl.roles.session import Session
from hpcrl.roles.shard import Shard
from hpcrl.roles.timers import Timers
from hpcrl.roles.update_notes import note_bytes, read_note
from hpcrl.storage.parts import Given


@dataclass(slots=True)
class _Owed:
    """A batch that was sent, until every learner has sent its note."""

    sample: Sample
    td: npt.NDArray[np.float32]
    missing: set[int]
    env_steps: int = 0
    has_priorities: bool = False


class Wait:
    """How long one side has waited for the other, by a clock that is looked at between other things. Local."""

    def __init__(self, timers: Timers, hop: str) -> None:
        self._timers, self._hop = timers, hop
        self._since: float | None = None
        self.seconds = 0.0
        """Of the waits that are over."""

    def look(self, waits: bool) -> None:
        """Whether it waits now."""
        now = perf_counter()
        if waits:
            self._since = now if self._since is None else self._since
        elif self._since is not None:
            self._timers.add(self._hop, now - self._since)
            self.seconds += now - self._since
            self._since = None


class MemoryShard(Shard):
    """The memory of some environments, its limiter, and the batches that learners have not answered yet."""

    def __init__(self, session: Session, placement: Placement) -> None:
        """Local."""
        config, shard = session.config, placement.role_rank
        learners = range(config.ranks.learners)
        counts = [len(part_positions(config, shard, learner)) for learner in learners]
        super().__init__(
            session, placement, {learner: note_bytes(config, counts[learner]) for learner in learners}
        )
        ends = np.cumsum([0, *counts])
        self._columns = {learner: slice(int(ends[learner]), int(ends[learner + 1])) for learner in learners}
        """Of this shard's share of a batch those of each learner."""
        self._count = int(ends[-1])
        self._parts = {
            learner: part_layout(config, session.env_spec, session.trajectory_spec, shard, learner)
            for learner in learners
        }
        self.limiter = make_limiter(config, shard)
        self.memory, self._env_steps = open_memory(session, placement, self.limiter)
        self._turns = Turns(len(self._actor_numbers), config.comm.slots)
        self._free = [
            list(range(actor * config.comm.slots, (actor + 1) * config.comm.slots))
            for actor in range(len(self._actor_numbers))
        ]
        """Rows of each actor."""
        self._granted = 0
        self._under_way: dict[int, int] = {}
        """Actor of each trajectory that was granted and has not been inserted, by the number of its grant."""
        self._most = session.trajectory_spec.unroll_length * session.trajectory_spec.num_envs
        """env_steps of a trajectory, at most."""
        self._come: dict[int, tuple[int, int, Trajectory]] = {}
        """What is here of the trajectories under way, (actor, row, trajectory) by grant."""
        self._owed: dict[int, _Owed] = {}
        self._share = len(shard_envs(config, shard)) / config.env.num_envs
        """Of the run's env_steps."""
        self._actors_wait = Wait(session.timers, "limiter.insert_wait")
        self._learners_wait = Wait(session.timers, "limiter.sample_wait")

    @property
    def under_way(self) -> int:
        """As Shard.under_way."""
        return len(self._under_way)

    @property
    def _settled(self) -> bool:
        """Everything granted is in the memory, and the priorities of everything served."""
        return not self._under_way and not self._owed

    def grant(self, *, before_cut: bool = False) -> bool:
        """As Shard.grant: as far as the limiter lets inserts run ahead of samples."""
        for sender in self._grants:
            sender.poll()
        if before_cut or (self._session.config.deterministic and not self._is_turn_of_actors):
            return False
        progress = False
        while self._may_insert:
            actor = self._next_actor()
            if actor is None:
                break
            row = self._free[actor].pop()
            self._under_way[self._granted] = actor
            self._offer(actor, self._granted, self.published, row, self._env_steps)
            self._granted += 1
            progress = True
        self._actors_wait.look(not self._under_way)
        return progress

    def serve(self) -> bool:
        """As Shard.serve: as far as the limiter lets samples run ahead of inserts."""
        for link in self._links.values():
            link.poll()
        buffers = {learner: link.begin() for learner, link in self._links.items()}
        asked = [buffer for buffer in buffers.values() if buffer is not None]
        if len(asked) < len(buffers):
            self._learners_wait.look(False)
            return False
        ready = self._may_sample and not (self._session.config.deterministic and self._owed)
        self._learners_wait.look(not ready)
        if ready:
            with self._timers("replay.sample"):
                self._answer(dict(zip(buffers, asked, strict=True)))
        return ready

    def components(self) -> dict[str, Given]:
        """Memory and limiter. What was sent and is not trained on, at the end of a run, does not count as drawn."""
        self.limiter.sample(-self._count * len(self._owed))
        self._owed.clear()
        return memory_components(self.memory, self.limiter)

    @property
    def _may_insert(self) -> bool:
        """One trajectory more; where there is nothing to draw yet, nothing else could help."""
        under_way, given_back = self._most * (len(self._under_way) + 1), self._count * len(self._owed)
        return not self.memory.entries or self.limiter.may_insert(under_way, given_back)

    @property
    def _may_sample(self) -> bool:
        return self.memory.entries > 0 and self.limiter.may_sample(self._count)

    @property
    def _is_turn_of_actors(self) -> bool:
        """deterministic: whether learners have trained on all there was, and can get nothing more."""
        learners_wait = not self._owed and self.published == self.served and not self._may_sample
        return learners_wait and not self._under_way

    def _next_actor(self) -> int | None:
        """deterministic: each once, in their order."""
        if not self._session.config.deterministic:
            return self._turns.take()
        place = len(self._under_way)
        return self._turns.take(place) if place < len(self._actor_numbers) else None

    def _insert(self, actor: int, row: int, trajectory: Trajectory) -> None:
        number = int(trajectory.header["grant"])
        self._come[number] = (actor, row, trajectory)
        if self._session.config.deterministic and len(self._come) < len(self._under_way):
            return
        for number in sorted(self._come):
            actor, row, trajectory = self._come.pop(number)
            self.memory.insert(trajectory)
            self.limiter.insert(int(trajectory.header["valid_steps"]))
            self._turns.come(actor)
            del self._under_way[number]
            self._poison(row)
            self._free[actor].append(row)

    def _lose(self, actor: int) -> int:
        lost = [number for number, whose in self._under_way.items() if whose == actor]
        for number in lost:
            del self._under_way[number]
        self._turns.lose(actor)
        return len(lost)

    def _answer(self, buffers: dict[int, Bytes]) -> None:
        """Draw this shard's share of the next batch, and write each learner's part of it into its slot."""
        config, memory = self._session.config, self.memory
        sample = memory.sample(self._count, self._beta, self._count / batch_positions(config))
        for learner, buffer in buffers.items():
            columns = self._columns[learner]
            count = columns.stop - columns.start
            part = self._parts[learner].begin(
                buffer,
                attempt=self._session.world.attempt,
                version=0,
                actor=self._placement.role_rank,
                grant=self.served,
                envs=range(count),
            )
            own = Sample(sample.slots[columns], sample.generations[columns], sample.weights[columns])
            memory.gather(own, part, slice(0, count))
            part.header["inserted"], part.header["largest_weight"] = memory.inserted, sample.weights.max()
            part.seal(config.comm.checksum)
            self._links[learner].send()
        self.limiter.sample(self._count)
        td = np.full(self._count, np.nan, np.float32)
        self._owed[self.served] = _Owed(sample, td, set(buffers))
        self.served += 1
        self._record()

    def _record(self) -> None:
        """A row of table `replay` on the batch that was just sent."""
        memory = self.memory
        self._timers.counter("transitions held", memory.size)
        row = table_row(
            "replay",
            update=self.served,
            role_rank=self._placement.role_rank,
            size=memory.size,
            inserted=self.limiter.inserted,
            sampled=self.limiter.sampled,
            priority_total=memory.tree.total,
            stale_updates=memory.stale_updates,
            refused_priorities=memory.refused_priorities,
            actors_wait_s=self._actors_wait.seconds,
            learners_wait_s=self._learners_wait.seconds,
        )
        self._session.record("replay", row)

    @property
    def _beta(self) -> float:
        """Exponent of the importance weights, by the share of the budget that has been inserted."""
        replay, budget = self._session.config.replay, self._session.config.budget.env_steps
        progress = min(self.memory.inserted / (self._share * budget), 1.0)
        return replay.beta + progress * (replay.beta_end - replay.beta)

    def _note(self, learner: int, note: bytes) -> None:
        """Priorities of what a learner has trained on; they count once those of all learners are here."""
        said = read_note(note)
        if said is None:
            return
        owed = self._owed[said.batch]
        owed.missing.remove(learner)
        if said.td is not None:
            owed.td[self._columns[learner]] = said.td
            owed.has_priorities = True
        if owed.missing:
            return
        self._env_steps = max(self._env_steps, said.env_steps)
        del self._owed[said.batch]
        if owed.has_priorities:
            with self._timers("replay.update_priorities"):
                self.memory.update_priorities(owed.sample, owed.td)
