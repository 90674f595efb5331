"""What a process has printed, when it is about to end together with its launcher."""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat
import struct
import sys
import termios
import time


def wait_until_read(timeout_s: float = 2.0) -> None:
    """Flush, and wait until whoever reads our output has taken it: a launcher told to abort reads no further. Local."""
    with contextlib.suppress(OSError, ValueError):
        sys.stdout.flush()
        sys.stderr.flush()
    deadline = time.perf_counter() + timeout_s
    while any(_unread(descriptor) for descriptor in (1, 2)) and time.perf_counter() < deadline:
        time.sleep(0.005)


def _unread(descriptor: int) -> bool:
    """Whether a pipe still holds what we wrote; False for anything that is not a pipe."""
    try:
        if not stat.S_ISFIFO(os.fstat(descriptor).st_mode):
            return False
        (waiting,) = struct.unpack("i", fcntl.ioctl(descriptor, termios.FIONREAD, b"\0\0\0\0"))
        return int(waiting) > 0
    except OSError:
        return False
