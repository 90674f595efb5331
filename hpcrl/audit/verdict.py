"""Whether a run kept its lag contract: everything it says of lag and env_steps, recomputed from its raw rows.

The learners write which trajectories each update was trained on (table `trajectories`), with the versions that they
found in the data themselves. All else is derived from these rows here and compared. A run is proved update by update;
of an attempt that was killed the last updates may not be complete in its file, which is said.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy as np

from hpcrl.audit.checks import CHECKS, Counts, Evidence, Mask, max_lag, strays
from hpcrl.config import ConfigError, RunConfig
from hpcrl.storage.files import read_json
from hpcrl.storage.raw_rows import row_checksums
from hpcrl.storage.resume import differences
from hpcrl.storage.runlog import AttemptHead, attempt_files, read_heads, read_table
from hpcrl.storage.schema import Rows
from hpcrl.storage.shares import actor_shares

ORDERLY = (b"finished", b"stopped", b"failed")
"""Events after which every row has come."""


@dataclass(frozen=True, slots=True)
class Audit:
    """What the audit of a run found."""

    run: str
    updates: int
    """Updates that were looked at."""
    env_steps: int
    """Valid env_steps they were trained on, by the raw rows; each use of a batch counts."""
    max_lag: int | None
    """The largest bound of all attempts; None without a config."""
    histogram: dict[int, int]
    """Lag -> valid env_steps, by the raw rows."""
    violations: tuple[str, ...]
    """Of each check that failed the first row that it fails for."""
    notes: tuple[str, ...]
    """What could not be looked at."""
    actors: list[dict[str, Any]]
    """As `actor_shares` gives them."""

    @property
    def proved(self) -> bool:
        """Nothing contradicts the contract, and nothing is missing in between."""
        return not self.violations

    @property
    def lag_mean(self) -> float | None:
        """Mean lag of the trained env_steps; None without any."""
        if not self.env_steps:
            return None
        return sum(lag * count for lag, count in self.histogram.items()) / self.env_steps

    def to_dict(self) -> dict[str, Any]:
        """JSON types only."""
        lags = sorted(self.histogram)
        return {
            "run": self.run,
            "proved": self.proved,
            "updates": self.updates,
            "env_steps": self.env_steps,
            "max_lag": self.max_lag,
            "lag": {"min": lags[0], "mean": self.lag_mean, "max": lags[-1]} if lags else None,
            "histogram": {str(lag): self.histogram[lag] for lag in lags},
            "violations": list(self.violations),
            "notes": list(self.notes),
            "actors": self.actors,
        }


def audit(run: str | Path) -> Audit:
    """Audit a run directory, or the result file of one attempt by itself, in whatever state it is. Local.

    Raises ConfigError when `run` is neither, or has no lag contract to prove.
    """
    path = Path(run)
    try:
        heads = read_heads(path)
    except OSError as error:
        raise ConfigError(f"{error}; give a run directory or the result file of an attempt") from error
    if not heads:
        what = "holds no result file" if path.exists() else "does not exist"
        raise ConfigError(f"{str(path)!r} {what}; give a run directory or the result file of an attempt")
    for head in heads:
        _refuse_replay(head)
    evidence, notes, left_over = _collect(path, heads)
    checks = (strays(left_over), _config(path, heads, notes), *(check(evidence) for check in CHECKS))
    violations = tuple(line for check in checks for line in check)
    lags = evidence.updates["update"][evidence.raw_place] - 1 - evidence.raw["parameter_version"]
    histogram = {int(lag): int(evidence.raw["env_steps"][lags == lag].sum()) for lag in np.unique(lags)}
    return Audit(
        run=str(path),
        updates=len(evidence.updates),
        env_steps=int(evidence.raw["env_steps"].sum()),
        max_lag=max(max_lag(head) for head in heads) if all(head.config for head in heads) else None,
        histogram=histogram,
        violations=violations,
        notes=tuple(notes),
        actors=actor_shares(path),
    )


def _refuse_replay(head: AttemptHead) -> None:
    try:
        config = RunConfig.parse(head.config)
    except ConfigError:  # of another version, or none: the checks say what is missing
        return
    if config.algorithm.uses_replay:
        raise ConfigError(
            f"nothing to prove: algorithm.name={config.algorithm.name} samples from a replay memory, whose contents "
            "lag.max_lag does not bound. The lag of what was sampled is in lag_min, lag_mean and lag_max of table "
            "`updates`, and table `replay` holds what was inserted and drawn"
        )


def _collect(path: Path, heads: list[AttemptHead]) -> tuple[Evidence, list[str], Rows]:
    """The evidence; notes; and raw rows of updates that the table `updates` does not have."""
    updates, lag, raw = (read_table(path, name) for name in ("updates", "lag", "trajectories"))
    notes: list[str] = []
    lost: list[int] = []
    said = read_table(path, "events")
    for head, after in zip_longest(heads, heads[1:]):
        if np.isin(said["kind"][said["attempt"] == head.attempt], ORDERLY).any():
            continue
        own = updates[updates["attempt"] == head.attempt]
        whole = _last_complete(own, raw)
        last = int(own["update"][whole - 1]) if whole else head.first_update
        if after is None and whole < len(own):
            end = own["update"][-1]
            notes.append(f"updates {last + 1} to {end} are not complete: the run was killed, or goes on")
        elif after is not None and last < after.first_update:
            end = after.first_update
            notes.append(f"updates {last + 1} to {end} are not complete: attempt {head.attempt} was killed")
            lost.append(end)
        updates, lag, raw = (
            rows[(rows["attempt"] != head.attempt) | (rows["update"] <= last)] for rows in (updates, lag, raw)
        )
    order = np.argsort(updates["update"], kind="stable")
    numbers = updates["update"][order]

    def places(rows: Rows) -> tuple[Counts, Mask]:
        found = np.searchsorted(numbers, rows["update"])
        found = np.minimum(found, max(len(numbers) - 1, 0))
        known = numbers[found] == rows["update"] if len(numbers) else np.zeros(len(rows), np.bool_)
        return order[found[known]], known

    lag_place, lag_known = places(lag)
    raw_place, raw_known = places(raw)
    first = heads[0].first_update + 1 if _is_alone(path) else 1
    known = (lag[lag_known], raw[raw_known])
    evidence = Evidence(heads, first, tuple(lost), updates, *known, lag_place, raw_place)
    return evidence, notes, raw[~raw_known]


def _last_complete(updates: Rows, raw: Rows) -> int:
    """How many rows of `updates` there are up to the last one whose raw rows are all there."""
    checksums = row_checksums(raw)
    for count in range(len(updates), 0, -1):
        row = updates[count - 1]
        if checksums[raw["update"] == row["update"]].sum() == row["rows_checksum"]:
            return count
    return 0 if len(raw) else len(updates)


def _is_alone(path: Path) -> bool:
    """Whether this is the file of one attempt, whatever others there are."""
    return path.is_file() and path.name != "run.h5"


def _config(path: Path, heads: list[AttemptHead], notes: list[str]) -> Iterator[str]:
    """The last attempt's config is the run's; each has one."""
    folder = path.parent if path.name == "run.h5" else path
    if _is_alone(path):
        folder = path.parent.parent
        if attempt_files(folder)[-1:] != [path]:
            notes.append("config.json was not compared: this file is not the last attempt of a run directory")
            return
    beside = read_json(folder / "config.json")
    if beside is None:
        yield f"{folder / 'config.json'} cannot be read"
        return
    for key, own, other in list(differences(heads[-1].config, beside))[:1]:
        yield f"config: {key} is {own!r} in {heads[-1].path.name} and {other!r} in config.json"
