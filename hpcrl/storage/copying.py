"""Rows that count, checked by their hashes, out of a file that nobody closed into a new one."""

from __future__ import annotations

from collections.abc import Iterator

import h5py
import numpy as np

from hpcrl.storage.result_file import committed, create_counts, next_hash, write_rows
from hpcrl.storage.schema import Rows


def copy_committed(source: h5py.File, target: h5py.File) -> tuple[int, int, dict[str, int]]:
    """Copy everything that counts into an empty file, without what does not agree with its hash.

    Returns (rows, rows that do not count, table -> rows that are damaged or come after one that is).
    """
    counts, uncommitted, damaged = committed(source), 0, {}
    _copy_attributes(source, target)
    for name, item in _datasets(source):
        if name in counts:
            made = target.create_dataset(
                name, (0,), item.dtype, maxshape=(None,), chunks=item.chunks, fillvalue=None
            )
            rows, good = _hashed_rows(source, name, counts[name])
            write_rows(made, 0, rows[:good])
            uncommitted += max(len(item) - counts[name], 0)
            if good < counts[name]:
                damaged[name] = counts[name] - good
                counts[name] = good
        elif item.shape == ():
            made = target.create_dataset(name, data=item[()])
        else:
            continue
        _copy_attributes(item, made)
    create_counts(target, list(counts), np.array(list(counts.values())))
    return sum(counts.values()), uncommitted, damaged


def _datasets(file: h5py.File) -> Iterator[tuple[str, h5py.Dataset]]:
    return ((name, item) for name, item in file.items() if isinstance(item, h5py.Dataset))


def _copy_attributes(source: h5py.HLObject, target: h5py.HLObject) -> None:
    for name, value in source.attrs.items():
        target.attrs[name] = value


def _hashed_rows(file: h5py.File, name: str, count: int) -> tuple[Rows, int]:
    """The first `count` rows of a table as stored, and how many of them, from the first on, agree with the hashes.

    All do in a file that was written before there were hashes.
    """
    rows: Rows = file[name][:count]
    if "hashes" not in file or name == "hashes":
        return rows, count
    return rows, agreeing(rows, hash_ends(file, committed(file)["hashes"])[name])[0]


def hash_ends(file: h5py.File, count: int) -> dict[str, list[tuple[int, str]]]:
    """Table -> number of rows and hash after each flush."""
    found: dict[str, list[tuple[int, str]]] = {name: [] for name in committed(file)}
    for name, end, value in file["hashes"][:count].tolist():
        found.setdefault(name.decode(errors="replace"), []).append((end, value.decode(errors="replace")))
    return found


def agreeing(rows: Rows, ends: list[tuple[int, str]]) -> tuple[int, int]:
    """How many rows, from the first on, agree with the hashes; and the end of the first flush that does not, or 0."""
    first, before = 0, ""
    for end, said in ends:
        if not first < end <= len(rows) or next_hash(before, rows[first:end]) != said:
            return first, min(max(end, first + 1), max(len(rows), first + 1))
        first, before = end, said
    return first, 0
