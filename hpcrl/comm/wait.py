"""How an idle rank waits: poll, then yield, then sleep, so that the cores belong to whoever has work."""

from __future__ import annotations

import ctypes
import os
import time
from collections.abc import Callable
from typing import Literal, Protocol

_PR_SET_TIMERSLACK = 29
_Ladder = tuple[tuple[int, float | None], ...]
_LADDER: _Ladder = ((50, None), (250, 0.0), (290, 50e-6), (370, 200e-6))
_CROWDED_LADDER: _Ladder = ((2, None), (4, 0.0), (12, 50e-6), (24, 200e-6))
"""(fruitless polls so far, pause): None polls again at once, 0.0 yields, more sleeps. Shorter where ranks share cores:
there every poll is taken from somebody with work."""
_RUNG_LADDER: _Ladder = ((1, None), (2, 0.0), (6, 1e-3))
"""Shorter still where they share cores and all there is to wait for rings a bell: nothing is found by looking earlier.
Three ranks on two cores draw batches of a replay memory in 0.7 of the time so."""
LONGEST_SLEEP_S = 1e-3
"""Where something may come that rings no bell: messages between nodes."""
LONGEST_SLEEP_WITH_BELL_S = 4e-3


def sharpen_timers() -> None:
    """Local. Lower this thread's timer slack to 1 us, so that short sleeps are short (Linux; else no effect)."""
    try:
        ctypes.CDLL(None).prctl(_PR_SET_TIMERSLACK, 1000)
    except (OSError, AttributeError):
        return


class Alarm(Protocol):
    """What can end a sleep early; `comm.bell.Bells` is one."""

    def look(self) -> int:
        """A word that changes whenever somebody rings."""

    def sleep(self, seen: int, seconds: float) -> None:
        """Sleep at most `seconds`; not at all when the word is no longer `seen`."""


class Waiter:
    """Local. Call `idle` after each fruitless poll and `reset` after progress: they call `beat` and `work`."""

    def __init__(
        self,
        mode: Literal["polite", "spin"] = "polite",
        *,
        crowded: bool = False,
        alarm: Alarm | None = None,
        all_ring: bool = False,
    ) -> None:
        """`crowded`: more ranks than cores on this node. `alarm`: sleep on it, so that a ring ends the sleep.

        `all_ring`: nobody is waited for who does not ring it, but at the start and the end.
        """
        self._mode, self._crowded, self._all_ring = mode, crowded, all_ring
        rung = all_ring and alarm is not None
        self._ladder = (_RUNG_LADDER if rung else _CROWDED_LADDER) if crowded else _LADDER
        self._longest_s = LONGEST_SLEEP_WITH_BELL_S if rung else LONGEST_SLEEP_S
        self._alarm = alarm
        self._seen = alarm.look() if alarm is not None else 0
        self._fruitless = 0
        self.beat: Callable[[], None] = _nobody_watches
        """A sign of life for who watches over this rank: of a wait."""
        self.work: Callable[[], None] = _nobody_watches
        """The same after something that is more than a poll; call it wherever a healthy rank comes by often."""

    def with_alarm(self, alarm: Alarm | None) -> Waiter:
        """A waiter of the same manners that sleeps on another alarm."""
        waiter = Waiter(self._mode, crowded=self._crowded, alarm=alarm, all_ring=self._all_ring)
        waiter.beat, waiter.work = self.beat, self.work
        return waiter

    def reset(self) -> None:
        """Something happened: start at the top of the ladder again."""
        self.work()
        self._fruitless = 0

    def idle(self) -> None:
        """Nothing happened: give the core away for as long as the ladder says (at most `longest_s`).

        Returns at once when the alarm was rung since the last call: what was polled before may be there now.
        """
        self.beat()
        self._fruitless += 1
        if self._mode == "spin":
            return
        for limit, pause in self._ladder:
            if self._fruitless <= limit:
                self._pause(pause)
                return
        self._pause(self._longest_s)

    def _pause(self, seconds: float | None) -> None:
        if self._alarm is not None:
            seen, self._seen = self._seen, self._alarm.look()
            if seen != self._seen:
                return
        if seconds is None:
            return
        if seconds == 0.0:
            os.sched_yield()
        elif self._alarm is None:
            time.sleep(seconds)
        else:
            self._alarm.sleep(self._seen, seconds)
            self._seen = self._alarm.look()

    def until(self, ready: Callable[[], bool], timeout_s: float | None = None, eager_s: float = 0.0) -> bool:
        """Poll until `ready()`; False when `timeout_s` passed first.

        `eager_s`: only yield so long, for large messages, which move on only while they are tested.
        """
        self.beat()
        self._fruitless = 0
        sleepy = time.perf_counter() + eager_s
        while eager_s and time.perf_counter() < sleepy:
            if ready():
                return True
            os.sched_yield()
        deadline = None if timeout_s is None else time.perf_counter() + timeout_s
        while not ready():
            if deadline is not None and time.perf_counter() > deadline:
                return False
            self.idle()
        return True


def _nobody_watches() -> None:
    """Until somebody does."""
