"""All attempts of a run in one plain file, for a laptop."""

from __future__ import annotations

from pathlib import Path

import h5py
import numpy as np

from hpcrl.config import ConfigError
from hpcrl.storage.files import sync
from hpcrl.storage.result_file import (
    commit,
    create_tables,
    next_hash,
    open_reader,
    seal_head,
    with_attempt,
    write_head,
    write_rows,
)
from hpcrl.storage.runlog import AttemptHead, read_heads, read_table
from hpcrl.storage.schema import SCHEMA_VERSION, TABLES


def merge(run: Path, out: Path) -> dict[str, int]:
    """Write the tables of a run, joined by the rules of `read_table`, into one closed file; rows per table. Local.

    The file has the layout of an attempt's, a column `attempt` in every table, and configuration and provenance of all
    attempts in its group `attempts`; whatever reads a run reads it. It is the same again for the same run, and one of
    this kind that is there already is replaced. Raises ConfigError when there is no run or `out` is something else.
    """
    _check(out)
    try:
        heads = read_heads(run)
    except OSError as error:
        raise ConfigError(str(error)) from error
    if not heads:
        raise ConfigError(f"{str(run)!r} holds no result file; give a run directory")
    names = [name for name in TABLES if name != "hashes"]
    aside = out.with_name(f".{out.name}.tmp")
    with h5py.File(aside, "w", libver=("v110", "v110"), locking=False) as file:
        _write_heads(file, heads)
        types = {name: with_attempt(TABLES[name]) for name in names} | {"hashes": TABLES["hashes"].dtype}
        create_tables(file, types, compression="gzip", shuffle=True)
        seal_head(file)
        counts, hashes = dict.fromkeys(types, 0), []
        for name in names:
            rows = read_table(run, name)
            counts[name] = write_rows(file[name], 0, rows)
            if len(rows):
                value = next_hash("", rows)
                hashes.append(TABLES["hashes"].row(table=name, rows=len(rows), sha256=value))
        counts["hashes"] = write_rows(file["hashes"], 0, np.concatenate([TABLES["hashes"].empty(), *hashes]))
        commit(file, np.array(list(counts.values())))
    sync(aside)
    aside.replace(out)
    return {name: counts[name] for name in names}


def _check(out: Path) -> None:
    if out.name == "run.h5":
        raise ConfigError(
            "run.h5 is the name of the file that links a run's attempts; choose another for the merged one"
        )
    if not out.parent.is_dir():
        raise ConfigError(f"{out.parent} is no folder")
    if out.exists() and not _is_merged(out):
        raise ConfigError(f"{out} exists, and is no merged file that could be made anew; choose another name")


def _is_merged(path: Path) -> bool:
    try:
        with open_reader(path) as file:
            return bool(file.attrs.get("merged", False))
    except (OSError, KeyError):
        return False


def _write_heads(file: h5py.File, heads: list[AttemptHead]) -> None:
    file.attrs["schema_version"] = SCHEMA_VERSION
    file.attrs["merged"] = True
    for head in heads:
        with open_reader(head.path) as source:
            given = source["attempts"][f"{head.attempt:03d}"] if "attempts" in source else source
            texts = given["config"][()], given["provenance"][()]
        write_head(file.create_group(f"attempts/{head.attempt:03d}"), *texts, head.attempt, head.first_update)
    write_head(file, *texts, heads[-1].attempt, heads[0].first_update)
