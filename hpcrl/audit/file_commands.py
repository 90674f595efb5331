"""What `hpcrl verify`, `salvage`, `merge` and `trace` print."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from hpcrl.audit.verify import verify_run
from hpcrl.storage.merge import merge
from hpcrl.storage.salvage import Salvaged, salvage
from hpcrl.storage.trace import merge_traces


def verify_command(run: str, as_json: bool) -> int:
    """Print what is not as it was written; 0 where nothing is, else 1. Raises ConfigError when there is no run."""
    found = verify_run(run)
    if as_json:
        sys.stdout.write(json.dumps(found.to_dict(), indent=2) + "\n")
        return 0 if found.sound else 1
    console = Console(soft_wrap=True)
    verdict = Text("as written", "bold green") if found.sound else Text("NOT AS WRITTEN", "bold red")
    console.print(Text.assemble((found.run, "bold"), f"  {found.status}  ", verdict))
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column()
    grid.add_row("looked at", f"{found.files} result files, {found.checkpoints} checkpoints")
    for label, lines in (("note", found.notes), ("violation", found.violations)):
        for line in lines:
            grid.add_row(label, Text(line))
    console.print(grid)
    return 0 if found.sound else 1


def salvage_command(run: str) -> int:
    """Print what was made anew and left out; 1 where something is lost, else 0. Raises ConfigError as `salvage`."""
    made, failures = salvage(Path(run))
    console = Console(soft_wrap=True, highlight=False)
    for one in made:
        console.print(_sentence(one))
    for path, reason in failures.items():
        console.print(f"{path}: nothing can be read: {reason}")
    if not made and not failures:
        console.print(f"{run}: nothing to do; every result file was closed")
    return 1 if failures or any(one.damaged for one in made) else 0


def _sentence(one: Salvaged) -> str:
    text = f"{one.path}: {one.rows:,} rows; the original is {one.original.name}"
    if one.uncommitted:
        text += f"; left out: {one.uncommitted:,} rows that were being written"
    for table, number in one.damaged.items():
        text += f"; left out: the last {number:,} rows of {table}, from the first that is damaged"
    return text


def merge_command(run: str, out: str) -> int:
    """Print what was joined. Raises ConfigError as `merge`."""
    counts = merge(Path(run), Path(out))
    rows = ", ".join(f"{number:,} {name}" for name, number in counts.items() if number)
    Console(soft_wrap=True, highlight=False).print(f"{out}: {rows or 'no rows'}")
    return 0


def trace_command(run: str, out: str, attempt: int | None) -> int:
    """Join the ranks' traces and say what is in it. Raises ConfigError as `merge_traces`."""
    attempt, ranks, events = merge_traces(Path(run), Path(out), attempt)
    console = Console(soft_wrap=True, highlight=False)
    console.print(f"{out}: attempt {attempt}, {ranks} rank{'s' * (ranks > 1)}, {events:,} events")
    console.print("open it in https://ui.perfetto.dev or chrome://tracing")
    return 0
