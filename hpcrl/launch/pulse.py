"""Whether the run gets on: every rank tells the writer when it has worked, and what it waits for when it has not."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterable

from hpcrl.launch.board import Board
from hpcrl.launch.results import ranges

_LOOKS_PER_LIMIT = 8
_MOST_DETAILS = 16_000
"""Characters: a note is one block of records."""


class Pulse:
    """One rank's signs of life and work: to its parent by the board, to the writer by notes. Local.

    A note is the empty text: "I have worked since the last one"; or, once, after `limit_s` of nothing but waiting,
    what this rank waits for.
    """

    def __init__(
        self,
        board: Board,
        tell: Callable[[str], bool],
        poll: Callable[[], bool],
        waiting: Callable[[], str],
        limit_s: float | None,
    ) -> None:
        """`tell` takes a note and says whether it could; `poll` makes notes move, and says whether work was heard of.

        `waiting`: what this rank waits for, as `describe_wait` puts it. `limit_s`: None tells nobody.
        """
        self._board, self._tell, self._poll, self._waiting = board, tell, poll, waiting
        self._limit_s = limit_s or math.inf
        self._next = math.inf
        self._worked, self._told = True, False
        self._idle_since = 0.0

    def begin(self) -> None:
        """Start-up is over: let the writer know."""
        self._board.begin()
        if self._limit_s < math.inf:
            self._next = 0.0

    def end(self) -> None:
        """There is nobody to tell any more, and no work: what is left has time-outs of its own."""
        self._next = math.inf
        self._board.watch_run(on=False)

    def work(self) -> None:
        """Something was done that is more than a poll."""
        self._board.work()
        self._worked = True
        self._look()

    def beat(self) -> None:
        """Nothing but another poll."""
        self._board.beat()
        self._look()

    def _look(self) -> None:
        now = time.perf_counter()
        if now < self._next:
            return
        self._next = now + self._limit_s / _LOOKS_PER_LIMIT
        if self._worked:
            self._idle_since, self._told = now, False
            self._worked = not self._tell("")
        elif not self._told and now - self._idle_since > self._limit_s:
            self._told = self._tell(self._waiting())
        if self._poll():  # a rank that waits inside a collective hears of the work of others all the same
            self._board.work()


class RollCall:
    """On the writer: who has begun, and what those wait for who only wait. Local."""

    def __init__(self, board: Board, ranks: Iterable[int], dead: Callable[[], set[int]] = set) -> None:
        """`ranks`: all of the run; `dead`: those of which nothing is to be expected any more."""
        self._board, self._missing, self._dead = board, set(ranks), dead
        self._waits: dict[int, str] = {}

    def take(self, rank: int, text: str) -> bool:
        """Take a note; whether it speaks of work. The watch over the run begins when all have been heard of."""
        self._missing.discard(rank)
        if not self._board.works and not self._missing - self._dead():
            self._board.watch_run(on=True)
        if not text:
            self._waits.pop(rank, None)
            self._board.work()  # here, for whoever takes notes in need not ask what they say
            return True
        self._waits[rank] = text
        living = {rank: text for rank, text in self._waits.items() if rank not in self._dead()}
        self._board.show_waits(*summarize(living))
        return False


def describe_wait(role: str, role_rank: int, at: str, details: str) -> str:
    """A note on what a rank waits for. `at`: the hop it is in; `details`: lines for a report. Pure."""
    return json.dumps([role, role_rank, at, details[:_MOST_DETAILS]])


def summarize(waits: dict[int, str]) -> tuple[str, str]:
    """Notes by rank as a phrase, as in "actors 0-3 in grant.wait; learner 0 in batch.wait", and as lines. Pure."""
    alike: dict[tuple[str, str], list[int]] = {}
    lines = []
    for rank in sorted(waits):
        role, role_rank, at, details = json.loads(waits[rank])
        alike.setdefault((role, at), []).append(role_rank)
        lines.append(f"{role} {role_rank} (rank {rank}): {details}")
    phrases = [
        f"{role}{'s' * (len(ranks) > 1)} {ranges(sorted(ranks))} in {at or 'no wait of its own'}"
        for (role, at), ranks in alike.items()
    ]
    return "; ".join(phrases), "\n".join(lines)
