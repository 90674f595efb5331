"""Which actor of a replay rank is the next to start a trajectory."""

from __future__ import annotations


class Turns:
    """What each actor holds: grants whose trajectory has not come. Local; no clock, no communication."""

    def __init__(self, actors: int, grants_per_actor: int) -> None:
        self._most = grants_per_actor
        self._actors = list(range(actors))
        """Those that live."""
        self._held_by = [0] * actors
        self._last_of = [-1] * actors
        self._given = 0

    def take(self, actor: int | None = None) -> int | None:
        """Give a grant to this actor, or to the next one; who has got it, None where he holds as many as he may.

        Next is, of those that hold fewest, the one that waits longest: else a batch of one would starve all but the
        first.
        """
        if actor is None:
            actor = min(self._actors, key=lambda index: (self._held_by[index], self._last_of[index]))
        if self._held_by[actor] >= self._most:
            return None
        self._held_by[actor] += 1
        self._last_of[actor] = self._given
        self._given += 1
        return actor

    def come(self, actor: int) -> None:
        """A trajectory of this actor is here."""
        self._held_by[actor] -= 1

    def lose(self, actor: int) -> int:
        """An actor is dead: it gets no more; how many it held. One must be left."""
        self._actors.remove(actor)
        return self._held_by[actor]
