"""Read runs into pandas. Needs neither MPI nor torch, and works while a run is being written or after a kill.

from load import load_run
tables = load_run("runs/cartpole-0-001")
tables["episodes"].plot(x="wall_s", y="episode_return")
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd

from hpcrl.storage import TABLES, Rows, attempt_files, find_run, read_table
from hpcrl.storage.runlog import attempt_seconds


def load_run(run: str | Path, *names: str) -> dict[str, pd.DataFrame]:
    """Tables of a run, by name (all, or those named); the columns are those of `hpcrl.storage.TABLES`, plus two.

    `run` is a run directory, a file in it, or the result file of one attempt by itself. `attempt` numbers the
    start that wrote a row. `wall_s` (where there is `time_s`) is the time in s since the run began, counting
    the attempts one after the other without the pauses between them. Raises ConfigError when there is no run.
    """
    path = Path(run)
    alone = path.is_file() and path.suffix == ".h5" and attempt_files(path) == [path]
    source = path if alone else find_run(path)
    timed = [name for name, table in TABLES.items() if "time_s" in table.dtype.names]
    tables = {name: read_table(source, name) for name in TABLES if not names or name in (*names, *timed)}
    offsets = _attempt_offsets(tables, attempt_seconds(source))
    return {name: _frame(tables[name], offsets) for name in names or TABLES}


def _attempt_offsets(tables: dict[str, Rows], seconds: dict[int, float]) -> dict[int, float]:
    """Attempt -> seconds that the attempts before it lasted, with what was lost of them."""
    lasted = dict(seconds)
    for rows in tables.values():
        if "time_s" in rows.dtype.names:
            for attempt in np.unique(rows["attempt"]):
                longest = np.nan_to_num(rows["time_s"][rows["attempt"] == attempt]).max()
                lasted[int(attempt)] = max(lasted.get(int(attempt), 0.0), float(longest))
    ordered = sorted(lasted)
    before = np.cumsum([0.0, *(lasted[attempt] for attempt in ordered)])
    return dict(zip(ordered, before.tolist(), strict=False))


def _frame(rows: Rows, offsets: dict[int, float]) -> pd.DataFrame:
    columns = {}
    for name in rows.dtype.names:
        values = rows[name]
        columns[name] = np.char.decode(values, "utf-8", "replace") if values.dtype.kind == "S" else values
    frame = pd.DataFrame(columns)
    if "time_s" in frame:
        frame["wall_s"] = frame["time_s"] + frame["attempt"].map(offsets).astype(float)
    return frame
