"""Whether a result file is as its writer left it: the schema it declares, and the hash of every row that counts."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import h5py
import numpy as np

from hpcrl.storage.copying import agreeing, hash_ends
from hpcrl.storage.result_file import BROKEN, HEAD_HASH, committed, head_hash, open_reader, schema_version
from hpcrl.storage.schema import SCHEMA_VERSION, TABLES, Rows, Table

_COUNTERS = ("update", "env_steps", "time_s")


def check_file(path: Path) -> Iterator[str]:
    """What is wrong with the result file of one attempt, or a merged one; each sentence names the place.

    Yields nothing for a file that is whole, also while it is written and after a kill.
    """
    try:
        with open_reader(path) as file:
            for line in _check(file):
                yield f"{path.name}: {line}"
    except BROKEN as error:
        yield f"{path.name}: cannot be read: {' '.join(str(error).split())}"


def _check(file: h5py.File) -> Iterator[str]:
    # Before anything else is looked at: what a reader has seen of a table it does not look up again.
    counts = committed(file)
    yield from _head(file)
    ends = hash_ends(file, counts["hashes"]) if "hashes" in counts else None
    for name, count in counts.items():
        try:
            yield from _table(file, name, count, ends)
        except BROKEN as error:
            yield f"table {name}: cannot be read: {' '.join(str(error).split())}"


def _head(file: h5py.File) -> Iterator[str]:
    """The parts that never change, against their hash; and what they declare, against the schema."""
    said = file.attrs.get(HEAD_HASH)
    if said is not None and said != head_hash(file):
        yield "head: configuration, provenance, units or types are not those that were written"
    if schema_version(file) != SCHEMA_VERSION:
        return
    for name in committed(file):
        if name not in TABLES:
            yield f"table {name}: not in the schema"
            continue
        yield from (f"table {name}: {line}" for line in _declared(file[name], TABLES[name]))


def _declared(dataset: h5py.Dataset, table: Table) -> Iterator[str]:
    known = {column.name: column for column in table.columns}
    for name in dataset.dtype.names:
        if name == "attempt":
            continue
        if name not in known:
            yield f"column {name} is not in the schema"
        elif not np.can_cast(dataset.dtype[name], known[name].dtype, "safe"):
            yield f"column {name} has the type {dataset.dtype[name]}; the schema has {known[name].dtype}"
        elif (unit := dataset.attrs.get(f"{name}.unit")) != known[name].unit:
            yield f"column {name} has the unit {unit!r}; the schema has {known[name].unit!r}"


def _table(
    file: h5py.File, name: str, count: int, ends: dict[str, list[tuple[int, str]]] | None
) -> Iterator[str]:
    if len(file[name]) < count:
        yield f"table {name}: has {len(file[name])} rows, of which {count} are said to count"
        return
    rows: Rows = file[name][:count]
    if name == "hashes":
        for stray in [one for one in ends or {} if one not in committed(file)]:
            yield f"table hashes: has rows of a table {stray!r}, which there is not"
        return
    if ends is not None:
        agree, wrong = agreeing(rows, ends[name])
        if agree < count or wrong:
            last = wrong or count
            yield f"table {name}: {_place(rows, agree, last)} not those that were written"
    if "attempt" not in (rows.dtype.names or ()):  # in a merged file they begin anew
        yield from (f"table {name}: {line}" for line in _order(rows, name))


def _place(rows: Rows, first: int, last: int) -> str:
    """Rows from `first` up to `last`, and which updates these are of, in words."""
    text = f"rows {first + 1} to {last}" if last > first + 1 else f"row {first + 1}"
    if "update" in (rows.dtype.names or ()) and first < len(rows):
        numbers = rows["update"][first:last]
        text += f" (updates {numbers.min()} to {numbers.max()})"
    return f"{text} {'are' if last > first + 1 else 'is'}"


def _order(rows: Rows, name: str) -> Iterator[str]:
    """Within an attempt updates, env_steps and the clock only go up, where they count on."""
    columns = _COUNTERS if name == "updates" else ("time_s",) if name == "episodes" else ()
    for column in columns:
        values = rows[column]
        for at, (one, other) in enumerate(pairwise(values.tolist())):
            if other < one:
                yield f"row {at + 2}: {column} goes back from {one} to {other}"
                break
