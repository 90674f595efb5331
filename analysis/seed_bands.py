"""Learning curves over seeds: one line per setting, with the interval of its interquartile mean (curves.py --seeds)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
from load import load_run
from look import FAINT, color, env_steps_axis, legend_below, new_figure, style, tidy
from matplotlib.figure import Figure
from robust import estimate, iqm
from scores import returns_at
from script import progress
from sweeps import environments, find_runs, setting_labels

from hpcrl.config import ConfigError

PLACES = 60
RESAMPLES = 2_000


def seed_bands(
    runs: Sequence[str | Path], window: int = 100, *, by: Sequence[str] = ()
) -> tuple[pd.DataFrame, Figure]:
    """Return against env_steps of every setting: interquartile mean over its seeds and 95 % bootstrap interval.

    The table has a row per env, setting and place (env_steps): seeds, return_iqm, return_low, return_high. A place
    is given while all seeds of the setting have got there, so that no line jumps where a seed ends. A seed's return is
    the mean of its last `window` training episodes, over all its attempts. A setting with one seed has no interval
    (NaN). Raises ConfigError for a path that is no run, or where no setting has two seeds.
    """
    runs = find_runs(runs)
    settings = setting_labels(runs, by)
    envs = environments(runs)
    groups: dict[tuple[str, str], list[pd.DataFrame]] = {}
    for run, env, setting in zip(progress(runs, "reading runs"), envs, settings, strict=True):
        episodes = load_run(run, "episodes")["episodes"]
        if len(episodes):
            groups.setdefault((env, setting), []).append(episodes)
    if not any(len(seeds) > 1 for seeds in groups.values()):
        raise ConfigError(
            "a band over seeds needs two runs or more that differ by their seed alone, with training episodes; here "
            f"every setting has one ({'; '.join(setting for _, setting in groups) or 'none has any episode'}): give "
            "more seeds, name the settings that matter by --by KEY, or leave --seeds out"
        )
    drawn = {key: _band(seeds, window) for key, seeds in progress(list(groups.items()), "bootstrap")}
    frames = [band.assign(env=env, setting=setting) for (env, setting), (band, _) in drawn.items()]
    frame = pd.concat(frames, ignore_index=True)
    columns = ["env", "setting", "env_steps", "seeds", "return_iqm", "return_low", "return_high"]
    return frame[columns], _figure(drawn, window)


def _band(seeds: list[pd.DataFrame], window: int) -> tuple[pd.DataFrame, npt.NDArray[np.float64]]:
    """The band, and the seeds' own curves [seeds, places]."""
    first = max(float(episodes["env_steps"].min()) for episodes in seeds)
    last = min(float(episodes["env_steps"].max()) for episodes in seeds)
    places = np.linspace(first, max(first, last), PLACES)
    lines = np.stack([returns_at(episodes, places, window) for episodes in seeds])
    resamples = RESAMPLES if len(seeds) > 1 else 0
    values = np.array([estimate([line], iqm, resamples=resamples) for line in lines.T])
    band = pd.DataFrame(values, columns=["return_iqm", "return_low", "return_high"])
    return band.assign(env_steps=places, seeds=len(seeds)), lines


def _figure(drawn: dict[tuple[str, str], Any], window: int) -> Figure:
    """A panel per environment."""
    envs = list(dict.fromkeys(env for env, _ in drawn))
    names = list(dict.fromkeys(setting for _, setting in drawn))
    figure = new_figure(max(7.5, 5.2 * len(envs)))
    axes = np.atleast_1d(figure.subplots(1, len(envs)))
    for axis, env in zip(axes, envs, strict=True):
        for (where, setting), (band, lines) in drawn.items():
            if where != env:
                continue
            index, x = names.index(setting), band["env_steps"]
            label = f"{setting} ({len(lines)} seed{'s' if len(lines) > 1 else ''})"
            axis.plot(
                x, band["return_iqm"], style(index), color=color(index), linewidth=2, label=label, zorder=4
            )
            axis.fill_between(
                x, band["return_low"], band["return_high"], color=color(index), alpha=0.18, linewidth=0
            )
            for line in lines if len(lines) > 1 else ():
                axis.plot(x, line, color=color(index), linewidth=0.6, alpha=0.45, zorder=3)
        tidy(axis, env)
        env_steps_axis(axis)
        axis.set_xlim(left=0)
    axes[0].set_ylabel("episode return (raw)")
    axes[-1].set_title(
        f"line: interquartile mean of seeds, each ≤ {window} episodes\nband: 95 % bootstrap",
        fontsize=8,
        color=FAINT,
        loc="right",
    )
    legend_below(figure, *axes)
    return figure
