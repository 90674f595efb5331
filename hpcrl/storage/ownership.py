"""Who may write a run directory: one process, by a lock on its file `lock`; and whether there is one."""

from __future__ import annotations

import fcntl
import logging
import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

from hpcrl.config import ConfigError
from hpcrl.storage.files import read_json
from hpcrl.storage.runlog import attempt_files

_LOCK_TRIES = 10
_LIVE_S, _POLL_S = 60.0, 1.0

_log = logging.getLogger(__name__)


@contextmanager
def held(path: Path) -> Iterator[None]:
    """Keep writers out of a run directory meanwhile. Raises ConfigError when there is one; as `check_idle`."""
    check_idle(path)
    lock = acquire(path, alone=True)
    try:
        yield
    finally:
        os.close(lock)


def check_idle(path: Path) -> None:
    """Raise ConfigError when another process writes the run in this directory.

    Where a lock may not be seen, because the writer was on another host, this waits up to a minute until its files have
    not changed for that long.
    """
    if is_locked(path):
        raise ConfigError(owned(path))
    status = read_json(path / "status.json") or {}
    host, last = str(status.get("host", "")), last_change(path)
    if status.get("status") == "running" and writer_lives(path, host):
        _log.warning(
            "%s was written to by host %s a moment ago: waiting until it is sure to have ended", path, host
        )
        while last_change(path) == last and writer_lives(path, host):
            time.sleep(_POLL_S)
        if last_change(path) != last:
            raise ConfigError(
                f"{path} is being written by process {status.get('pid')} on host {host}; wait for its end"
            )


def acquire(path: Path, *, alone: bool) -> int:
    """Take the writer's lock. Returns its file descriptor; the lock ends with the process at the latest.

    `alone`: False takes none, so that others may write too.
    """
    descriptor = os.open(path / "lock", os.O_RDWR | os.O_CREAT, 0o644)
    for attempt in range(_LOCK_TRIES if alone else 0):
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            break
        except BlockingIOError:
            # A reader that asks for the status holds the lock for an instant.
            if attempt == _LOCK_TRIES - 1:
                os.close(descriptor)
                raise ConfigError(owned(path)) from None
            time.sleep(0.02)
        except OSError as error:
            _log.warning("%s cannot be locked (%s): a second writer would not be noticed", path, error)
            break
    os.ftruncate(descriptor, 0)
    os.write(descriptor, f"{socket.gethostname()} {os.getpid()}\n".encode())
    return descriptor


def is_locked(path: Path) -> bool:
    """Whether a process holds the lock of a run directory, as far as this host can see."""
    try:
        descriptor = os.open(path / "lock", os.O_RDONLY)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    finally:
        os.close(descriptor)
    return False


def writer_lives(run_dir: Path, host: str) -> bool:
    """Whether the run has a writer; `host`: where the last one is said to be, "" where nobody knows."""
    if is_locked(run_dir):
        return True
    if host == socket.gethostname():
        return False
    # Some shared file systems keep locks to one host; a result file that grows shows the writer then.
    return abs(datetime.now(UTC).timestamp() - last_change(run_dir)) < _LIVE_S


def last_change(run_dir: Path) -> float:
    """Of the result files, in seconds since the epoch; 0 where there is none."""
    return max((path.stat().st_mtime for path in attempt_files(run_dir)), default=0.0)


def owned(path: Path) -> str:
    """The sentence that names who writes a run directory."""
    try:
        host, pid = (path / "lock").read_text(encoding="utf-8").split()
        owner = f"process {pid} on host {host}"
    except (OSError, ValueError):
        owner = "another process"
    return f"{path} is being written by {owner}; wait until it ends or name another storage.run_dir"
