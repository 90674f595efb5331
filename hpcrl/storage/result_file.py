"""What lies in a result file: a head, a dataset per table, the hashes of their rows, and how many of them count."""

from __future__ import annotations

import ctypes
import hashlib
import json
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import numpy.typing as npt

from hpcrl.storage.columns import Column
from hpcrl.storage.schema import SCHEMA_VERSION, TABLES, UPGRADES, Rows, Table

HEAD_HASH, COUNTS = "head_sha256", "committed_rows"
_CHUNK_BYTES = 32 * 1024
_OPEN_TRIES = 5
_READ_ATTEMPTS = 24
"""The last one after 8 ms."""
_ATTEMPT = Column("attempt", "i4", "1", "each", "start of the run that wrote the row, 1 for the first")

WRITE_ERRORS = (OSError, RuntimeError)
"""What h5py raises when the disk refuses."""
BROKEN = (OSError, KeyError, ValueError, RuntimeError, TypeError)
"""What h5py raises for a file that is damaged."""


def create_tables(file: h5py.File, tables: Mapping[str, np.dtype[np.void]], **storage: Any) -> None:
    """Make the tables of these names and types, empty, with units and meanings, and the number of committed rows.

    `storage`: further arguments of h5py's `create_dataset`.
    """
    for name, dtype in tables.items():
        chunk = max(16, _CHUNK_BYTES // dtype.itemsize)
        dataset = file.create_dataset(
            name, (0,), dtype, maxshape=(None,), chunks=(chunk,), fillvalue=None, **storage
        )
        dataset.attrs["meaning"] = TABLES[name].meaning
        for column in (*TABLES[name].columns, _ATTEMPT):
            if column.name in (dtype.names or ()):
                for key in ("unit", "merge", "meaning"):
                    dataset.attrs[f"{column.name}.{key}"] = getattr(column, key)
    create_counts(file, list(tables), np.zeros(len(tables), np.int64))


def write_head(
    place: h5py.Group, config: bytes, provenance: bytes, attempt: int, first_update: int | None
) -> None:
    """Say of an attempt what there is to say before any row."""
    place.attrs["attempt"] = attempt
    if first_update is not None:
        place.attrs["first_update"] = first_update
    place.create_dataset("config", data=np.bytes_(config))
    place.create_dataset("provenance", data=np.bytes_(provenance))


def create_counts(file: h5py.File, names: list[str], counts: npt.NDArray[np.int64]) -> None:
    """Make the dataset that says how many rows of each table count."""
    file.create_dataset(COUNTS, data=counts).attrs["tables"] = names


def commit(file: h5py.File, counts: npt.NDArray[np.int64]) -> None:
    """Have so many rows of each table count; all of them must be in the file by now."""
    file[COUNTS][:] = counts
    file[COUNTS].flush()


def write_rows(dataset: h5py.Dataset, first: int, rows: Rows) -> int:
    """Put rows behind the first ones of a table; the number of rows then. What was there behind them is replaced."""
    end = first + len(rows)
    dataset.resize((end,))
    dataset[first:] = rows
    dataset.flush()
    return end


def next_hash(before: str, rows: Rows) -> str:
    """SHA-256 of a table's rows so far: of the hash `before` these rows, and them. Pure."""
    return hashlib.sha256(before.encode() + rows.tobytes()).hexdigest()


def seal_head(file: h5py.File) -> None:
    """Put the hash of all that is there besides rows into the file."""
    file.attrs[HEAD_HASH] = head_hash(file)


def head_hash(file: h5py.File) -> str:
    """SHA-256 of names, types, attributes and single values: all that does not change any more."""
    found: dict[str, Any] = {"/": _attributes(file)}

    def add(name: str, item: Any) -> None:
        found[name] = [_attributes(item)]
        if isinstance(item, h5py.Dataset):
            found[name] += [str(item.dtype.descr), item[()].hex() if item.shape == () else ""]

    file.visititems(add)
    return hashlib.sha256(json.dumps(found, sort_keys=True).encode()).hexdigest()


def _attributes(item: Any) -> dict[str, Any]:
    return {name: np.asarray(value).tolist() for name, value in item.attrs.items() if name != HEAD_HASH}


def open_writer(path: Path) -> h5py.File:
    """Open for write and for live readers in one step: a kill between two would leave a file that readers refuse.

    HDF5's own lock is off: the run directory has one, and HDF5's fails on some shared file systems. The variable
    HDF5_USE_FILE_LOCKING would overrule that.
    """
    access = h5py.h5p.create(h5py.h5p.FILE_ACCESS)
    access.set_libver_bounds(h5py.h5f.LIBVER_LATEST, h5py.h5f.LIBVER_LATEST)
    access.set_file_locking(False, True)
    mode = h5py.h5f.ACC_RDWR | h5py.h5f.ACC_SWMR_WRITE
    return h5py.File(h5py.h5f.open(os.fsencode(path), mode, fapl=access))


@contextmanager
def open_reader(path: Path) -> Iterator[h5py.File]:
    """Open for reading, whether its writer is alive, dead or done. Raises OSError for what is no result file.

    Also for one of a newer schema than this hpcrl knows.
    """
    file = None
    for attempt in range(_OPEN_TRIES):
        try:
            file = _open_beside_writer(path)
            break
        except OSError:
            if attempt == _OPEN_TRIES - 1:
                file = h5py.File(path, "r", locking=False)
            time.sleep(0.02)  # met the writer in the middle of a change
    if file is None:
        raise OSError(f"{path} cannot be opened")
    with file:
        if (version := schema_version(file)) > SCHEMA_VERSION:
            raise OSError(
                f"it has schema version {version}; this hpcrl reads up to {SCHEMA_VERSION}: use a newer one"
            )
        yield file


def _open_beside_writer(path: Path) -> h5py.File:
    """As h5py.File(path, "r", swmr=True), but ends for a damaged file.

    A reader beside a writer reads a part whose checksum is wrong again, as it may be half written, and waits twice as
    long each time: by HDF5's own setting a hundred times, which is for ever. h5py has no call for that setting.
    """
    access = h5py.h5p.create(h5py.h5p.FILE_ACCESS)
    access.set_file_locking(False, True)
    access.set_fclose_degree(h5py.h5f.CLOSE_STRONG)
    library = ctypes.CDLL(h5py.h5p.__file__)
    library.H5Pset_metadata_read_attempts(ctypes.c_int64(access.id), ctypes.c_uint(_READ_ATTEMPTS))
    mode = h5py.h5f.ACC_RDONLY | h5py.h5f.ACC_SWMR_READ
    return h5py.File(h5py.h5f.open(os.fsencode(path), mode, fapl=access))


def schema_version(file: h5py.File) -> int:
    """Version of the schema it was written by."""
    return int(file.attrs["schema_version"]) if "schema_version" in file.attrs else SCHEMA_VERSION


def committed(file: h5py.File) -> dict[str, int]:
    """How many rows of each table count. The file holds all of them by the time it says so."""
    names = [str(name) for name in file[COUNTS].attrs["tables"]]
    return dict(zip(names, file[COUNTS][:].tolist(), strict=True))


def with_attempt(table: Table) -> np.dtype[np.void]:
    """Type of a table's rows with the column `attempt`."""
    return np.dtype([*((column.name, column.dtype) for column in table.columns), ("attempt", "i4")])


def read_rows(file: h5py.File, table: Table, first: int = 0, end: int | None = None) -> Rows:
    """Committed rows of a table as this version of the schema has them, with a last column `attempt`.

    From row `first` to before `end`, which must count; None: to the last one. Of a file that is being written, what
    counts is to be asked for before any table is read: how long a table is stays as it was then. See SCHEMA_VERSION for
    files of older versions. `attempt` is the file's, or the row's own in a merged one.
    """
    end = committed(file).get(table.name, 0) if end is None else end
    count = max(end - first, 0)
    rows = np.zeros(count, with_attempt(table))
    rows["attempt"] = int(file.attrs["attempt"])
    if not count:
        return rows
    stored = file[table.name][first:end]
    if "attempt" in (stored.dtype.names or ()):
        rows["attempt"] = stored["attempt"]
    for version in range(schema_version(file), SCHEMA_VERSION):
        stored = UPGRADES[version](table.name, stored)
    known = {column.name for column in table.columns}
    current = table.rows(count, **{name: stored[name] for name in stored.dtype.names or () if name in known})
    for column in table.columns:
        rows[column.name] = current[column.name]
    return rows
