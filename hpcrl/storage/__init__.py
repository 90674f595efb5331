"""Files: results, checkpoints, provenance."""

from hpcrl.storage.runlog import RunLog, attempt_files, link_attempts, read_table
from hpcrl.storage.schema import SCHEMA_VERSION, TABLES, Column, Rows, Table

__all__ = [
    "SCHEMA_VERSION",
    "TABLES",
    "Column",
    "Rows",
    "RunLog",
    "Table",
    "attempt_files",
    "link_attempts",
    "read_table",
]
