"""Actors, replay shards and a learner on a virtual clock: the lag contract from the outside.

Nothing here looks into Admission. The world records what actors acted with and what was trained when, and `check`
compares that with the contract.
"""

from __future__ import annotations

import heapq
import random
from collections import deque
from dataclasses import dataclass, field
from typing import Any

from hpcrl.data.admission import Admission, most_alive
from hpcrl.data.reuse import Reuse

MAX_EVENTS = 100_000


class ContractBrokenError(Exception):
    """What the lag contract forbids has happened."""


@dataclass(frozen=True, kw_only=True)
class Setup:
    """One simulated run."""

    max_lag: int = 1
    batch: int = 2  # trajectories per update and shard
    actor_times: tuple[tuple[float, ...], ...] = ((1.0, 1.0),)  # per shard, per actor: seconds per trajectory
    update_time: float = 1.0
    publish_every: int = 1
    overdue: str = "wait"
    deterministic: bool = False
    grants_per_actor: int = 2
    first_version: int = 0
    reuse: tuple[int, int] = (1, 1)
    updates: int = 30
    batches_ahead: int = 2
    message_time: float = 0.3
    pause: tuple[float, float] | None = None  # actor 0 of shard 0 sleeps from, for how long
    death: float | None = None  # when actor 0 of shard 0 dies
    seed: int = 0

    @property
    def lag_when_new(self) -> int:
        batches, uses = self.reuse
        return self.max_lag - (uses - 1) * batches


@dataclass
class Actor:
    shard: int
    index: int
    seconds: float
    grants: deque[Any] = field(default_factory=deque)
    busy: bool = False
    version: int = -1
    dead: bool = False


@dataclass
class Shard:
    admission: Admission
    requested: int = 0
    served: int = 0
    used: dict[int, int] = field(default_factory=dict)  # grant -> version its actor acted with
    here: set[int] = field(default_factory=set)  # arrived, neither trained nor dropped
    accepted: list[int] = field(default_factory=list)
    refused: list[int] = field(default_factory=list)
    dropped_here: list[int] = field(default_factory=list)
    lost: set[int] = field(default_factory=set)  # with an actor that died
    batches: list[list[int]] = field(default_factory=list)
    granted: dict[int, Any] = field(default_factory=dict)
    arrived_batches: dict[int, list[int]] = field(default_factory=dict)


class Simulation:
    """Runs a Setup to its last update, or raises ContractBrokenError."""

    def __init__(self, setup: Setup, admission: type[Admission] = Admission) -> None:
        self.setup = setup
        self.random = random.Random(setup.seed)
        self.now = 0.0
        self.most_grants_held = 0
        self.most_waiting = 0
        self._events: list[tuple[float, int, Any, tuple[Any, ...]]] = []
        self._count = 0
        self.published = setup.first_version
        self.updates = setup.first_version  # done by the learner
        self._end = setup.first_version + setup.updates
        self.training = False
        self.lags: list[int] = []
        self.schedule = Reuse(*setup.reuse, setup.first_version)
        self._buffer: dict[tuple[int, int], list[int]] = {}  # shard, place -> grants
        self.uses: dict[tuple[int, int], int] = {}  # shard, grant -> how often it was trained on
        self.shards = [
            Shard(
                admission(
                    batch=setup.batch,
                    max_lag=setup.lag_when_new,
                    actors=len(times),
                    grants_per_actor=setup.grants_per_actor,
                    overdue=setup.overdue,
                    deterministic=setup.deterministic,
                    reuse=self.schedule,
                )
            )
            for times in setup.actor_times
        ]
        for shard in self.shards:
            shard.requested = shard.served = self.schedule.first_batch
        self.actors = [
            [Actor(shard, index, seconds) for index, seconds in enumerate(times)]
            for shard, times in enumerate(setup.actor_times)
        ]

    def run(self) -> Simulation:
        setup = self.setup
        self._publish(setup.first_version)
        if setup.death is not None:
            self._later(setup.death, self._die)
        for _ in range(setup.batches_ahead):
            self._ask()
        while self.updates < self._end:
            if not self._events or self._count > MAX_EVENTS:
                raise ContractBrokenError(
                    f"nothing moves any more after update {self.updates} of {self._end}"
                )
            self.now, _, action, arguments = heapq.heappop(self._events)
            action(*arguments)
            self._work_of_shards()
        for index, shard in enumerate(self.shards):
            self._check_accounts(index, shard)
        return self

    def _later(self, seconds: float, action: Any, *arguments: Any) -> None:
        self._count += 1
        heapq.heappush(self._events, (self.now + seconds, self._count, action, arguments))

    def _travel(self) -> float:
        return self.random.random() * self.setup.message_time

    # the learner

    def _publish(self, version: int) -> None:
        self.published = version
        for shard in self.shards:
            self._later(self._travel(), shard.admission.publish, version)
        for actor in [actor for actors in self.actors for actor in actors]:
            self._later(self._travel(), self._receive_parameters, actor, version)

    def _ask(self) -> None:
        for shard in self.shards:
            self._later(self._travel(), self._request, shard)

    def _request(self, shard: Shard) -> None:
        shard.requested += 1

    def _receive_batch(self, shard: Shard, batch: int, numbers: list[int]) -> None:
        shard.arrived_batches[batch] = numbers
        self._maybe_train()

    def _maybe_train(self) -> None:
        if self.training or self.updates == self._end:
            return
        if self.schedule.is_new(self.updates):
            batch = self.schedule.batches_before(self.updates)
            if any(batch not in shard.arrived_batches for shard in self.shards):
                return
            for index, shard in enumerate(self.shards):
                place = (index, self.schedule.place(self.updates))
                self._buffer[place] = shard.arrived_batches.pop(batch)
        self.training = True
        for index, shard in enumerate(self.shards):
            for number in self._buffer[index, self.schedule.place(self.updates)]:
                self.uses[index, number] = self.uses.get((index, number), 0) + 1
                lag = self.updates - shard.used[number]
                self.lags.append(lag)
                if not 0 <= lag <= self.setup.max_lag:
                    raise ContractBrokenError(
                        f"update {self.updates} trains on lag {lag} > {self.setup.max_lag}"
                    )
        self._later(self.setup.update_time * (0.5 + self.random.random()), self._finish_update)

    def _finish_update(self) -> None:
        self.training = False
        self.updates += 1
        if self.updates % self.setup.publish_every == 0:
            self._publish(self.updates)
        if self.schedule.is_new(self.updates - 1):
            self._ask()
        self._maybe_train()

    # the shards

    def _work_of_shards(self) -> None:
        for index, shard in enumerate(self.shards):
            while (grant := shard.admission.next_grant()) is not None:
                if grant.number in shard.granted:
                    raise ContractBrokenError(f"grant {grant.number} was issued twice")
                if self.actors[index][grant.actor].dead:
                    raise ContractBrokenError(f"grant {grant.number} went to a dead actor")
                shard.granted[grant.number] = grant
                self._check_rows(index, shard)
                actor = self.actors[index][grant.actor]
                self._later(self._travel(), self._receive_grant, actor, grant)
            while shard.served < shard.requested and self._serve(shard):
                pass

    def _check_rows(self, index: int, shard: Shard) -> None:
        gone = self.setup.batch * len(shard.batches) + len(shard.dropped_here)
        gone += len(shard.refused) + len(shard.lost)
        most = most_alive(
            batch=self.setup.batch,
            max_lag=self.setup.lag_when_new,
            actors=len(self.setup.actor_times[index]),
            grants_per_actor=self.setup.grants_per_actor,
        )
        if len(shard.granted) - gone > most:
            raise ContractBrokenError(f"{len(shard.granted) - gone} trajectories need more than {most} rows")

    def _serve(self, shard: Shard) -> bool:
        batch = shard.served
        dropped = shard.admission.drop_overdue(batch)
        if self.setup.overdue == "wait" and dropped:
            raise ContractBrokenError("dropped although it should wait")
        shard.here -= set(dropped)
        shard.dropped_here += dropped
        numbers = shard.admission.take_batch(batch)
        if numbers is None:
            return False
        if len(numbers) != self.setup.batch or not set(numbers) <= shard.here:
            raise ContractBrokenError(f"batch {numbers} is not made of what is here")
        shard.here -= set(numbers)
        if shard.here and max(numbers) > min(shard.here):
            raise ContractBrokenError(f"batch {numbers} passes over the older {min(shard.here)}")
        shard.batches.append(numbers)
        shard.served += 1
        self._later(self._travel(), self._receive_batch, shard, batch, numbers)
        return True

    def _die(self) -> None:
        shard, actor = self.shards[0], self.actors[0][0]
        actor.dead = True
        away = set(shard.granted) - set(shard.accepted) - set(shard.refused)
        shard.lost = {number for number in away if shard.granted[number].actor == 0}
        before = shard.admission.dropped
        if shard.admission.lose_actor(0) != shard.admission.dropped - before:
            raise ContractBrokenError("what was lost was not counted")

    def _arrive(self, shard: Shard, number: int) -> None:
        if number in shard.lost:
            return
        if shard.admission.arrive(number):
            shard.accepted.append(number)
            shard.here.add(number)
        else:
            shard.refused.append(number)
        self.most_waiting = max(self.most_waiting, len(shard.here))

    def _check_accounts(self, index: int, shard: Shard) -> None:
        trained = [number for batch in shard.batches for number in batch]
        if len(set(trained)) != len(trained):
            raise ContractBrokenError("a trajectory was trained twice")
        if sorted(trained + shard.dropped_here + sorted(shard.here)) != sorted(shard.accepted):
            raise ContractBrokenError("a trajectory that arrived was lost")
        if shard.admission.waiting != len(shard.here):
            raise ContractBrokenError("the number of waiting trajectories is wrong")
        refused_and_dropped = len(shard.refused) + len(shard.dropped_here) + len(shard.lost)
        if shard.admission.dropped < refused_and_dropped:
            raise ContractBrokenError("a drop was not counted")
        under_way = len(shard.granted) - len(shard.accepted) - len(shard.refused) - len(shard.lost)
        late = shard.admission.dropped - refused_and_dropped
        if shard.admission.under_way != under_way - late:
            raise ContractBrokenError(f"shard {index}: {under_way - late} trajectories are under way")
        if self.setup.deterministic:
            self._check_order(shard)

    def _check_order(self, shard: Shard) -> None:
        batch, first = self.setup.batch, self.setup.first_version
        for count, numbers in enumerate(shard.batches, self.schedule.first_batch):
            if numbers != list(range(count * batch, (count + 1) * batch)):
                raise ContractBrokenError(f"batch {count} has grants {numbers}")
            version = max(self.schedule.first_use(count) - self.setup.lag_when_new, first)
            if any(shard.used[number] != version for number in numbers):
                raise ContractBrokenError(f"batch {count} has another version than its update - max_lag")

    # the actors

    def _receive_grant(self, actor: Actor, grant: Any) -> None:
        actor.grants.append(grant)
        held = len(actor.grants) + actor.busy
        self.most_grants_held = max(self.most_grants_held, held)
        self._maybe_act(actor)

    def _receive_parameters(self, actor: Actor, version: int) -> None:
        actor.version = max(actor.version, version)
        self._maybe_act(actor)

    def _maybe_act(self, actor: Actor) -> None:
        if actor.busy or not actor.grants or actor.version < actor.grants[0].version:
            return
        grant = actor.grants.popleft()
        if grant.version > self.published:
            raise ContractBrokenError(f"version {grant.version} was granted before it was published")
        actor.busy = True
        used = grant.version if self.setup.deterministic else actor.version
        self.shards[actor.shard].used[grant.number] = used
        seconds = actor.seconds * (0.5 + self.random.random())
        pause = self.setup.pause
        if pause and actor.shard == actor.index == 0 and self.now <= pause[0] < self.now + seconds:
            seconds += pause[1]
        self._later(seconds, self._finish_trajectory, actor, grant.number)

    def _finish_trajectory(self, actor: Actor, number: int) -> None:
        actor.busy = False
        self._later(self._travel(), self._arrive, self.shards[actor.shard], number)
        self._maybe_act(actor)
