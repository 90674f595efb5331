"""What a logged quantity and a table of them are."""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Rows = npt.NDArray[np.void]
"""A one-dimensional structured array: rows of one table."""


@dataclass(frozen=True, slots=True)
class Column:
    """One quantity."""

    name: str
    dtype: str
    """numpy type: i4, i8, f4, f8, ?, or S and the bytes of a UTF-8 text."""
    unit: str
    """"1" for counts and ratios; "env_step", "update", "s", "B" otherwise; "text"."""
    merge: str
    """How one row came from many ranks: each (no merging: a row per thing), same (equal on every learner),
    mean (global mean over valid env_steps), sum, min, max."""
    meaning: str
    missing: Any = None
    """Stands in where a row gives no value. None: NaN for floats, -1 for integers, empty text; bools must be
    given."""


@dataclass(frozen=True, slots=True)
class Table:
    """Columns that are appended to together."""

    name: str
    columns: tuple[Column, ...]
    meaning: str

    @property
    def dtype(self) -> np.dtype[np.void]:
        """Structured numpy type of a row."""
        return np.dtype([(column.name, column.dtype) for column in self.columns])

    def empty(self) -> Rows:
        """No rows."""
        return np.zeros(0, self.dtype)

    def row(self, **values: Any) -> Rows:
        """One row, shape [1]. Raises ValueError for an unknown column or a bool left out."""
        return self.rows(1, **values)

    def rows(self, count: int, /, **values: Any) -> Rows:
        """Rows [count] from one array [count] or one scalar per column; texts may be str.

        Raises ValueError for an unknown column, a bool left out or an array of another length.
        """
        known = [column.name for column in self.columns]
        for name in values:
            if name not in known:
                near = difflib.get_close_matches(name, known, n=2)
                hint = f"; did you mean {' or '.join(near)}?" if near else ""
                raise ValueError(
                    f"table {self.name} has no column {name!r}{hint} Its columns: {', '.join(known)}"
                )
        rows = np.zeros(count, self.dtype)
        for column in self.columns:
            rows[column.name] = self._value(column, values.get(column.name))
        return rows

    def _value(self, column: Column, value: Any) -> Any:
        if value is None:
            value = column.missing
        kind = np.dtype(column.dtype).kind
        if value is not None:
            return _cut(value, column.dtype) if kind == "S" else value
        if kind == "b":
            raise ValueError(f"table {self.name}: {column.name} must be given; a bool has no missing value")
        return {"f": np.nan, "i": -1, "S": b""}[kind]


def _cut(value: Any, dtype: str) -> Any:
    """Text as UTF-8 that fits the column, cut between characters."""
    if isinstance(value, str):
        return value.encode()[: np.dtype(dtype).itemsize].decode(errors="ignore").encode()
    if isinstance(value, bytes) or (isinstance(value, np.ndarray) and value.dtype.kind == "S"):
        return value
    return np.array([_cut(str(item), dtype) if not isinstance(item, bytes) else item for item in value])
