"""The evaluations of frozen policies while runs went on: a point for each (curves.py --evaluation)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd
from load import load_run
from look import FAINT, color, env_steps_axis, legend_below, new_figure, style, tidy
from matplotlib.figure import Figure
from script import progress
from sweeps import environments, find_runs, run_labels

from hpcrl.config import ConfigError


def evaluation_curves(runs: Sequence[str | Path]) -> tuple[pd.DataFrame, Figure]:
    """Evaluation return against env_steps of every run.

    The table has a row per run and evaluated update: env, run, attempt, update, parameter_version, env_steps, episodes,
    return_mean, return_std, return_p10, return_p90, cut (episodes). Where a later attempt evaluated the same update
    again, its row stands. Raises ConfigError for a path that is no run, or where no run was evaluated.
    """
    runs = find_runs(runs)
    frames = [_frame(run) for run in progress(runs, "reading runs")]
    if not any(len(frame) for frame in frames):
        raise ConfigError(
            "none of these runs was evaluated; set evaluation.every_env_steps, or leave --evaluation out"
        )
    labels, envs = run_labels(runs), environments(runs)
    figure = new_figure()
    axis = figure.subplots()
    for index, (frame, label) in enumerate(zip(frames, labels, strict=True)):
        x, ink = frame["env_steps"], color(index)
        axis.plot(
            x, frame["return_mean"], style(index), marker="D", markersize=5, color=ink, label=label, zorder=3
        )
        axis.fill_between(x, frame["return_p10"], frame["return_p90"], color=ink, alpha=0.15, linewidth=0)
    tidy(axis, ", ".join(sorted(set(envs))))
    env_steps_axis(axis)
    axis.set_xlim(left=0)
    axis.set_ylabel("evaluation return (raw)")
    axis.set_title("mean of the episodes   band: 10 to 90 %", fontsize=8.5, color=FAINT, loc="right")
    legend_below(figure, axis)
    named = [frame.assign(env=env, run=label) for frame, env, label in zip(frames, envs, labels, strict=True)]
    table = pd.concat(named, ignore_index=True)
    return table[["env", "run", *frames[0].columns]], figure


def _frame(run: str | Path) -> pd.DataFrame:
    rows = load_run(run, "evaluation")["evaluation"]
    rows = rows[rows["attempt"] == rows.groupby("update")["attempt"].transform("max")]
    groups = rows.groupby(["attempt", "update", "parameter_version", "env_steps"], as_index=False)
    frame = groups.agg(
        episodes=("episode_return", "size"),
        return_mean=("episode_return", "mean"),
        return_std=("episode_return", _std),
        return_p10=("episode_return", _p10),
        return_p90=("episode_return", _p90),
        cut=("cut", "sum"),
    )
    return frame.sort_values("update", ignore_index=True)


def _std(values: pd.Series) -> float:
    """Over n, as everywhere in hpcrl."""
    return float(np.std(values.to_numpy()))


def _p10(values: pd.Series) -> float:
    return float(np.quantile(values, 0.1))


def _p90(values: pd.Series) -> float:
    return float(np.quantile(values, 0.9))
