"""Where the time of a rank goes: at every moment it belongs to one hop of one role."""

from __future__ import annotations

import time
from collections.abc import Generator, Mapping
from time import perf_counter
from typing import Protocol

import numpy as np

from hpcrl.config.hops import HOPS, unknown_hop
from hpcrl.storage.schema import TABLES, Rows

_FIRST_ROWS_S = 5.0
_MORE_ROWS = 1.1
"""Rows are due when the time since the start has grown by so much: about a hundred times in a day."""


class Trace(Protocol):
    """Who is told when each hop was; `storage.trace.TraceFile` is one."""

    def thread(self, thread: int, name: str) -> None:
        """Name a role."""

    def slice(self, thread: int, name: str, start: float, stop: float) -> None:
        """A hop is over."""

    def counter(self, thread: int, name: str, when: float, value: float) -> None:
        """A quantity has changed."""

    @property
    def due(self) -> bool:
        """Whether to `flush`."""

    @property
    def over(self) -> bool:
        """Nothing more is wanted."""

    def flush(self) -> None:
        """Write what waits."""

    def close(self) -> None:
        """Write the rest."""


class Timers:
    """Seconds and counts per hop of each role of a rank. Local.

    `with timers("hop"):` times a block; it may yield, as a role does. Hops nest: the time of an inner one is not the
    outer one's own. What no hop covers belongs to `start`, before a role's first yield, then to `role.loop`, or to
    `role.wait` from a yield of False to the next hop or yield of True. While several roles of a rank wait, the time
    is that of the one that was asked last.
    """

    def __init__(
        self,
        role: str = "root",
        role_rank: int = 0,
        *,
        begun: float | None = None,
        delay_s: Mapping[str, float] | None = None,
    ) -> None:
        """`role`: whose the time is from `begun` (of perf_counter; None: now) until one runs.

        `delay_s`: seconds that every entry of a hop takes longer (profile.delay_s).
        """
        self._delay_s = delay_s or {}
        self.begun = self._since = perf_counter() if begun is None else begun
        """By perf_counter."""
        self._due = self._since + _FIRST_ROWS_S
        self._roles = [_Role(role, role_rank, 0, self.begun)]
        self._role = self._roles[0]
        self._current = self._role.rest = self._account("start")
        self.trace: Trace | None = None
        """Set before any role runs."""

    def run(
        self, role: str, role_rank: int, loop: Generator[bool, None, None]
    ) -> Generator[bool, None, None]:
        """The loop of a role; the time in it, and after its yields until another role goes on, is the role's."""
        account = self._join(role, role_rank)
        self._go_on(account)
        for progress in loop:
            if account.starts:
                self._end_start(account)
            if progress:
                self._end_wait()
            elif not account.stack:
                self.begin("role.wait")
                account.waits = True
            if self.trace is not None and self.trace.due:
                self._write_trace(self.trace)
            yield progress
            if self._role is not account:
                self._go_on(account)
        self._end_wait()

    def __call__(self, hop: str) -> Account:
        """Time a block under the name of a hop. Raises ValueError for one that is not declared."""
        return self._role.accounts.get(hop) or self._account(hop)

    def begin(self, hop: str) -> None:
        """Enter a hop; for where a block would cost too much. To be left by `end`, also for `then`."""
        self.enter(self._role.accounts.get(hop) or self._account(hop))

    def then(self, hop: str) -> None:
        """Leave the hop entered last, and enter another one at the same moment."""
        account = self._role.accounts.get(hop) or self._account(hop)
        self._leave(perf_counter())
        self._push(account, self._since)

    def end(self) -> None:
        """Leave the hop entered last."""
        self._leave(perf_counter())

    def enter(self, account: Account) -> None:
        """As `begin`."""
        if self._role.waits:
            self._end_wait()
        self._push(account, perf_counter())

    def leave(self, account: Account) -> None:
        """Leave a hop, and those within it that an exception has left open."""
        now, stack = perf_counter(), self._role.stack
        while stack[-1][0] is not account:
            self._leave(now)
        self._leave(now)

    def add(self, hop: str, seconds: float) -> None:
        """Count a span that lay beside the hops: no part of the rank's own time."""
        account = self(hop)
        account.seconds += seconds
        account.count += 1

    def counter(self, name: str, value: float) -> None:
        """Tell the trace, if there is one, of a quantity."""
        if self.trace is not None:
            self.trace.counter(self._role.thread, name, self._since, value)

    @property
    def open_hops(self) -> list[str]:
        """What the roles of this rank are at, outermost: in a wait, what they wait for."""
        return [role.stack[0][0].hop for role in self._roles if role.stack]

    @property
    def due(self) -> bool:
        """Whether it is time for `rows` again, so that a killed run leaves most of its times. Reads no clock."""
        return self._since >= self._due

    def rows(self) -> Rows:
        """Rows of table `timers` up to now: `own_s` of all add up to `age_s`."""
        now = perf_counter()
        self._charge(now, self._current)
        age_s = now - self.begun
        self._due = self.begun + max(_MORE_ROWS * age_s, age_s + _FIRST_ROWS_S)
        return np.concatenate([role.rows(now, age_s) for role in self._roles])

    def end_trace(self) -> None:
        """Write what is left of it, if there is one."""
        if self.trace is not None:
            self.trace.close()
            self.trace = None

    def _join(self, role: str, role_rank: int) -> _Role:
        """A role's accounts: those of the first one go on from the start."""
        for known in self._roles:
            if (known.role, known.role_rank) == (role, role_rank):
                return known
        joined = _Role(role, role_rank, len(self._roles), perf_counter())
        self._roles.append(joined)
        before, self._role = self._role, joined
        joined.rest = self._account("start")
        self._role = before
        return joined

    def _end_start(self, role: _Role) -> None:
        """At its first yield; what it is in by then has begun after the start."""
        start, role.rest, role.starts = role.rest, self._account("role.loop"), False
        self._charge(perf_counter(), self._top())
        until = role.stack[0][1] if role.stack else self._since
        start.seconds, start.count = until - role.since, 1
        if self.trace is not None:
            self.trace.thread(role.thread, role.role)
            self.trace.slice(role.thread, "start", role.since, until)

    def _write_trace(self, trace: Trace) -> None:
        with self("trace.write"):
            trace.flush()
        if trace.over:
            self.end_trace()

    def _account(self, hop: str) -> Account:
        if hop not in HOPS:
            raise ValueError(unknown_hop(hop))
        account = Account(hop, self._delay_s.get(hop, 0.0), self)
        return self._role.accounts.setdefault(hop, account)

    def _go_on(self, role: _Role) -> None:
        self._role = role
        self._charge(perf_counter(), self._top())

    def _top(self) -> Account:
        return self._role.stack[-1][0] if self._role.stack else self._role.rest

    def _charge(self, now: float, account: Account) -> None:
        """The time up to now is the current hop's; from here on it is another one's."""
        self._current.own_s += now - self._since
        self._since = now
        self._current = account

    def _push(self, account: Account, now: float) -> None:
        self._charge(now, account)
        self._role.stack.append((account, now))
        if account.delay_s:
            time.sleep(account.delay_s)

    def _leave(self, now: float) -> None:
        stack = self._role.stack
        account, entered = stack.pop()
        account.seconds += now - entered
        account.count += 1
        self._charge(now, stack[-1][0] if stack else self._role.rest)
        if self.trace is not None:
            self.trace.slice(self._role.thread, account.hop, entered, now)

    def _end_wait(self) -> None:
        if self._role.waits:
            self._role.waits = False
            self._leave(perf_counter())


class Account:
    """The time of one hop of one role; as a context it is entered and left."""

    __slots__ = ("_timers", "count", "delay_s", "hop", "own_s", "seconds")

    def __init__(self, hop: str, delay_s: float, timers: Timers) -> None:
        self.hop, self.delay_s, self._timers = hop, delay_s, timers
        self.seconds = self.own_s = 0.0
        self.count = 0

    def __enter__(self) -> None:
        self._timers.enter(self)

    def __exit__(self, *error: object) -> None:
        self._timers.leave(self)


class _Role:
    """What is counted for one role."""

    rest: Account
    """Of what no hop covers."""

    def __init__(self, role: str, role_rank: int, thread: int, since: float) -> None:
        self.role, self.role_rank, self.thread, self.since = role, role_rank, thread, since
        self.accounts: dict[str, Account] = {}
        self.stack: list[tuple[Account, float]] = []
        """Hops that are entered, outermost first, and since when."""
        self.starts, self.waits = True, False

    def rows(self, now: float, age_s: float) -> Rows:
        own = [one for one in self.accounts.values() if one.count or one.own_s]
        under_way = dict.fromkeys(self.accounts, 0.0)
        for account, entered in self.stack:
            under_way[account.hop] += now - entered
        return TABLES["timers"].rows(
            len(own),
            role=self.role,
            role_rank=self.role_rank,
            hop=[one.hop for one in own],
            seconds=np.array([one.seconds + under_way[one.hop] or one.own_s for one in own]),
            own_s=np.array([one.own_s for one in own]),
            count=np.array([max(one.count, 1) for one in own]),
            age_s=age_s,
        )
