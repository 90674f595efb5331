"""Draw the learning curves of one or more runs.

Two panels: episode return against env_steps (what the run learned from) and against wall time (what it cost).
The line is the mean over a window of episodes and the band reaches from their 10th to their 90th percentile;
returns are raw, of full training episodes. A diamond marks the evaluation of the frozen policy (mean, and
standard deviation as a bar), a small bar across the line where a run went on in another attempt. With
--seeds there is one line per setting: the interquartile mean over its seeds, with its 95 % bootstrap interval as
the band and the seeds as thin lines. With --evaluation it draws the evaluations alone, one after the other, of runs
with evaluation.every_env_steps. Works on runs that are still going, were killed, or ended; needs neither MPI
nor torch.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from evaluation_curves import evaluation_curves
from load import load_run
from look import FAINT, INK, clip, color, env_steps_axis, legend_below, new_figure, style, tidy, time_unit
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from script import Output, make_parser, progress, run_script
from seed_bands import seed_bands
from sweeps import differences, find_runs, run_labels

from hpcrl.config import ConfigError
from hpcrl.storage import describe

EXAMPLES = """examples:
  python analysis/curves.py runs/cartpole-0-001 --out curves.png
  python analysis/curves.py runs/cartpole-*-001 --out seeds.pdf --window 50
  python analysis/curves.py runs/cartpole-*-4711 --out sweep.png      (the runs of one array)
  python analysis/curves.py runs/cartpole-*-4711 --seeds --out bands.svg   (a line per setting)
  python analysis/curves.py runs/cartpole-0-001 --evaluation --out evaluations.png
  python analysis/curves.py runs --csv curves.csv                     (all in a folder; numbers only)

The CSV has one row per training episode: run, the settings by which the runs differ (seed, what was swept),
attempt, env_steps, wall_s (s, attempts joined), episode_return, episode_length, return_mean, return_p10 and
return_p90 (over the window). In the picture each setting has a color of its own, which its seeds share.
With --seeds: setting, env_steps, seeds, return_iqm, return_low and return_high, at 60 places. With --evaluation: a row
per evaluation: update, parameter_version, env_steps, episodes, return_mean, return_std, return_p10, return_p90, cut."""

MAX_POINTS = 1500


class Look(NamedTuple):
    """How one run is drawn."""

    color: str
    style: str
    alpha: float
    """of the band; fainter where many runs overlap"""


def curves(runs: Sequence[str | Path], window: int = 100) -> tuple[pd.DataFrame, Figure]:
    """Episodes of every run with rolling statistics, and the figure drawn from them.

    `runs`: run directories, or folders of them. `window` is in episodes, and at most a fifth of a run's episodes.
    The table has a column for every setting by which the runs differ. Raises ConfigError for a path that is no run.
    """
    runs = find_runs(runs)
    figure = new_figure()
    axes = figure.subplots(1, 2, sharey=True)
    summaries = [describe(run) for run in progress(runs, "reading runs")]
    labels, settings = run_labels(runs), differences(runs)
    colors = _colors(settings)
    frames = []
    unit, seconds = time_unit(max((summary["wall_s"] for summary in summaries), default=0.0))
    for index, (run, summary, label) in enumerate(zip(runs, summaries, labels, strict=True)):
        episodes = _rolling(load_run(run, "episodes")["episodes"], window)
        frames.append(episodes)
        look = Look(color(colors[index]), style(colors[index]), 0.18 / len(runs) ** 0.6)
        ends = (summary["env_steps"], summary["wall_s"] / seconds)
        for axis, x, end in zip(
            axes, (episodes["env_steps"], episodes["wall_s"] / seconds), ends, strict=True
        ):
            _draw(axis, x, episodes, label=_legend_label(label, summary), look=look)
            _mark_attempts(axis, x, episodes, look.color)
            _mark_evaluation(axis, end, summary["evaluation"], look.color)
    _finish(figure, axes, summaries, unit, window)
    if not any(len(frame) for frame in frames):
        for axis in axes:
            axis.text(0.5, 0.6, "no training episode has ended", ha="center", transform=axis.transAxes)
            if not axis.containers:  # no evaluation either: the numbers on the axes would mean nothing
                axis.set(xticks=[], yticks=[])
    told = [{"run": label} | setting for label, setting in zip(labels, settings, strict=True)]
    return _joined(frames, told), figure


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line. Returns the exit code: 0, or 2 for a run or file that cannot be used."""
    parser = make_parser("curves", __doc__, EXAMPLES, "one row per training episode")
    parser.add_argument(
        "--window",
        type=int,
        default=100,
        metavar="N",
        help="episodes per mean (default: 100; at most a fifth of a run's episodes)",
    )
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--evaluation", action="store_true", help="evaluations of the frozen policy alone")
    what.add_argument(
        "--seeds",
        action="store_true",
        help="one line per setting, over its seeds; needs two seeds or more of one",
    )
    parser.add_argument(
        "--by",
        action="append",
        default=[],
        metavar="KEY",
        help="with --seeds: setting that tells lines apart, for example algorithm.learning_rate (may be repeated; "
        "default: what differs)",
    )
    return run_script(parser, arguments, _work)


def _work(options: argparse.Namespace) -> Output:
    if options.out is None and options.csv is None:
        raise ConfigError("nothing to write; give --out FILE.png, --csv FILE or both")
    if options.window < 1:
        raise ConfigError(f"--window {options.window} must be at least 1 episode")
    if options.evaluation:
        return Output(*evaluation_curves(options.runs))
    if options.seeds:
        return Output(*seed_bands(options.runs, options.window, by=options.by))
    frame, figure = curves(options.runs, options.window)
    return Output(
        frame, figure, warning="" if len(frame) else "no training episode has ended in these runs yet"
    )


def _rolling(episodes: pd.DataFrame, window: int) -> pd.DataFrame:
    columns = ["attempt", "env_steps", "wall_s", "episode_return", "episode_length"]
    frame = episodes[columns].sort_values(["attempt", "env_steps"], kind="stable", ignore_index=True)
    size = max(1, min(window, len(frame) // 5))
    rolling = frame["episode_return"].rolling(size, min_periods=1)
    frame["return_mean"] = rolling.mean()
    frame["return_p10"] = rolling.quantile(0.1)
    frame["return_p90"] = rolling.quantile(0.9)
    return frame


def _joined(frames: Sequence[pd.DataFrame], told: Sequence[dict[str, Any]]) -> pd.DataFrame:
    """All rows, behind columns that say of each run the same in every row of its frame."""
    table = pd.concat(frames, ignore_index=True)
    for place, column in enumerate(told[0]):
        values = [one[column] for one, frame in zip(told, frames, strict=True) for _ in range(len(frame))]
        table.insert(place, column, pd.Series(values, dtype=object).infer_objects())
    return table


def _draw(axis: Axes, x: pd.Series, frame: pd.DataFrame, *, label: str, look: Look) -> None:
    # Never drop the last point: it is the one people read.
    picked = np.unique(np.linspace(0, max(len(frame) - 1, 0), MAX_POINTS).astype(int)) if len(frame) else []
    x, frame = x.iloc[picked], frame.iloc[picked]
    marker = "o" if len(frame) == 1 else None
    mean, low, high = frame["return_mean"], frame["return_p10"], frame["return_p90"]
    axis.plot(x, mean, look.style, color=look.color, linewidth=1.8, label=label, marker=marker, zorder=3)
    axis.fill_between(x, low, high, color=look.color, alpha=look.alpha, linewidth=0, zorder=2)


def _mark_attempts(axis: Axes, x: pd.Series, frame: pd.DataFrame, ink: str) -> None:
    begins = frame["attempt"].diff() > 0
    if begins.any():
        axis.plot(
            x[begins],
            frame["return_mean"][begins],
            "|",
            color=ink,
            markersize=11,
            markeredgewidth=1.6,
            zorder=4,
        )


def _mark_evaluation(axis: Axes, x: float, evaluation: dict[str, Any] | None, ink: str) -> None:
    if evaluation is not None:
        axis.errorbar(
            x,
            evaluation["mean"],
            yerr=evaluation["std"],
            fmt="D",
            markersize=7,
            color=ink,
            markeredgecolor="white",
            capsize=3,
            elinewidth=1.4,
            clip_on=False,
            zorder=5,
        )


def _finish(figure: Figure, axes: Any, summaries: list[dict[str, Any]], unit: str, window: int) -> None:
    env_steps_axis(axes[0])
    axes[1].set_xlabel(f"wall time ({unit})")
    axes[0].set_ylabel("episode return (raw)")
    for axis in axes:
        axis.set_xlim(left=0)
        axis.margins(x=0.03)
        tidy(axis)
    legend_below(figure, axes[0])
    titles = sorted(
        {f"{summary['algorithm']} on {summary['env']}" for summary in summaries if summary["env"]}
    )
    axes[0].set_title(clip(", ".join(titles), 48), fontsize=11.5, fontweight="bold", color=INK, loc="left")
    axes[1].set_title(
        f"line: mean of ≤ {window} episodes   band: 10 to 90 %   ◆ evaluation ± std",
        fontsize=8.5,
        color=FAINT,
        loc="right",
    )


def _colors(settings: Sequence[dict[str, Any]]) -> list[int]:
    """Number of each run's color: one per run, but the seeds of one setting share it where several were swept."""
    groups = [repr({key: value for key, value in one.items() if key != "seed"}) for one in settings]
    distinct = list(dict.fromkeys(groups))
    return list(range(len(groups))) if len(distinct) == 1 else [distinct.index(group) for group in groups]


def _legend_label(label: str, summary: dict[str, Any]) -> str:
    state = "" if summary["status"] == "finished" else f" ({summary['status']})"
    evaluation = summary["evaluation"]
    score = f": evaluation {evaluation['mean']:.1f} ± {evaluation['std']:.1f}" if evaluation else ""
    return f"{label}{state}{score}"


if __name__ == "__main__":
    sys.exit(main())
