"""Say what each run cost: node-hours, core-hours, env_steps per node-hour, what was lost, what a return cost.

Node-hours are the nodes of each attempt (those that Slurm had given, where it says so, else those that had ranks) times
its wall time; an attempt is counted from when its ranks had found each other. How long that is before the first
env_step is known of the last attempt only (start_s) and taken for the others, too. Lost are updates that an attempt did
after its last checkpoint and the next one did again. With --target the CSV says when the mean of 100 training episodes
first reached that return, and what it had cost until then. Needs neither MPI nor torch.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from load import load_run
from look import clip, color, markdown, new_figure, short, tidy
from matplotlib.figure import Figure
from resources import cores
from scores import LAST_EPISODES, run_scores
from script import Output, make_parser, progress, run_script
from sweeps import find_runs

from hpcrl.config import ConfigError
from hpcrl.storage import attempt_files, find_run, read_status, read_table
from hpcrl.storage.files import read_json
from hpcrl.storage.runlog import attempt_seconds, read_heads

EXAMPLES = """examples:
  python analysis/cost.py runs/cartpole-*-4711 --csv cost.csv
  python analysis/cost.py runs --target 475 --out cost.png

The CSV has one row per run: run, setting, env, status, attempts, nodes and cores (of the last attempt), wall_s (s, all
attempts), start_s, node_hours, core_hours, env_steps, env_steps_per_node_hour, lost_updates, score, and with --target
env_steps_to_target, wall_s_to_target, node_hours_to_target (empty where it was not reached)."""

HOUR = 3600.0


class Attempt(NamedTuple):
    """What one attempt used."""

    begin_s: float
    """wall_s at its first env_step"""
    seconds: float
    """from its first env_step to its end"""
    nodes: int
    cores: int


def cost(runs: Sequence[str | Path], *, target: float | None = None) -> pd.DataFrame:
    """A row per run: what it used, what it did, and with `target` (a return) what that took.

    Raises ConfigError for a path that is no run, or where no run has done anything yet.
    """
    found = find_runs(runs)
    scores = run_scores(found, unfinished=True)
    rows = [_row(find_run(run), target) for run in progress(found, "reading runs")]
    table = pd.concat(
        [scores[["run", "setting", "env", "seed", "status", "score"]], pd.DataFrame(rows)], axis=1
    )
    if not (table["wall_s"] > 0).any():
        raise ConfigError(
            f"nothing has been recorded yet in {', '.join(table['run'])}: there is no cost to show"
        )
    return table


def draw(table: pd.DataFrame, target: float | None = None) -> Figure:
    """Left: node-hours of each run (with a target: to it, the rest pale). Right: what it reached for them."""
    figure = new_figure(10.5, max(3.2, 1.6 + 0.25 * len(table)))
    left, right = figure.subplots(1, 2)
    names = list(dict.fromkeys(table["setting"]))
    inks = [color(names.index(setting)) for setting in table["setting"]]
    places = np.arange(len(table))
    left.barh(places, table["node_hours"], color=inks, alpha=0.35 if target is not None else 0.9)
    if target is not None:
        left.barh(places, table["node_hours_to_target"].fillna(0.0), color=inks)
    left.set_yticks(places, table["run"], fontsize=8)
    left.set_ylim(len(table) - 0.4, -0.6)
    left.set_xlabel("node-hours")
    for index, (setting, rows) in enumerate(table.groupby("setting", sort=False)):
        right.plot(rows["node_hours"], rows["score"], "o", color=color(index), label=clip(str(setting), 40))
    if len(names) > 1:
        right.legend(frameon=False, fontsize=8)
    right.set(xlabel="node-hours", ylabel="score: return at the end")
    for axis in (left, right):
        axis.xaxis.set_major_formatter(lambda value, _: short(float(f"{value:.4g}")))
    tidy(left, "cost" if target is None else f"cost; full color: until a return of {target:g}")
    tidy(right, "return for the cost")
    return figure


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line. Returns the exit code: 0, or 2 for runs or a file that cannot be used."""
    parser = make_parser("cost", __doc__, EXAMPLES, "one row per run")
    parser.add_argument("--target", type=float, metavar="RETURN", help="a return whose cost is asked for")
    return run_script(parser, arguments, _work)


def _work(options: argparse.Namespace) -> Output:
    table = cost(options.runs, target=options.target)
    columns = [
        "run",
        "status",
        "attempts",
        "nodes",
        "cores",
        "wall_s",
        "node_hours",
        "env_steps_per_node_hour",
        "score",
    ]
    if options.target is not None:
        columns += ["env_steps_to_target", "node_hours_to_target"]
    return Output(table, draw(table, options.target) if options.out else None, markdown(table[columns]))


def _row(run: Path, target: float | None) -> dict[str, Any]:
    tables = load_run(run)
    attempts, start_s = _attempts(run, tables["ranks"]), _start_s(run, tables)
    starts = (0.0 if math.isnan(start_s) else start_s) * (len(attempts) > 0)
    node_hours = sum((one.seconds + starts) * one.nodes for one in attempts) / HOUR
    core_hours = sum((one.seconds + starts) * one.cores for one in attempts) / HOUR
    updates = tables["updates"]
    done = int(updates["env_steps"].max()) if len(updates) else 0
    row: dict[str, Any] = {
        "attempts": len(attempt_files(run)),
        "nodes": attempts[-1].nodes if attempts else 0,
        "cores": attempts[-1].cores if attempts else 0,
        "wall_s": sum(one.seconds for one in attempts),
        "start_s": start_s,
        "node_hours": node_hours,
        "core_hours": core_hours,
        "env_steps": done,
        "env_steps_per_node_hour": done / node_hours if node_hours else math.nan,
        "lost_updates": sum(len(read_table(path, "updates")) for path in attempt_files(run)) - len(updates),
    }
    return row if target is None else row | _to_target(tables["episodes"], target, attempts, starts)


def _attempts(run: Path, ranks: pd.DataFrame) -> list[Attempt]:
    """In order; one that was killed counts up to its last row, also where that was lost with it."""
    found, begin_s, lasted = [], 0.0, attempt_seconds(run)
    for head in read_heads(run):
        own, seconds = ranks[ranks["attempt"] == head.attempt], lasted.get(head.attempt, 0.0)
        nodes = max(int(own["node"].nunique()), _allocated(head.provenance), 1)
        found.append(Attempt(begin_s, seconds, nodes, max(cores(own), 1)))
        begin_s += seconds
    return found


def _allocated(provenance: Mapping[str, Any]) -> int:
    """Nodes that Slurm had given; 0 where it does not say."""
    environment = provenance.get("environment") or {}
    text = environment.get("SLURM_JOB_NUM_NODES") or environment.get("SLURM_NNODES") or ""
    return int(text) if str(text).isdigit() else 0


def _start_s(run: Path, tables: Mapping[str, pd.DataFrame]) -> float:
    """Seconds from when the last attempt's ranks had found each other to its first env_step; NaN if not known."""
    provenance, status = read_json(run / "provenance.json") or {}, read_status(run)
    events = tables["events"]
    try:
        begin, end = (
            datetime.fromisoformat(str(text)) for text in (provenance["collected_at"], status["written_at"])
        )
    except (KeyError, ValueError):
        return math.nan
    last = events[events["attempt"] == events["attempt"].max()]["time_s"].max() if len(events) else math.nan
    return (
        max(0.0, (end - begin).total_seconds() - float(last)) if status["status"] != "running" else math.nan
    )


def _to_target(
    episodes: pd.DataFrame, target: float, attempts: Sequence[Attempt], start_s: float
) -> dict[str, float]:
    ordered = episodes.sort_values(["attempt", "env_steps"], kind="stable", ignore_index=True)
    reached = ordered["episode_return"].rolling(LAST_EPISODES).mean() >= target
    if not reached.any():
        return {
            "env_steps_to_target": math.nan,
            "wall_s_to_target": math.nan,
            "node_hours_to_target": math.nan,
        }
    first = ordered.loc[reached.idxmax()]
    wall_s = float(first["wall_s"])
    used = sum(
        one.nodes * (start_s + min(one.seconds, wall_s - one.begin_s))
        for one in attempts
        if one.begin_s <= wall_s
    )
    return {
        "env_steps_to_target": float(first["env_steps"]),
        "wall_s_to_target": wall_s,
        "node_hours_to_target": used / HOUR,
    }


if __name__ == "__main__":
    sys.exit(main())
