"""Processes and signals in tests."""

import contextlib
import signal
import time
from pathlib import Path

from hpcrl.comm.signals import SIGNALS


def gone(pid, within_s=20):
    """Whether a process has ended, within a while."""
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline:
        try:
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
                return True
        except FileNotFoundError:
            return True
        time.sleep(0.01)
    return False


@contextlib.contextmanager
def own_handlers():
    """Handlers of hpcrl's signals that are installed within are removed behind it."""
    before = {number: signal.getsignal(number) for number in SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
