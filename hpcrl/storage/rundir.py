"""The directory of one run: who may write it, and how the run stands."""

from __future__ import annotations

import logging
import os
import re
import socket
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self

from hpcrl.config import ConfigError, RunConfig
from hpcrl.storage.files import SEAL, read_json, seal_is_broken, sealed, write_json, write_text
from hpcrl.storage.ownership import acquire, check_idle, is_locked, owned, writer_lives
from hpcrl.storage.runlog import attempt_files

Status = Literal["running", "finished", "stopped", "failed"]

_STATUS_FORMAT = 1
"""From the first that has a hash of its own."""
_FOLDERS = ("attempts", "checkpoints", "logs")

_log = logging.getLogger(__name__)


class RunDirectory:
    """The one writer's hold on a run directory; made by `create`, let go by `close`."""

    def __init__(self, path: Path, attempt: int, lock: int) -> None:
        self.path = path
        self.attempt = attempt
        self._lock = lock

    @classmethod
    def create(cls, config: RunConfig) -> RunDirectory:
        """Make the directory, lock it and write `config.json` and the first `status.json`.

        `storage.run_dir` where it is given, else `storage.runs_dir`/NAME-SEED-NNN with the next free number.
        Only one rank of a world may call this. Raises ConfigError when the directory holds a run, belongs to
        another writer or cannot be made.
        """
        check_free(config)
        path = _make(config)
        lock = acquire(path, alone=config.faults.has("ownership"))
        if (path / "config.json").exists():  # somebody else was faster between the check and the lock
            os.close(lock)
            raise ConfigError(_holds_a_run(path))
        return cls._begin(config, path, 1, lock)

    @classmethod
    def resume(cls, config: RunConfig) -> RunDirectory:
        """Go on in `storage.run_dir`, which holds a run, as its next attempt; `config.json` is written anew.

        Only one rank of a world may call this. Raises ConfigError when it belongs to another writer.
        """
        path = Path(str(config.storage.run_dir))
        check_owner(config)
        lock = acquire(path, alone=config.faults.has("ownership"))
        last = max((int(file.stem) for file in attempt_files(path)), default=0)
        return cls._begin(config, path, last + 1, lock)

    @classmethod
    def _begin(cls, config: RunConfig, path: Path, attempt: int, lock: int) -> RunDirectory:
        directory = cls(path, attempt, lock)
        for name in _FOLDERS:
            (path / name).mkdir(exist_ok=True)
        write_text(path / "config.json", config.to_json())
        directory.write_status("running")
        return directory

    @property
    def attempt_file(self) -> Path:
        """Result file of this attempt."""
        return self.path / "attempts" / f"{self.attempt:03d}.h5"

    @property
    def logs(self) -> Path:
        """Folder of the ranks' text logs."""
        return self.path / "logs"

    def write_provenance(self, provenance: Mapping[str, Any]) -> None:
        """Write `provenance.json`."""
        write_json(self.path / "provenance.json", dict(provenance))

    def write_status(
        self, status: Status, *, exit_code: int | None = None, cause: str = "", **progress: Any
    ) -> None:
        """Replace `status.json`, atomically.

        `finished` is for a run that reached its budget, and nothing else. `progress` is what readers show:
        env_steps, updates, wall_s, env_steps_per_s; any JSON value is kept.
        """
        before = read_json(self.path / "status.json") or {}
        if status == "running" and before.get("status") == "failed" and before.get("attempt") == self.attempt:
            return  # a supervisor has just seen a rank die, and said so
        values = {
            "format": _STATUS_FORMAT,
            "status": status,
            "exit_code": exit_code,
            "cause": cause,
            "attempt": self.attempt,
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "written_at": datetime.now(UTC).isoformat(timespec="seconds"),
        }
        write_json(self.path / "status.json", sealed(values | progress))

    def close(self) -> None:
        """Let another writer in. Calling it again does nothing."""
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def check_free(config: RunConfig) -> None:
    """Raise ConfigError when `RunDirectory.create` would refuse; makes nothing, so it may run before MPI."""
    given = config.storage.run_dir
    path = Path(given if given is not None else config.storage.runs_dir)
    key = "storage.run_dir" if given is not None else "storage.runs_dir"
    if path.exists() and not path.is_dir():
        raise ConfigError(f"{key}={str(path)!r} is a file; name a folder")
    if given is not None:
        if is_locked(path):
            raise ConfigError(owned(path))
        if (path / "config.json").exists():
            raise ConfigError(_holds_a_run(path))
    parent = path.absolute()
    while not parent.exists():
        parent = parent.parent
    if not parent.is_dir() or not os.access(parent, os.W_OK | os.X_OK):
        raise ConfigError(f"{key}={str(path)!r}: {parent} cannot be written; name another folder with {key}")


def check_owner(config: RunConfig) -> None:
    """Raise ConfigError when another process writes the run in `storage.run_dir`; may wait, see `check_idle`."""
    if config.faults.has("ownership"):
        check_idle(Path(str(config.storage.run_dir)))


def read_status(run_dir: Path) -> dict[str, Any]:
    """Tell how a run stands: the values of `status.json`, with `status` brought up to date.

    `killed`: it says running, but nobody holds the directory. `not started`: no status was ever written.
    """
    values = read_json(run_dir / "status.json") or {}
    values = {"status": "not started", "exit_code": None, "cause": ""} | values
    if values["status"] == "running" and not writer_lives(run_dir, str(values.get("host", ""))):
        values["status"] = "killed"
        values["cause"] = values.get("cause") or "its process ended without saying why"
    return values


def status_damage(run_dir: Path) -> str:
    """What is wrong with `status.json` as a file; empty where nothing is. Local."""
    values = read_json(run_dir / "status.json")
    if values is None:
        return "is missing or cannot be read"
    old = "format" not in values and SEAL not in values  # of before it had a hash
    return "" if old or not seal_is_broken(values) else "does not match its own hash"


def mark_failed(run_dir: Path, exit_code: int, cause: str) -> None:
    """Note why a run ended, from any rank or its supervisor; the first cause stays."""
    values = read_json(run_dir / "status.json") or {}
    if values.get("status", "running") == "running":
        said = {"format": _STATUS_FORMAT, "status": "failed", "exit_code": exit_code, "cause": cause}
        write_json(run_dir / "status.json", sealed(values | said))


def _make(config: RunConfig) -> Path:
    storage = config.storage
    try:
        if storage.run_dir is not None:
            path = Path(storage.run_dir)
            path.mkdir(parents=True, exist_ok=True)
            return path
        parent = Path(storage.runs_dir)
        parent.mkdir(parents=True, exist_ok=True)
        return _next_number(parent, f"{config.name}-{config.seed}-")
    except OSError as error:
        key = "storage.run_dir" if storage.run_dir is not None else "storage.runs_dir"
        raise ConfigError(
            f"the run directory cannot be made: {error}; name another place with {key}"
        ) from error


def _next_number(parent: Path, stem: str) -> Path:
    pattern = re.compile(re.escape(stem) + r"(\d+)")
    matches = (pattern.fullmatch(path.name) for path in parent.iterdir())
    number = max((int(match.group(1)) for match in matches if match), default=0)
    while True:
        number += 1
        path = parent / f"{stem}{number:03d}"
        try:
            path.mkdir()
        except FileExistsError:
            continue  # another job took this number a moment ago
        return path


def _holds_a_run(path: Path) -> str:
    return (
        f"storage.run_dir={str(path)!r} already holds a run (it has a config.json); go on with it by --resume must, "
        "name a new folder, or leave storage.run_dir out to have one made in storage.runs_dir"
    )
