"""Draw the learning curves of one or more runs.

Two panels: episode return against env_steps (what the run learned from) and against wall time (what it cost).
The line is the mean over a window of episodes and the band reaches from their 10th to their 90th percentile;
returns are raw, of full training episodes. A diamond marks the evaluation of the frozen policy (mean, and
standard deviation as a bar). Works on runs that are still going, were killed, or ended; needs neither MPI
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
from load import load_run
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from sweeps import differences, find_runs

from hpcrl.config import ConfigError
from hpcrl.storage import describe

EXAMPLES = """examples:
  python analysis/curves.py runs/cartpole-0-001 --out curves.png
  python analysis/curves.py runs/cartpole-*-001 --out seeds.pdf --window 50
  python analysis/curves.py runs/cartpole-*-4711 --out sweep.png      (the runs of one array)
  python analysis/curves.py runs --csv curves.csv                     (all in a folder; numbers only)

The CSV has one row per training episode: run, the settings by which the runs differ (seed, what was swept),
attempt, env_steps, wall_s (s, attempts joined), episode_return, episode_length, return_mean, return_p10 and
return_p90 (over the window). In the picture each setting has a color of its own, which its seeds share."""

COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
"""Okabe and Ito's palette, told apart by color-blind readers too."""
MAX_POINTS = 1500
LEGEND_WIDTH = 150
"""characters that fit below the panels"""
INK = "#333333"


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
    figure = Figure(figsize=(10.5, 4.6), dpi=150, layout="constrained")
    axes = figure.subplots(1, 2, sharey=True)
    summaries = [describe(run) for run in runs]
    labels = _labels(summaries)
    settings = differences(runs)
    colors = _colors(settings)
    frames = []
    longest = max((summary["wall_s"] for summary in summaries), default=0.0)
    unit, seconds = _time_unit(longest)
    for index, (run, summary, label) in enumerate(zip(runs, summaries, labels, strict=True)):
        episodes = _rolling(load_run(run)["episodes"], window)
        for column, value in [*reversed(settings[index].items()), ("run", label)]:
            episodes.insert(0, column, value)
        frames.append(episodes)
        color = colors[index]
        look = Look(
            COLORS[color % len(COLORS)], "-" if color < len(COLORS) else "--", 0.18 / len(runs) ** 0.6
        )
        ends = (summary["env_steps"], summary["wall_s"] / seconds)
        for axis, x, end in zip(
            axes, (episodes["env_steps"], episodes["wall_s"] / seconds), ends, strict=True
        ):
            _draw(axis, x, episodes, label=_legend_label(label, summary), look=look)
            _mark_evaluation(axis, end, summary["evaluation"], look.color)
    _finish(figure, axes, summaries, unit, window)
    if not any(len(frame) for frame in frames):
        for axis in axes:
            axis.text(0.5, 0.6, "no training episode has ended", ha="center", transform=axis.transAxes)
            if not axis.containers:  # no evaluation either: the numbers on the axes would mean nothing
                axis.set(xticks=[], yticks=[])
    return pd.concat(frames, ignore_index=True), figure


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line. Returns the exit code: 0, or 2 for a run or file that cannot be used."""
    options = _parser().parse_args(arguments)
    if options.out is None and options.csv is None:
        print("curves: nothing to write; give --out FILE.png, --csv FILE or both", file=sys.stderr)
        return 2
    if options.window < 1:
        print(f"curves: --window {options.window} must be at least 1 episode", file=sys.stderr)
        return 2
    try:
        frame, figure = curves(options.runs, options.window)
        if options.out is not None:
            figure.savefig(options.out)
        if options.csv is not None:
            frame.to_csv(options.csv, index=False)
    except (ConfigError, OSError, ValueError) as error:
        print(f"curves: {error}", file=sys.stderr)
        return 2
    if frame.empty:
        print("curves: no training episode has ended in these runs yet", file=sys.stderr)
    for path in (options.out, options.csv):
        if path is not None:
            print(f"wrote {path}")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="curves.py",
        description=__doc__,
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "runs",
        nargs="+",
        metavar="RUN",
        help="run directory, for example runs/cartpole-0-001, or a folder of such",
    )
    parser.add_argument(
        "--out", metavar="FILE", help="picture to write; the ending decides: .png, .pdf or .svg"
    )
    parser.add_argument("--csv", metavar="FILE", help="table to write, one row per training episode")
    parser.add_argument(
        "--window",
        type=int,
        default=100,
        metavar="N",
        help="episodes per mean (default: 100; at most a fifth of a run's episodes)",
    )
    return parser


def _rolling(episodes: pd.DataFrame, window: int) -> pd.DataFrame:
    columns = ["attempt", "env_steps", "wall_s", "episode_return", "episode_length"]
    frame = episodes[columns].sort_values(["attempt", "env_steps"], kind="stable", ignore_index=True)
    size = max(1, min(window, len(frame) // 5))
    rolling = frame["episode_return"].rolling(size, min_periods=1)
    frame["return_mean"] = rolling.mean()
    frame["return_p10"] = rolling.quantile(0.1)
    frame["return_p90"] = rolling.quantile(0.9)
    return frame


def _draw(axis: Axes, x: pd.Series, frame: pd.DataFrame, *, label: str, look: Look) -> None:
    # Never drop the last point: it is the one people read.
    picked = np.unique(np.linspace(0, max(len(frame) - 1, 0), MAX_POINTS).astype(int)) if len(frame) else []
    x, frame = x.iloc[picked], frame.iloc[picked]
    marker = "o" if len(frame) == 1 else None
    mean, low, high = frame["return_mean"], frame["return_p10"], frame["return_p90"]
    axis.plot(x, mean, look.style, color=look.color, linewidth=1.8, label=label, marker=marker, zorder=3)
    axis.fill_between(x, low, high, color=look.color, alpha=look.alpha, linewidth=0, zorder=2)


def _mark_evaluation(axis: Axes, x: float, evaluation: dict[str, Any] | None, color: str) -> None:
    if evaluation is not None:
        axis.errorbar(
            x,
            evaluation["mean"],
            yerr=evaluation["std"],
            fmt="D",
            markersize=7,
            color=color,
            markeredgecolor="white",
            capsize=3,
            elinewidth=1.4,
            clip_on=False,
            zorder=5,
        )


def _finish(figure: Figure, axes: Any, summaries: list[dict[str, Any]], unit: str, window: int) -> None:
    axes[0].set_xlabel("env_steps trained")
    axes[0].xaxis.set_major_formatter(lambda value, _: _short(value))
    axes[1].set_xlabel(f"wall time ({unit})")
    axes[0].set_ylabel("episode return (raw)")
    for axis in axes:
        axis.set_xlim(left=0)
        axis.margins(x=0.03)
        axis.grid(color="#E3E3E3", linewidth=0.8)
        axis.set_axisbelow(True)
        axis.spines[["top", "right"]].set_visible(False)
        axis.spines[["left", "bottom"]].set_color("#999999")
        axis.tick_params(colors=INK, length=3)
    handles, labels = axes[0].get_legend_handles_labels()
    columns = max(1, min(len(labels), 3, LEGEND_WIDTH // max(len(label) + 8 for label in labels)))
    more_rows = max(0, -(-len(labels) // columns) - 2)
    figure.set_figheight(figure.get_figheight() + 0.18 * more_rows)
    figure.legend(handles, labels, loc="outside lower center", ncols=columns, frameon=False, fontsize=9)
    titles = sorted(
        {f"{summary['algorithm']} on {summary['env']}" for summary in summaries if summary["env"]}
    )
    axes[0].set_title(", ".join(titles), fontsize=11.5, fontweight="bold", color=INK, loc="left")
    axes[1].set_title(
        f"line: mean of ≤ {window} episodes   band: 10 to 90 %   ◆ evaluation ± std",
        fontsize=8.5,
        color="#666666",
        loc="right",
    )


def _colors(settings: Sequence[dict[str, Any]]) -> list[int]:
    """Number of each run's color: one per run, but the seeds of one setting share it where several were swept."""
    groups = [repr({key: value for key, value in one.items() if key != "seed"}) for one in settings]
    distinct = list(dict.fromkeys(groups))
    return list(range(len(groups))) if len(distinct) == 1 else [distinct.index(group) for group in groups]


def _labels(summaries: list[dict[str, Any]]) -> list[str]:
    """Short names of the runs; whole paths where the short ones are not different."""
    names = [Path(summary["run_dir"]).resolve().name for summary in summaries]
    if len(set(names)) < len(names):
        return [summary["run_dir"] for summary in summaries]
    return names


def _legend_label(label: str, summary: dict[str, Any]) -> str:
    state = "" if summary["status"] == "finished" else f" ({summary['status']})"
    evaluation = summary["evaluation"]
    score = f": evaluation {evaluation['mean']:.1f} ± {evaluation['std']:.1f}" if evaluation else ""
    return f"{label}{state}{score}"


def _time_unit(longest_s: float) -> tuple[str, float]:
    if longest_s >= 2 * 3600:
        return "h", 3600.0
    return ("min", 60.0) if longest_s >= 120 else ("s", 1.0)


def _short(value: float) -> str:
    for size, suffix in ((1e9, "B"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:g}{suffix}"
    return f"{value:g}"


if __name__ == "__main__":
    sys.exit(main())
