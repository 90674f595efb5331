"""What is known of a run, prepared once for all rules."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from hpcrl.diagnose.advice import read
from hpcrl.diagnose.times import RankTime, rank_times
from hpcrl.storage.files import read_json
from hpcrl.storage.rundir import read_status
from hpcrl.storage.runlog import AttemptHead, read_heads, read_table
from hpcrl.storage.schema import TABLES, Rows
from hpcrl.storage.shares import actor_shares
from hpcrl.storage.summary import find_run

Values = npt.NDArray[np.float64]

QUARTERS = 4
"""Stretches of the updates that are compared: the first is learning to walk, the last is where the run has come to."""


class CannotTell(Exception):
    """Too little is there for a rule; the message says what is missing."""


@dataclass(frozen=True)
class View:
    """The tables of one attempt, the last that has trained, and what stands beside them."""

    run: Path
    status: dict[str, Any]
    config: dict[str, Any]
    """Empty where it is lost."""
    attempt: int
    tables: dict[str, Rows]
    """name -> rows of the attempt, with column `attempt`; every table is there"""
    initial: Rows
    """The first updates of the whole run, whichever attempt made them."""
    shares: list[dict[str, Any]]
    """storage.shares.actor_shares"""
    heads: list[AttemptHead]
    """Of all attempts; empty where a file is damaged."""
    damage: str = ""
    """What is damaged: which file, and how."""

    def __getitem__(self, table: str) -> Rows:
        return self.tables[table]

    def get(self, key: str, default: Any = None) -> Any:
        """The value of a dotted key of the configuration; `default` where it is unknown or null."""
        return read(self.config, key, default)

    @cached_property
    def times(self) -> list[RankTime]:
        """Where the time of each rank went; empty where no times are written yet."""
        updates = self["updates"]
        # from the second update on: the first one compiles
        steady_s = float(np.nan_to_num(updates["time_s"][min(1, len(updates) - 1)])) if len(updates) else 0.0
        return rank_times(self["timers"], self["ranks"], steady_s)

    @property
    def trained_s(self) -> float:
        """From the first to the last update, by the writer's clock."""
        seconds = self["updates"]["time_s"]
        return float(np.nan_to_num(seconds[-1] - seconds[0])) if len(seconds) else 0.0

    @property
    def synchronous(self) -> bool:
        """Every rank acts and learns."""
        return bool(self.get("scheme") == "synchronous")

    @property
    def one_process(self) -> bool:
        """All roles in one rank, which takes turns: nobody waits for anybody."""
        return len(np.unique(self["ranks"]["world_rank"])) == 1

    @property
    def acting_key(self) -> str:
        """The key that says how many ranks step environments."""
        return "ranks.workers" if self.synchronous else "ranks.actors"

    def need_updates(self, fewest: int) -> None:
        """Raises CannotTell when there are fewer."""
        if (number := len(self["updates"])) < fewest:
            raise CannotTell(f"{number} updates so far; {fewest} are needed")

    def quarters(self, column: str, fewest: int) -> Values | None:
        """Medians of a column of `updates` over each quarter of them, float64 [QUARTERS].

        None where the algorithm does not have it. Raises CannotTell for fewer updates than `fewest`.
        """
        values = self["updates"][column].astype(np.float64)
        if len(values) and not np.isfinite(values).any():
            return None
        self.need_updates(fewest)
        parts = [part[np.isfinite(part)] for part in np.array_split(values, QUARTERS)]
        return np.array([np.median(part) if len(part) else np.nan for part in parts])


def read_view(path: str | Path) -> View:
    """Everything about the run that `path` names. Raises ConfigError when it is none."""
    run = find_run(path)
    unread: dict[Path, str] = {}
    tables = {name: read_table(run, name, unread) for name in TABLES if name not in ("hashes", "metrics")}
    updates = tables["updates"]
    last = updates if len(updates) else tables["events"]
    attempt = int(last["attempt"].max()) if len(last) else 1
    heads: list[AttemptHead] = []
    damage = "; ".join(f"{path} cannot be read and is left out: {why}" for path, why in unread.items())
    try:
        heads = read_heads(run)
    except OSError as error:
        damage = damage or str(error)
    return View(
        run,
        read_status(run),
        read_json(run / "config.json") or {},
        attempt,
        {name: rows[rows["attempt"] == attempt] for name, rows in tables.items()},
        updates[:3],
        actor_shares(run),
        heads,
        damage,
    )
