"""The result file: one HDF5 file per attempt, with one writer, readable live and after a kill."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import h5py
import numpy as np

from hpcrl.storage.patience import Patience, reason
from hpcrl.storage.result_file import (
    BROKEN,
    WRITE_ERRORS,
    commit,
    committed,
    next_hash,
    open_reader,
    read_rows,
    with_attempt,
    write_rows,
)
from hpcrl.storage.schema import SCHEMA_VERSION, TABLES, Rows, Table
from hpcrl.storage.writing import abandon, create_file, make_anew, open_for_writing

_RETRY_S = 1.0
"""Time between two tries to write to a disk that refuses, at least."""

_log = logging.getLogger(__name__)


class ResultsLost(OSError):
    """The result file could not be written for so long that the run must end."""


class RunLog:
    """Writes the tables of one attempt.

    The whole schema exists before the first row, because nothing can be created once readers may look. Rows
    are buffered and reach the file in `flush`: first the rows, then the hashes of them, then their number in
    `committed_rows`, so that a reader that trusts the number never sees part of a row, also after a SIGKILL.

    While the disk refuses, rows wait here. Of a flush that failed the file says nothing. What HDF5 still holds then
    cannot be trusted (it believes of parts of the file that they were written): it is thrown away, and what counts is
    copied into a new file as after a kill, which takes the name of the first.
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
        patience_s: float = 0.0,
        buffer_bytes: int = 1 << 28,
    ) -> None:
        """Create the file.

        `first_update`: the update this attempt goes on from; later ones of earlier attempts do not count any more.
        None: not known. `patience_s`, `buffer_bytes`: for so long, and with so many bytes of rows that wait, the disk
        may refuse.

        Raises FileExistsError when it is there already: what a dead process wrote is never appended to.
        """
        if path.exists():
            raise FileExistsError(f"{path} exists; every attempt writes a file of its own")
        path.parent.mkdir(parents=True, exist_ok=True)
        aside = path.with_name(f".{path.name}.tmp")
        create_file(aside, config_json, provenance, attempt, first_update)
        aside.rename(path)
        self.path = path
        self._file = open_for_writing(path)
        self._flush_interval_s = flush_interval_s
        self._last_flush = time.perf_counter()
        self._patience, self._buffer_bytes = Patience(patience_s), buffer_bytes
        self.tell: Callable[[str, str], None] = lambda kind, text: _log.warning("%s", text)
        """Called with the kind of event and a sentence when the disk begins to refuse, and when it is well again."""
        self._pending: dict[str, list[Rows]] = {name: [] for name in TABLES}
        self._pending_bytes = 0
        self._committed = dict.fromkeys(TABLES, 0)
        self._hashes = dict.fromkeys(TABLES, "")

    def append(self, table: str, rows: Rows) -> None:
        """Buffer rows of `TABLES[table].dtype`. Raises ValueError for another table or type."""
        if table not in TABLES or table == "hashes":
            raise ValueError(f"no table {table!r}; the tables are {', '.join(TABLES)}")
        if rows.dtype != TABLES[table].dtype:
            raise ValueError(
                f"rows of type {rows.dtype} do not fit table {table}; "
                f"make them with TABLES[{table!r}].rows(...)"
            )
        if rows.size:
            self._pending[table].append(np.array(rows).reshape(-1))
            self._pending_bytes += rows.nbytes

    @property
    def due(self) -> bool:
        """Whether to `flush`: the interval has passed, or half of what may wait does."""
        passed_s = time.perf_counter() - self._last_flush
        if self._patience.since is None:
            return passed_s >= self._flush_interval_s or self._pending_bytes > self._buffer_bytes // 2
        return passed_s >= max(self._flush_interval_s, _RETRY_S) or self._pending_bytes > self._buffer_bytes

    def maybe_flush(self) -> bool:
        """Flush when it is due. Returns whether everything is written. Raises as `flush`."""
        return self.due and self.flush()

    def flush(self) -> bool:
        """Bring every buffered row into the file. Returns whether they are there: False while the disk refuses.

        Raises ResultsLost when that has been so for `patience_s`, or when more than `buffer_bytes` wait.
        """
        self._last_flush = time.perf_counter()
        if not self._pending_bytes:
            return True
        try:
            if not self._file:
                self._file = make_anew(self.path)
            self._write()
        except WRITE_ERRORS as error:
            if self._file:
                abandon(self._file)
            self._bear(error)
            return False
        if (took_s := self._patience.well()) is not None:
            self.tell("disk_well", f"{self.path} is written again, after {took_s:.1f} s; no row was lost")
            return self.flush()
        return True

    def _write(self) -> None:
        counts, hashes = self._committed.copy(), self._hashes.copy()
        made = []
        for name, parts in self._pending.items():
            if parts:
                rows = np.concatenate(parts)
                counts[name] = write_rows(self._file[name], counts[name], rows)
                hashes[name] = next_hash(hashes[name], rows)
                made.append(TABLES["hashes"].row(table=name, rows=counts[name], sha256=hashes[name]))
        counts["hashes"] = write_rows(self._file["hashes"], counts["hashes"], np.concatenate(made))
        commit(self._file, np.array(list(counts.values())))
        self._committed, self._hashes = counts, hashes
        for parts in self._pending.values():
            parts.clear()
        self._pending_bytes = 0

    def _bear(self, error: Exception) -> None:
        """The disk has refused: tell of it the first time, raise ResultsLost at the end of all patience."""
        patience, said = self._patience, reason(error)
        begins = patience.bear()
        if patience.over or self._pending_bytes > self._buffer_bytes:
            raise ResultsLost(
                f"{self.path} could not be written for {patience.lasted_s:.1f} s (storage.patience_s="
                f"{patience.limit_s:g}), and {self._pending_bytes:,} bytes of rows wait (storage.buffer_bytes="
                f"{self._buffer_bytes}). What was written before is whole; see to the disk, then resume the run. {said}"
            ) from error
        if begins:
            self.tell(
                "disk_refuses",
                f"{self.path} cannot be written; rows wait in memory, and the run goes on for up to "
                f"{patience.limit_s:g} s (storage.patience_s). {said}",
            )

    def close(self) -> None:
        """Flush and close; waits while the disk refuses, until patience ends. Calling it again does nothing."""
        while not self.flush():
            time.sleep(min(_RETRY_S, self._patience.limit_s / 10))
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def read_table(run: Path, name: str, damage: dict[Path, str] | None = None) -> Rows:
    """Read one table, joined over the attempts in order, with a last column `attempt` (i4).

    `run`: a run directory, the result file of one attempt, or a merged file, of a run in any state; never locks the
    writer. An attempt that cannot be read is left out with a warning, or the reason in `damage`. Where one went on from
    a checkpoint, rows of earlier ones of later updates (episodes: parameter versions), lost with them, are left out.

    Raises ValueError for a table that does not exist.
    """
    if name not in TABLES:
        raise ValueError(f"no table {name!r}; the tables are {', '.join(TABLES)}")
    table = TABLES[name]
    counter = counter_of(table)
    parts = [np.zeros(0, with_attempt(table))]
    for path in attempt_files(run):
        try:
            with open_reader(path) as file:
                part, first_update = read_rows(file, table), file.attrs.get("first_update")
        except (OSError, KeyError) as error:  # KeyError: HDF5, but no result file
            if damage is None:
                _log.warning("%s cannot be read and is left out: %s", path, error)
            else:
                damage[path] = str(error)
            continue
        if first_update is not None and counter is not None:
            parts = [earlier[earlier[counter] <= first_update] for earlier in parts]
        parts.append(part)
    return np.concatenate(parts)


def counter_of(table: Table) -> str | None:
    """The column that says which update a row of a table belongs to; None: rows that no later attempt takes back."""
    columns = [column.name for column in table.columns]
    return next((column for column in ("update", "parameter_version") if column in columns), None)


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
            with open_reader(path) as file:
                # a merged file has many
                for one in file["attempts"].values() if "attempts" in file else [file]:
                    config = json.loads(one["config"][()].decode())
                    origin = json.loads(one["provenance"][()].decode())
                    first = int(one.attrs.get("first_update", 0))
                    heads.append(AttemptHead(path, int(one.attrs["attempt"]), first, config, origin))
        except (OSError, KeyError, ValueError) as error:
            raise OSError(f"{path} cannot be read as a result file: {error}") from error
    return heads


def attempt_files(run: Path) -> list[Path]:
    """Result files by number of the attempt; `run`: a run directory, its run.h5, or the file of one attempt."""
    run = Path(run)
    if run.name == "run.h5":
        run = run.parent
    if run.is_file():
        return [run]
    paths = [path for path in (run / "attempts").glob("*.h5") if path.stem.isdigit()]
    return sorted(paths, key=lambda path: int(path.stem))


def attempt_seconds(run: Path) -> dict[int, float]:
    """Seconds from each attempt's first env_step to the last row in its file, whether that row counts or was lost.

    So for an attempt that was killed, too, up to a flush interval; of one that cannot be read nothing is known. `run`
    as for `read_table`; of a merged file, which has only what counts, nothing is known either.
    """
    found = {}
    for path in attempt_files(run):
        with suppress(*BROKEN), open_reader(path) as file:
            if "attempts" not in file:
                counts = committed(file)
                rows = [file[name][number - 1] for name, number in counts.items() if number]
                times = [float(row["time_s"]) for row in rows if "time_s" in row.dtype.names]
                found[int(file.attrs["attempt"])] = max((one for one in times if one >= 0), default=0.0)
    return found


def link_attempts(run_dir: Path) -> None:
    """Write `run.h5`, whose group `attempts` links to the file of every attempt."""
    aside = run_dir / ".run.h5.tmp"
    with h5py.File(aside, "w", libver="latest", locking=False) as file:
        file.attrs["schema_version"] = SCHEMA_VERSION
        group = file.create_group("attempts")
        for path in attempt_files(run_dir):
            group[path.stem] = h5py.ExternalLink(f"attempts/{path.name}", "/")
    aside.replace(run_dir / "run.h5")


def linked_attempts(run_dir: Path) -> dict[str, str]:
    """Name and file of each link in `run.h5`. Raises OSError or KeyError where it is damaged."""
    with h5py.File(run_dir / "run.h5", "r", locking=False) as file:
        links = {name: file["attempts"].get(name, getlink=True) for name in file["attempts"]}
        return {name: getattr(link, "filename", "") for name, link in links.items()}
