"""What has come into the result files of a run since one looked last, without reading again what was there before."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from hpcrl.storage.result_file import BROKEN, committed, open_reader, read_rows
from hpcrl.storage.runlog import attempt_files, counter_of
from hpcrl.storage.schema import TABLES, Rows

_MOST_ROWS = 1 << 16
"""That are read at once: a long run does not fit into memory."""


@dataclass(slots=True)
class _File:
    """One attempt's, and how much of it has been read."""

    path: Path
    first_update: int | None
    read: dict[str, int] = field(default_factory=dict)
    complete: bool = False
    """Its writer is gone and everything is read, or nothing can be."""


class Follower:
    """Reads the tables of a run as `read_table` does, in pieces, as they come. Never locks or holds up the writer.

    Files are opened anew each time, so one that its writer has replaced is followed on; closed ones are read once.
    """

    def __init__(self, run: Path, tables: Sequence[str]) -> None:
        """`run`: as for `read_table`; it need not exist yet. `tables`: names, in the order they are read in.

        Raises ValueError for a table that does not exist.
        """
        if unknown := [name for name in tables if name not in TABLES]:
            raise ValueError(f"no table {unknown[0]!r}; the tables are {', '.join(TABLES)}")
        self._run, self._tables = run, [TABLES[name] for name in tables]
        self._files: list[_File] = []
        self.trouble = ""
        """Which file could not be read in the last call and why; of the newest it is tried again."""

    def look(self) -> bool:
        """Look which attempts there are. True where that has changed: all rows come again then.

        For an attempt that goes on from a checkpoint takes rows of those before back.
        """
        self.trouble = ""
        paths = attempt_files(self._run)
        known = {file.path: file for file in self._files}
        found = []
        for path in paths:
            try:
                found.append(known.get(path) or _File(path, _first_update(path)))
            except BROKEN as error:
                self._note(path, error)
        if [file.path for file in found] == list(known):
            return False
        self._files = [_File(file.path, file.first_update) for file in found]
        return True

    def rows(self) -> Iterator[tuple[str, Rows]]:
        """(table, rows with a last column `attempt`) that have come since the last call; only such as count.

        A table's rows are in order; of the tables of an attempt the first one comes first.
        """
        for place, file in enumerate(self._files):
            if file.complete:
                continue
            later = [one.first_update for one in self._files[place + 1 :] if one.first_update is not None]
            try:
                yield from self._new(file, min(later, default=None))
            except BROKEN as error:
                self._note(file.path, error)
            file.complete = place < len(self._files) - 1

    def _new(self, file: _File, last_update: int | None) -> Iterator[tuple[str, Rows]]:
        with open_reader(file.path) as opened:
            counts = committed(opened)
            for table in self._tables:
                while (first := file.read.get(table.name, 0)) < (last := counts.get(table.name, 0)):
                    end = min(first + _MOST_ROWS, last)
                    rows = read_rows(opened, table, first, end)
                    file.read[table.name] = end
                    if last_update is not None and (counter := counter_of(table)) is not None:
                        rows = rows[rows[counter] <= last_update]
                    if len(rows):
                        yield table.name, rows

    def _note(self, path: Path, error: Exception) -> None:
        self.trouble = f"{path} cannot be read: {' '.join(str(error).split())}"


def _first_update(path: Path) -> int | None:
    with open_reader(path) as file:
        given = file.attrs.get("first_update")
        return None if given is None else int(given)
