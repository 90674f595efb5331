"""What a signal does: it sets a flag. Loads no MPI, so that the flag is up before anything slow begins."""

from __future__ import annotations

import signal
from types import FrameType

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)


class SignalFlag:
    """Local. The only thing a signal does is to set this flag; more signals change nothing."""

    def __init__(self) -> None:
        self.received: str | None = None

    def install(self) -> SignalFlag:
        """Replace this process's handlers of INT, TERM, USR1 and USR2 (main thread only); returns itself."""
        for number in SIGNALS:
            signal.signal(number, self._set)
        return self

    def remove(self) -> None:
        """Let the signals end this process again, as they do by default (main thread only)."""
        for number in SIGNALS:
            signal.signal(number, signal.SIG_DFL)

    def _set(self, number: int, frame: FrameType | None) -> None:
        if self.received is None:
            self.received = signal.Signals(number).name
