"""Tables beside what a run is about: quantities without a column, and the hashes of rows."""

from __future__ import annotations

from hpcrl.storage.columns import Column, Table

METRICS = Table(
    "metrics",
    (
        Column("update", "i8", "update", "same", "number of the update, 1 for the first"),
        Column("name", "S48", "text", "each", "name of the quantity"),
        Column("value", "f8", "1", "mean", "its value"),
    ),
    "What an algorithm reports of an update that has no column in `updates`: a row per name.",
)
HASHES = Table(
    "hashes",
    (
        Column("table", "S16", "text", "each", "name of the table"),
        Column("rows", "i8", "1", "each", "how many rows the table has up to here"),
        Column(
            "sha256",
            "S64",
            "text",
            "each",
            "SHA-256, hexadecimal, of the table's hash before (as text, empty for the first) and the bytes of the rows "
            "that came since",
        ),
    ),
    "A row per table and flush, written by the writer itself: `hpcrl verify` finds by them what was changed.",
)
