"""What a killed writer has left, made into a file that every program can open."""

from __future__ import annotations

import os
import shutil
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

import h5py

from hpcrl.config import ConfigError
from hpcrl.storage.copying import copy_committed
from hpcrl.storage.files import sync
from hpcrl.storage.ownership import held
from hpcrl.storage.result_file import BROKEN, open_reader
from hpcrl.storage.runlog import attempt_files

KEPT = ".killed"
"""What the name of the file as its writer left it ends with."""


@dataclass(frozen=True, slots=True)
class Salvaged:
    """One file that was made anew."""

    path: Path
    original: Path
    """The file as it was left."""
    rows: int
    """that it has, over all tables"""
    uncommitted: int
    """that were left out: their writer was killed before it said that they count"""
    damaged: dict[str, int]
    """table -> rows that were left out because they, or one before them, are not those that were written"""


def salvage(run: Path) -> tuple[list[Salvaged], dict[Path, str]]:
    """Make clean every result file of a run that its writer did not close; the others are left alone. Local.

    `run` is a run directory or the result file of one attempt. Committed rows are copied, with their hashes, and the
    file is replaced at once; what was there stays beside it. A second call finds nothing to do. Returns what was made,
    and files of which nothing can be read, with the reason. Raises ConfigError when there is no result file or while
    the run is being written.
    """
    files = attempt_files(run)
    if not files:
        raise ConfigError(f"{str(run)!r} holds no result file; give a run directory or a result file")
    made, failures = [], {}
    folder = files[0].absolute().parent
    with held(folder.parent) if folder.name == "attempts" else nullcontext():
        for path in files:
            try:
                if not _is_closed(path):
                    made.append(_salvage(path))
            except BROKEN as error:
                failures[path] = " ".join(str(error).split())
    return made, failures


def _is_closed(path: Path) -> bool:
    """Whether any program can open it: its writer has taken its mark away."""
    try:
        h5py.File(path, "r", locking=False).close()
    except OSError:
        return False
    return True


def _salvage(path: Path) -> Salvaged:
    aside, original = path.with_name(f".{path.name}.tmp"), path.with_name(path.name + KEPT)
    with open_reader(path) as source, h5py.File(aside, "w", libver="latest", locking=False) as target:
        rows, uncommitted, damaged = copy_committed(source, target)
    sync(aside)
    if not original.exists():
        _link(path, original)
    aside.replace(path)
    sync(path.parent)
    return Salvaged(path, original, rows, uncommitted, damaged)


def _link(path: Path, original: Path) -> None:
    """The same file under a second name; a copy where there are no hard links."""
    try:
        os.link(path, original)
    except OSError:
        shutil.copy2(path, original)
