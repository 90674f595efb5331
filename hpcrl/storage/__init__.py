"""Files: results, checkpoints, provenance."""

from hpcrl.storage import checkpoint, provenance
from hpcrl.storage.rundir import RunDirectory, Status, check_free, read_status
from hpcrl.storage.runlog import RunLog, attempt_files, link_attempts, read_table
from hpcrl.storage.schema import SCHEMA_VERSION, TABLES, Column, Rows, Table
from hpcrl.storage.summary import describe, find_run, render

__all__ = [
    "SCHEMA_VERSION",
    "TABLES",
    "Column",
    "Rows",
    "RunDirectory",
    "RunLog",
    "Status",
    "Table",
    "attempt_files",
    "check_free",
    "checkpoint",
    "describe",
    "find_run",
    "link_attempts",
    "provenance",
    "read_status",
    "read_table",
    "render",
]
