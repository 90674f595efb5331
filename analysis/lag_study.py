"""Show what late data did to each algorithm: the runs of jobs/lag_study.py as a table and a picture.

A run is summed up by its training return: the mean of the last 100 episodes that ended, raw. Of the seeds of a setting
the mean, the lowest and the highest are given; `collapsed` counts those that ended below half of the best seed without
lag. One panel per lag; a line is the mean over the seeds, the band reaches from the lowest to the highest of them.
Needs neither MPI nor torch.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd
from load import load_run
from look import color, env_steps_axis, legend_below, markdown, new_figure, tidy
from matplotlib.figure import Figure
from scores import ENDED, LAST_EPISODES, returns_at
from script import progress
from sweeps import find_runs

from hpcrl.config import ConfigError
from hpcrl.storage import find_run, read_status
from hpcrl.storage.files import read_json

POINTS = 60
"""of a curve, over the env_steps of a run"""


def study(runs: Sequence[str | Path]) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Of every run a row (case, lag, seed, final_return, lag_max, ...), and its curve in rows of (env_steps, return).

    A case is what a run's name says before -kLAG. Raises ConfigError for a path that is no run, or where no run of them
    has ended.
    """
    rows, curves = [], []
    for run in progress(find_runs(runs), "reading runs"):
        folder = find_run(run)
        config, status = read_json(folder / "config.json") or {}, read_status(folder)
        if status.get("exit_code") not in ENDED:
            continue
        tables = load_run(folder, "updates", "episodes", "lag")
        episodes, lag = tables["episodes"], tables["lag"]
        key = {
            "case": str(config["name"]).rpartition("-k")[0] or config["name"],
            "lag": int(config["lag"].get("injection", 0)),
            "seed": int(config["seed"]),
        }
        done = int(tables["updates"]["env_steps"].max())
        rows.append(
            key
            | {
                "final_return": episodes["episode_return"].tail(LAST_EPISODES).mean(),
                "lag_mean": np.average(lag["lag"], weights=lag["env_steps"]) if len(lag) else np.nan,
                "updates": len(tables["updates"]),
                "env_steps": done,
                "not_finite": int((~tables["updates"]["applied"]).sum()),
                "exit_code": int(status["exit_code"]),
            }
        )
        places = np.arange(1, POINTS + 1) * config["budget"]["env_steps"] / POINTS
        curve = pd.DataFrame({"env_steps": places[places <= done]})
        curve["episode_return"] = returns_at(episodes, curve["env_steps"].to_numpy())
        curves.append(curve.dropna().assign(**key))
    if not rows:
        raise ConfigError("no run of these has ended")
    return pd.DataFrame(rows).sort_values(["case", "lag", "seed"], ignore_index=True), pd.concat(curves)


def summary(runs: pd.DataFrame) -> pd.DataFrame:
    """Of each case and lag: seeds, mean, lowest, highest and spread of the final return, and how many collapsed."""
    grouped = runs.groupby(["case", "lag"], sort=False)["final_return"]
    table = grouped.agg(seeds="count", mean="mean", lowest="min", highest="max").reset_index()
    table["spread"] = table["highest"] - table["lowest"]
    best = runs[runs["lag"] == runs["lag"].min()].groupby("case")["final_return"].max()
    collapsed = runs["final_return"] < 0.5 * runs["case"].map(best)
    counts = collapsed.groupby([runs["case"], runs["lag"]]).sum()
    table["collapsed"] = [
        int(counts[case, lag]) for case, lag in zip(table["case"], table["lag"], strict=True)
    ]
    return table


def draw(curves: pd.DataFrame) -> Figure:
    """One panel per lag, one line per case."""
    lags, cases = sorted(curves["lag"].unique()), list(dict.fromkeys(curves["case"]))
    figure = new_figure(3.2 * len(lags) + 0.6, 3.6)
    axes = np.atleast_1d(figure.subplots(1, len(lags), sharey=True))
    for axis, lag in zip(axes, lags, strict=True):
        for index, case in enumerate(cases):
            one = curves[(curves["lag"] == lag) & (curves["case"] == case)]
            seeds = one.groupby("env_steps")["episode_return"].agg(["mean", "min", "max"])
            axis.plot(seeds.index, seeds["mean"], color=color(index), label=case, linewidth=1.6)
            axis.fill_between(
                seeds.index, seeds["min"], seeds["max"], color=color(index), alpha=0.12, linewidth=0
            )
        tidy(axis, f"lag {lag}")
        env_steps_axis(axis)
    axes[0].set_ylabel("episode return (raw)")
    legend_below(figure, axes[0])
    return figure


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line. Returns the exit code: 0, or 2 for runs or a file that cannot be used."""
    parser = argparse.ArgumentParser(
        prog="lag_study.py", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("runs", nargs="+", metavar="RUN", help="run directory, or a folder of such")
    parser.add_argument("--out", required=True, metavar="NAME", help="writes NAME.csv, NAME.md and NAME.png")
    options = parser.parse_args(arguments)
    try:
        runs, curves = study(options.runs)
        runs.to_csv(f"{options.out}.csv", index=False)
        Path(f"{options.out}.md").write_text(markdown(summary(runs)), encoding="utf-8")
        draw(curves).savefig(f"{options.out}.png")
    except (ConfigError, OSError) as error:
        print(f"lag_study: {error}", file=sys.stderr)
        return 2
    print(markdown(summary(runs)), end="")
    for ending in ("csv", "md", "png"):
        print(f"wrote {options.out}.{ending}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
