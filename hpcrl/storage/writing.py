"""A result file in the hands of its writer: made, opened, given up when the disk refuses, and made anew."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import h5py

from hpcrl.storage.copying import copy_committed
from hpcrl.storage.result_file import (
    WRITE_ERRORS,
    create_tables,
    open_reader,
    open_writer,
    seal_head,
    write_head,
)
from hpcrl.storage.schema import SCHEMA_VERSION, TABLES


def create_file(
    path: Path, config_json: str, provenance: Mapping[str, Any], attempt: int, first_update: int | None
) -> None:
    """Make a result file without rows; to be renamed, so that under its final name it is readable from the first."""
    with h5py.File(path, "w", libver="latest", locking=False) as file:
        file.attrs["schema_version"] = SCHEMA_VERSION
        write_head(
            file, config_json.encode() or b"{}", json.dumps(provenance).encode(), attempt, first_update
        )
        create_tables(file, {table.name: table.dtype for table in TABLES.values()})
        seal_head(file)


def open_for_writing(path: Path) -> h5py.File:
    """Open a result file for its one writer, and for live readers. Raises OSError."""
    try:
        return open_writer(path)
    except OSError as error:
        variable = os.environ.get("HDF5_USE_FILE_LOCKING")
        if "lock" not in str(error) or variable is None:
            raise
        raise OSError(
            f"{path} cannot be locked: this file system has no file locks, and HDF5_USE_FILE_LOCKING={variable} asks "
            "for them. hpcrl needs none of HDF5's: unset the variable, or set hdf5_locking = false in the site profile"
        ) from error


def abandon(file: h5py.File) -> None:
    """Have HDF5 forget a file without writing anything more to it, now or when the process ends."""
    with contextlib.suppress(*WRITE_ERRORS, ValueError):
        nowhere = os.open(os.devnull, os.O_RDWR)
        os.dup2(nowhere, file.id.get_vfd_handle())
        os.close(nowhere)
        file.close()


@contextlib.contextmanager
def new_file(path: Path) -> Iterator[h5py.File]:
    """A new HDF5 file, made in memory in the block and written at its end. Raises OSError where the disk refuses.

    HDF5 itself may die of a write that fails while it makes a dataset.
    """
    with h5py.File(path, "w", driver="core", backing_store=False) as file:
        yield file
        file.flush()
        image = file.id.get_file_image()
    try:
        path.write_bytes(image)
    except OSError:
        path.unlink(missing_ok=True)
        raise


def make_anew(path: Path) -> h5py.File:
    """Replace a file that was abandoned by one with the rows that count, and open that. Raises one of WRITE_ERRORS."""
    aside = path.with_name(f".{path.name}.tmp")
    aside.unlink(missing_ok=True)  # else HDF5 may know it from the try before
    with open_reader(path) as source:
        target = h5py.File(aside, "w", libver="latest", locking=False)
        try:
            copy_committed(source, target)
            target.flush()
        except WRITE_ERRORS:
            abandon(target)
            raise
        target.close()
    aside.replace(path)
    return open_for_writing(path)
