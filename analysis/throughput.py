"""Show how fast each run trained, and what more ranks brought.

Left: env_steps/s against wall time, in 60 intervals. Right: the steady rate (between the first and the last update of
each attempt, so without starts) against ranks, beside the line on which twice the ranks are twice as fast. Efficiency
is the rate per rank over that of the smallest run. --per counts actors, nodes or cores instead of ranks. Only runs of
one setting scale: a line joins those that differ in nothing but ranks and env.num_envs. Needs neither MPI nor torch.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from load import load_run
from look import FAINT, clip, color, legend_below, markdown, new_figure, say, short, style, tidy, time_unit
from matplotlib.figure import Figure
from resources import used
from script import Output, make_parser, progress, run_script
from sweeps import environments, find_runs, run_labels, setting_labels

from hpcrl.config import ConfigError

EXAMPLES = """examples:
  python analysis/throughput.py runs/cartpole-impala-0-001 --out speed.png
  python analysis/throughput.py runs/scale-* --per actors --out scaling.svg --csv scaling.csv

The CSV has one row per run: run, setting, ranks (and of each role), nodes, cores, env_steps, updates, train_s (s, first
to last update, attempts added), env_steps_per_s and updates_per_s (steady), wall_s and overall_per_s (with starts and
ends), speedup and efficiency (against the smallest run of its setting). With --intervals it has one per interval."""

INTERVALS = 60
PER = ("ranks", "actors", "nodes", "cores")


def throughput(runs: Sequence[str | Path], per: str = "ranks") -> pd.DataFrame:
    """A row per run: what it ran on, how fast it trained, speedup and efficiency by `per`.

    `setting`: what differs besides seed, ranks and env.num_envs. Raises ConfigError for a path that is no run, or where
    no run has two updates in one attempt, between which a rate could be.
    """
    if per not in PER:
        raise ConfigError(f"per {per!r} must be one of {', '.join(PER)}")
    found = find_runs(runs)
    rows = []
    for run, label, setting in progress(
        list(zip(found, run_labels(found), _settings(found), strict=True)), "reading runs"
    ):
        tables = load_run(run, "updates", "ranks")
        row: dict[str, Any] = {"run": label, "setting": setting, **used(tables["ranks"])}
        rows.append(row | _rates(tables["updates"]))
    frame = pd.DataFrame(rows)
    if not (frame["train_s"] > 0).any():
        raise ConfigError(
            f"no run has logged two updates in one attempt yet ({', '.join(frame['run'])}): no rate to show"
        )
    means = frame.groupby(["setting", per])["env_steps_per_s"].transform("mean")
    least = frame.groupby("setting")[per].transform("min")
    base = means.where(frame[per] == least).groupby(frame["setting"]).transform("max")
    frame["speedup"] = frame["env_steps_per_s"] / base
    frame["efficiency"] = frame["speedup"] * least / frame[per]
    return frame


def intervals(runs: Sequence[str | Path]) -> pd.DataFrame:
    """env_steps/s over time: run, attempt, wall_s (middle of the interval), env_steps_per_s.

    A run's wall time is cut into 60 parts; each attempt has whole ones of its own, so no rate spans a restart.
    """
    found = find_runs(runs)
    frames = []
    for run, label in zip(found, run_labels(found), strict=True):
        updates = load_run(run, "updates")["updates"]
        whole = updates["wall_s"].max() if len(updates) else 0.0
        for attempt, rows in updates.groupby("attempt"):
            first, last = rows["wall_s"].min(), rows["wall_s"].max()
            if len(rows) < 2 or last <= first:
                continue
            edges = np.linspace(
                first, last, 1 + max(1, min(len(rows) - 1, round(INTERVALS * (last - first) / whole)))
            )
            done = np.interp(edges, rows["wall_s"], rows["env_steps"])
            values = {
                "wall_s": (edges[1:] + edges[:-1]) / 2,
                "env_steps_per_s": np.diff(done) / np.diff(edges),
            }
            frames.append(pd.DataFrame({"run": label, "attempt": attempt, **values}))
    return pd.concat(frames, ignore_index=True)


def draw(table: pd.DataFrame, over_time: pd.DataFrame, per: str = "ranks") -> Figure:
    """The two panels, from `throughput` and `intervals`."""
    figure = new_figure()
    left, right = figure.subplots(1, 2)
    unit, seconds = time_unit(over_time["wall_s"].max())
    for index, (run, rows) in enumerate(over_time.groupby("run", sort=False)):
        for _, part in rows.groupby("attempt"):
            label = run if run not in left.get_legend_handles_labels()[1] else None
            x = part["wall_s"] / seconds
            marker = "o" if len(part) == 1 else None
            left.plot(
                x, part["env_steps_per_s"], style(index), color=color(index), marker=marker, label=label
            )
    left.set(xlabel=f"wall time ({unit})", ylabel="env_steps/s", ylim=(0, None))
    left.yaxis.set_major_formatter(lambda value, _: short(value))
    right.set(xlabel=per, ylabel="env_steps/s, steady")
    right.yaxis.set_major_formatter(lambda value, _: short(value))
    tidy(left, "speed over time")
    tidy(right, f"speed by {per}")
    scaled = table[(table["env_steps_per_s"] > 0) & table[per].notna()]
    if (scaled.groupby("setting")[per].nunique() < 2).all():
        say(right, f"no two runs differ in their {per} alone:\nno scaling to show")
    else:
        for index, (setting, rows) in enumerate(scaled.groupby("setting", sort=False)):
            means = rows.groupby(per)["env_steps_per_s"].mean()
            right.plot(rows[per], rows["env_steps_per_s"], "o", color=color(index), alpha=0.5)
            right.plot(means.index, means, style(index), color=color(index), label=clip(setting))
            ideal = means.iloc[0] * means.index / means.index[0]
            right.plot(means.index, ideal, ":", color=color(index), linewidth=1, alpha=0.8)
        right.set(xlim=(0, None), ylim=(0, None))
        right.set_title("dotted: in proportion", fontsize=8, color=FAINT, loc="right")
        if scaled["setting"].nunique() > 1:
            right.legend(frameon=False, fontsize=8)
    legend_below(figure, left)
    return figure


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line. Returns the exit code: 0, or 2 for runs or a file that cannot be used."""
    parser = make_parser("throughput", __doc__, EXAMPLES, "one row per run (with --intervals: per interval)")
    parser.add_argument(
        "--per", choices=PER, default="ranks", help="what scaling is counted by (default: ranks)"
    )
    parser.add_argument("--intervals", action="store_true", help="write the rates over time to the CSV")
    return run_script(parser, arguments, _work)


def _work(options: argparse.Namespace) -> Output:
    table = throughput(options.runs, options.per)
    over_time = intervals(options.runs)
    figure = draw(table, over_time, options.per) if options.out else None
    columns = [
        "run",
        options.per,
        "env_steps_per_s",
        "updates_per_s",
        "overall_per_s",
        "speedup",
        "efficiency",
    ]
    return Output(
        over_time if options.intervals else table, figure, markdown(table[list(dict.fromkeys(columns))])
    )


def _settings(runs: Sequence[str | Path]) -> list[str]:
    """What differs besides seed, ranks and environments: runs with the same may be compared by their ranks."""
    settings, envs = setting_labels(runs, ignore=("ranks.", "env.num_envs", "name")), environments(runs)
    return settings if len(set(envs)) == 1 else [f"{a} on {b}" for a, b in zip(settings, envs, strict=True)]


def _rates(updates: pd.DataFrame) -> dict[str, float]:
    trained = {"env_steps": 0.0, "updates": 0.0, "train_s": 0.0}
    for _, rows in updates.groupby("attempt"):
        span = {"env_steps": rows["env_steps"], "updates": rows["update"], "train_s": rows["wall_s"]}
        for name, values in span.items():
            trained[name] += float(values.max() - values.min())
    wall_s = float(updates["wall_s"].max()) if len(updates) else 0.0
    done = int(updates["env_steps"].max()) if len(updates) else 0
    seconds = trained["train_s"] or np.nan
    return {
        "env_steps": done,
        "updates": int(updates["update"].max()) if len(updates) else 0,
        "train_s": trained["train_s"],
        "env_steps_per_s": trained["env_steps"] / seconds,
        "updates_per_s": trained["updates"] / seconds,
        "wall_s": wall_s,
        "overall_per_s": done / wall_s if wall_s else np.nan,
    }


if __name__ == "__main__":
    sys.exit(main())
