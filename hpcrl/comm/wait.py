"""How an idle rank waits: poll, then yield, then sleep, so that the cores belong to whoever has work."""

from __future__ import annotations

import ctypes
import os
import time
from collections.abc import Callable
from typing import Literal

_PR_SET_TIMERSLACK = 29
_LADDER = ((20, None), (40, 0.0), (80, 50e-6), (160, 200e-6))
_CROWDED_LADDER = ((2, None), (4, 0.0), (12, 50e-6), (24, 200e-6))
"""(fruitless polls so far, pause): None polls again at once, 0.0 yields, more sleeps. Shorter where ranks share cores:
there every poll is taken from somebody with work."""
_LONGEST_SLEEP_S = 1e-3


def sharpen_timers() -> None:
    """Local. Lower this thread's timer slack to 1 us, so that short sleeps are short (Linux; else no effect)."""
    try:
        ctypes.CDLL(None).prctl(_PR_SET_TIMERSLACK, 1000)
    except (OSError, AttributeError):
        return


class Waiter:
    """Local. Call `idle` after each fruitless poll and `reset` after progress."""

    def __init__(self, mode: Literal["polite", "spin"] = "polite", *, crowded: bool = False) -> None:
        """`crowded`: more ranks than cores on this node."""
        self._spin = mode == "spin"
        self._ladder = _CROWDED_LADDER if crowded else _LADDER
        self._fruitless = 0

    def reset(self) -> None:
        """Something happened: start at the top of the ladder again."""
        self._fruitless = 0

    def idle(self) -> None:
        """Nothing happened: give the core away for as long as the ladder says (at most about 1 ms)."""
        self._fruitless += 1
        if self._spin:
            return
        for limit, pause in self._ladder:
            if self._fruitless <= limit:
                if pause == 0.0:
                    os.sched_yield()
                elif pause is not None:
                    time.sleep(pause)
                return
        time.sleep(_LONGEST_SLEEP_S)

    def until(self, ready: Callable[[], bool], timeout_s: float | None = None) -> bool:
        """Poll until `ready()`; False when `timeout_s` passed first."""
        self.reset()
        deadline = None if timeout_s is None else time.perf_counter() + timeout_s
        while not ready():
            if deadline is not None and time.perf_counter() > deadline:
                return False
            self.idle()
        return True
