"""The result file: one HDF5 file per attempt, with one writer, readable live and after a kill."""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import h5py
import numpy as np

from hpcrl.storage.schema import SCHEMA_VERSION, TABLES, Rows, Table

_CHUNK_BYTES = 32 * 1024
_COMMITTED = "committed_rows"
_OPEN_TRIES = 5

_log = logging.getLogger(__name__)


class RunLog:
    """Writes the tables of one attempt.

    The whole schema exists before the first row, because nothing can be created once readers may look. Rows
    are buffered and reach the file in `flush`: first the rows, then their number in `committed_rows`, so that
    a reader that trusts the number never sees part of a row, also after a SIGKILL.
    """

    def __init__(
        self,
        path: Path,
        *,
        config_json: str,
        provenance: Mapping[str, Any],
        attempt: int,
        first_update: int | None = None,
        flush_interval_s: float = 1.0,
    ) -> None:
        """Create the file.

        `first_update`: the update this attempt goes on from; later ones of earlier attempts do not count any more.
        None: not known.

        Raises FileExistsError when it is there already: what a dead process wrote is never appended to.
        """
        if path.exists():
            raise FileExistsError(f"{path} exists; every attempt writes a file of its own")
        path.parent.mkdir(parents=True, exist_ok=True)
        aside = path.with_name(f".{path.name}.tmp")
        _create(aside, config_json, provenance, attempt, first_update)
        aside.rename(path)
        self.path = path
        self._file = _open_writer(path)
        self._flush_interval_s = flush_interval_s
        self._last_flush = time.perf_counter()
        self._pending: dict[str, list[Rows]] = {name: [] for name in TABLES}
        self._committed = np.zeros(len(TABLES), np.int64)

    def append(self, table: str, rows: Rows) -> None:
        """Buffer rows of `TABLES[table].dtype`. Raises ValueError for another table or type."""
        if table not in TABLES:
            raise ValueError(f"no table {table!r}; the tables are {', '.join(TABLES)}")
        if rows.dtype != TABLES[table].dtype:
            raise ValueError(
                f"rows of type {rows.dtype} do not fit table {table}; "
                f"make them with TABLES[{table!r}].rows(...)"
            )
        if rows.size:
            self._pending[table].append(np.array(rows).reshape(-1))

    def maybe_flush(self) -> bool:
        """Flush when the interval has passed. Returns whether it did."""
        if time.perf_counter() - self._last_flush < self._flush_interval_s:
            return False
        self.flush()
        return True

    def flush(self) -> None:
        """Bring every buffered row into the file.

        On an OSError nothing is lost: the rows stay buffered, and the next flush writes them again.
        """
        self._last_flush = time.perf_counter()
        if not any(self._pending.values()):
            return
        committed = self._committed.copy()
        for index, (name, parts) in enumerate(self._pending.items()):
            if parts:
                rows = np.concatenate(parts)
                dataset = self._file[name]
                end = int(committed[index]) + len(rows)
                dataset.resize((end,))
                dataset[int(committed[index]) :] = rows
                dataset.flush()
                committed[index] = end
        self._file[_COMMITTED][:] = committed
        self._file[_COMMITTED].flush()
        self._committed = committed
        for parts in self._pending.values():
            parts.clear()

    def close(self) -> None:
        """Flush and close. Calling it again does nothing."""
        if self._file:
            self.flush()
            self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def read_table(run: Path, name: str) -> Rows:
    """Read one table, joined over the attempts in order, with a last column `attempt` (i4).

    `run` is a run directory, or the result file of one attempt by itself. Works on a run that is being
    written, was killed, or ended, and never locks the writer. An attempt that cannot be read is left out with
    a warning. Where an attempt went on from a checkpoint, what earlier ones did after that was lost with them: their
    rows of later updates (episodes: parameter versions) are left out.

    Raises ValueError for a table that does not exist.
    """
    if name not in TABLES:
        raise ValueError(f"no table {name!r}; the tables are {', '.join(TABLES)}")
    table = TABLES[name]
    columns = [column.name for column in table.columns]
    counter = next((column for column in ("update", "parameter_version") if column in columns), None)
    parts = [np.zeros(0, _with_attempt(table))]
    for path in attempt_files(run):
        try:
            with _open_reader(path) as file:
                rows, attempt = _committed_rows(file, table), int(file.attrs["attempt"])
                first_update = file.attrs.get("first_update")
        except (OSError, KeyError) as error:  # KeyError: HDF5, but no result file
            _log.warning("%s cannot be read and is left out: %s", path, error)
            continue
        part = np.zeros(len(rows), _with_attempt(table))
        for column in table.columns:
            part[column.name] = rows[column.name]
        part["attempt"] = attempt
        if first_update is not None and counter is not None:
            parts = [earlier[earlier[counter] <= first_update] for earlier in parts]
        parts.append(part)
    return np.concatenate(parts)


@dataclass(frozen=True, slots=True)
class AttemptHead:
    """What a result file says of its attempt before any row."""

    path: Path
    attempt: int
    first_update: int
    """The update it went on from; 0 where it began, or does not say."""
    config: dict[str, Any]
    """Empty where it holds none."""
    provenance: dict[str, Any]
    """As `provenance.collect` found it when the attempt began."""


def read_heads(run: Path) -> list[AttemptHead]:
    """Heads of a run's attempts, in order; `run` as for `read_table`. Raises OSError for a file that is none."""
    heads = []
    for path in attempt_files(run):
        try:
            with _open_reader(path) as file:
                config = json.loads(file["config"][()].decode())
                origin = json.loads(file["provenance"][()].decode())
                first = int(file.attrs.get("first_update", 0))
                heads.append(AttemptHead(path, int(file.attrs["attempt"]), first, config, origin))
        except (OSError, KeyError, ValueError) as error:
            raise OSError(f"{path} cannot be read as a result file: {error}") from error
    return heads


def attempt_files(run: Path) -> list[Path]:
    """List the result files of a run, by number of the attempt.

    `run` is a run directory, its run.h5, or the result file of one attempt by itself.
    """
    run = Path(run)
    if run.name == "run.h5":
        run = run.parent
    if run.is_file():
        return [run]
    paths = [path for path in (run / "attempts").glob("*.h5") if path.stem.isdigit()]
    return sorted(paths, key=lambda path: int(path.stem))


def link_attempts(run_dir: Path) -> None:
    """Write `run.h5`, whose group `attempts` links to the file of every attempt."""
    aside = run_dir / ".run.h5.tmp"
    with h5py.File(aside, "w", libver="latest", locking=False) as file:
        file.attrs["schema_version"] = SCHEMA_VERSION
        group = file.create_group("attempts")
        for path in attempt_files(run_dir):
            group[path.stem] = h5py.ExternalLink(f"attempts/{path.name}", "/")
    aside.replace(run_dir / "run.h5")


def _create(
    path: Path, config_json: str, provenance: Mapping[str, Any], attempt: int, first_update: int | None
) -> None:
    # Made aside and renamed: under its final name the file is readable from its first moment.
    with h5py.File(path, "w", libver="latest", locking=False) as file:
        file.attrs["schema_version"] = SCHEMA_VERSION
        file.attrs["attempt"] = attempt
        if first_update is not None:
            file.attrs["first_update"] = first_update
        file.create_dataset("config", data=np.bytes_(config_json.encode() or b"{}"))
        file.create_dataset("provenance", data=np.bytes_(json.dumps(provenance).encode()))
        for table in TABLES.values():
            chunk = max(16, _CHUNK_BYTES // table.dtype.itemsize)
            dataset = file.create_dataset(
                table.name, (0,), table.dtype, maxshape=(None,), chunks=(chunk,), fillvalue=None
            )
            dataset.attrs["meaning"] = table.meaning
            for column in table.columns:
                for key in ("unit", "merge", "meaning"):
                    dataset.attrs[f"{column.name}.{key}"] = getattr(column, key)
        committed = file.create_dataset(_COMMITTED, data=np.zeros(len(TABLES), np.int64))
        committed.attrs["tables"] = list(TABLES)


def _open_writer(path: Path) -> h5py.File:
    # Opened for write and for live readers in one step: a kill between two steps would leave a file that
    # readers refuse. The library's own lock is off: the run directory has one, and this one fails on some
    # shared file systems.
    access = h5py.h5p.create(h5py.h5p.FILE_ACCESS)
    access.set_libver_bounds(h5py.h5f.LIBVER_LATEST, h5py.h5f.LIBVER_LATEST)
    access.set_file_locking(False, True)
    return h5py.File(
        h5py.h5f.open(os.fsencode(path), h5py.h5f.ACC_RDWR | h5py.h5f.ACC_SWMR_WRITE, fapl=access)
    )


@contextmanager
def _open_reader(path: Path) -> Iterator[h5py.File]:
    # The writer may be alive, dead or done: only a reader in SWMR mode is let in by all three.
    file = None
    for attempt in range(_OPEN_TRIES):
        try:
            file = h5py.File(path, "r", swmr=True, locking=False)
            break
        except OSError:
            if attempt == _OPEN_TRIES - 1:
                file = h5py.File(path, "r", locking=False)
            time.sleep(0.02)  # met the writer in the middle of a change
    if file is None:
        raise OSError(f"{path} cannot be opened")
    with file:
        yield file


def _committed_rows(file: h5py.File, table: Table) -> Rows:
    # The number first: every row it counts is in the file by then.
    names = [str(name) for name in file[_COMMITTED].attrs["tables"]]
    if table.name not in names:
        return table.empty()
    count = int(file[_COMMITTED][names.index(table.name)])
    stored = file[table.name][:count]
    known = {column.name for column in table.columns}
    return table.rows(count, **{name: stored[name] for name in stored.dtype.names if name in known})


def _with_attempt(table: Table) -> np.dtype[np.void]:
    return np.dtype([*((column.name, column.dtype) for column in table.columns), ("attempt", "i4")])
