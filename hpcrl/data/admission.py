"""The lag contract as pure bookkeeping: which trajectory may start, and which batch it belongs to.

One object per replay rank, which gives `batch` trajectories to each update. With V the last published parameter
version, grants issued <= (V + 1 + max_lag) * batch (+ those dropped); a trajectory granted under V is never trained
at an update later than V + max_lag, because every batch is held back until the ones after it can still take all that
is granted in time (or what would be late is dropped).

Where batches are trained on several times (`Reuse`), only some updates take a new one; max_lag is then the lag of data
that are new, and of the updates up to V + max_lag those count that take a new batch. Without reuse a batch has the
number of its update.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from hpcrl.data.reuse import ONCE, Reuse
from hpcrl.data.turns import Turns


@dataclass(frozen=True, slots=True)
class Grant:
    """Permission to start one trajectory."""

    number: int
    actor: int
    version: int
    """The actor must act with this parameter version or a newer one (deterministic: exactly this one)."""


def most_alive(*, batch: int, max_lag: int, actors: int, grants_per_actor: int) -> int:
    """Most trajectories that can be granted and neither served, dropped nor refused at one time. Pure.

    Granted, less what was dropped, is at most (published version + 1 + max_lag) * batch; what is published was served
    before; and what was dropped but has not come yet, to be refused, is still held by an actor.
    """
    return (1 + max_lag) * batch + actors * grants_per_actor


def still_in_time(versions: Sequence[int], *, reuse: Reuse, batch: int, max_lag: int) -> list[int]:
    """Which of some trajectories, by the versions of their grants, may wait in the queue of a resumed run. Pure.

    They are trained in this order from update `reuse.first` on; what would be older than max_lag by then is left out.
    """
    kept: list[int] = []
    for index, version in enumerate(versions):
        if version + max_lag >= reuse.first_use(reuse.first_batch + len(kept) // batch):
            kept.append(index)
    return kept


class Admission:
    """Grants, arrivals and batches of one replay rank. Local; no clock, no communication."""

    def __init__(
        self,
        *,
        batch: int,
        max_lag: int,
        actors: int,
        grants_per_actor: int,
        overdue: Literal["wait", "drop"] = "wait",
        deterministic: bool = False,
        reuse: Reuse = ONCE,
        waiting: Sequence[int] = (),
    ) -> None:
        """`reuse.first`: updates behind a resumed run. `waiting`: versions of the trajectories it has still to train.

        Those are numbered from reuse.first_batch * batch on, and must be `still_in_time`.
        """
        first_number = reuse.first_batch * batch
        self.batch = batch
        self.max_lag = max_lag
        self.overdue = overdue
        self.deterministic = deterministic
        self.grants_per_actor = grants_per_actor
        self.published_version = reuse.first
        self.granted = first_number + len(waiting)
        self.dropped = 0
        self._reuse = reuse
        self.overdue_under_way: dict[int, int] = {}
        """Of the dropped ones those that had not come yet, by actor; of whom there are some."""
        self._under_way: dict[int, Grant] = {}
        self._arrived: dict[int, Grant] = {
            first_number + place: Grant(first_number + place, 0, version)
            for place, version in enumerate(waiting)
        }
        self._given_up: dict[int, Grant] = {}
        """Dropped while under way; they count against their actor until they come."""
        self._num_actors = actors
        self._turns = Turns(actors, grants_per_actor)

    def publish(self, version: int) -> None:
        """The learners have published `version`."""
        self.published_version = max(self.published_version, version)

    def next_grant(self) -> Grant | None:
        """Issue a grant, or None while the bound or every actor's own limit forbids one."""
        if self.granted - self.dropped >= self._batches_within(self.max_lag) * self.batch:
            return None
        version = self.published_version
        if self.deterministic:
            update = self._reuse.first_use(self.granted // self.batch)
            version = max(update - self.max_lag, self._reuse.first)
        actor = self._turns.take(self.granted % self._num_actors if self.deterministic else None)
        if actor is None:
            return None
        grant = Grant(self.granted, actor, version)
        self._under_way[grant.number] = grant
        self.granted += 1
        return grant

    def next_grant_before_cut(self) -> Grant | None:
        """As `next_grant`, while a checkpoint waits for everything to arrive: None once no more has to be granted.

        Nothing has to, except where each trajectory has a fixed version: those of the version before the published
        one, which a resumed run does not have.
        """
        if not self.deterministic or self.granted >= self._batches_within(self.max_lag - 1) * self.batch:
            return None
        return self.next_grant()

    @property
    def waiting_grants(self) -> list[Grant]:
        """Of the trajectories that have arrived and belong to no batch yet, oldest first."""
        return [self._arrived[number] for number in sorted(self._arrived)]

    def arrive(self, number: int) -> bool:
        """A trajectory is here. False: it was dropped as overdue in the meantime and must not be trained on."""
        grant = self._under_way.pop(number, None)
        if grant is None:
            if number in self._given_up:
                self._turns.come(self._given_up.pop(number).actor)
            return False
        self._turns.come(grant.actor)
        self._arrived[number] = grant
        return True

    def take_batch(self, batch: int) -> list[int] | None:
        """Numbers of the trajectories of the batch of that number, oldest grant first, or None while it must wait."""
        if self.deterministic:
            numbers = list(range(batch * self.batch, (batch + 1) * self.batch))
            if any(number not in self._arrived for number in numbers):
                return None
        else:
            numbers = sorted(self._arrived)[: self.batch]
            if len(numbers) < self.batch or self._would_be_overdue_after(batch, set(numbers)):
                return None
        for number in numbers:
            del self._arrived[number]
        return numbers

    def drop_overdue(self, batch: int) -> list[int]:
        """With overdue=drop: forget what can no longer be in that batch; the numbers that had arrived.

        Those under way are refused when they arrive.
        """
        if self.overdue == "wait":
            return []
        update = self._reuse.first_use(batch)
        late_here = [number for number, grant in self._arrived.items() if self._deadline(grant) < update]
        late_away = [number for number, grant in self._under_way.items() if self._deadline(grant) < update]
        for number in late_here:
            del self._arrived[number]
        for number in late_away:
            self._given_up[number] = grant = self._under_way.pop(number)
            self.overdue_under_way[grant.actor] = self.overdue_under_way.get(grant.actor, 0) + 1
        self.dropped += len(late_here) + len(late_away)
        return late_here

    def lose_actor(self, actor: int) -> int:
        """An actor is dead: it gets no more grants, and others get those it held; how many these were.

        Not in a deterministic run. One actor must be left.
        """
        self._turns.lose(actor)
        lost = [number for number, grant in self._under_way.items() if grant.actor == actor]
        for number in lost:
            del self._under_way[number]
        self.dropped += len(lost)
        return len(lost)

    @property
    def under_way(self) -> int:
        """Grants whose trajectory has not arrived."""
        return len(self._under_way)

    @property
    def waiting(self) -> int:
        """Trajectories that have arrived and belong to no batch yet."""
        return len(self._arrived)

    def _deadline(self, grant: Grant) -> int:
        return grant.version + self.max_lag

    def _batches_within(self, updates: int) -> int:
        """Batches that are new at the update after the published version by so many, or before."""
        return self._reuse.batches_before(self.published_version + updates + 1)

    def _would_be_overdue_after(self, batch: int, taken: set[int]) -> bool:
        """Whether something would miss its deadline, were this batch to take these and later ones the oldest left."""
        if self.overdue == "drop":
            return False
        grants = self._under_way | self._arrived
        left = sorted(grants.keys() - taken)
        times = (self._reuse.first_use(batch + 1 + place // self.batch) for place in range(len(left)))
        return any(self._deadline(grants[number]) < time for number, time in zip(left, times, strict=True))
