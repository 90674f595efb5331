"""Show how late the data was that each run trained on, how far off-policy that made it, and what came of it.

Lag is the learner's version minus the version that chose the action, in updates. Four panels: lag against env_steps
(line: mean, band: up to the 90 % quantile); the share of env_steps up to each lag; the 90 % quantile of |log rho|,
the importance weights' distance from 1 (where a run has none: the estimated KL divergence); and return against lag, a
point per run. Of a single run the last panel has a point for each tenth of its updates. With four runs or more on one
environment the rank correlation of lag and return is given, with a permutation p value. Needs neither MPI nor torch.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
from load import load_run
from look import FAINT, color, env_steps_axis, legend_below, markdown, new_figure, say, style, tidy
from matplotlib.figure import Figure
from scores import returns_at, run_scores
from script import Output, make_parser, progress, run_script
from sweeps import find_runs, run_labels, setting_labels

from hpcrl.config import ConfigError

EXAMPLES = """examples:
  python analysis/lag.py runs/cartpole-impala-0-001 --out lag.png
  python analysis/lag.py runs/cartpole-*-4711 --by lag.max_lag --out lag.svg --csv lag.csv

The CSV has one row per update: run, setting, attempt, update, env_steps, wall_s, lag_mean, lag_p50, lag_p90, lag_max
(of the update's env_steps), log_rho_p50, log_rho_p90, log_rho_p99, approx_kl, clip_fraction, rho_clip_fraction and
return_mean (mean of the last 100 training episodes by then). Units and meanings: analysis/README.md."""

COLUMNS = ("log_rho_p50", "log_rho_p90", "log_rho_p99", "approx_kl", "clip_fraction", "rho_clip_fraction")
BINS, PARTS = 150, 10
SHUFFLES = 20_000
FEWEST_RUNS = 4


def lag_by_update(runs: Sequence[str | Path], *, by: Sequence[str] = ()) -> pd.DataFrame:
    """A row per update of every run: lag, distance from the policy that acted, and return by then.

    Raises ConfigError for a path that is no run, or where no run has logged an update.
    """
    found = find_runs(runs)
    frames = []
    names = zip(found, run_labels(found), setting_labels(found, by), strict=True)
    for run, label, setting in progress(list(names), "reading runs"):
        tables = load_run(run, "updates", "lag", "episodes")
        updates = tables["updates"].sort_values("update", kind="stable", ignore_index=True)
        if not len(updates):
            continue
        frame = updates[["attempt", "update", "env_steps", "wall_s", "lag_mean", "lag_max", *COLUMNS]].copy()
        for share in (0.5, 0.9):
            name = f"lag_p{100 * share:.0f}"
            frame.insert(
                frame.columns.get_loc("lag_max"), name, frame["update"].map(_quantile(tables["lag"], share))
            )
        frame["return_mean"] = returns_at(tables["episodes"], frame["env_steps"].to_numpy(np.float64))
        frame.insert(0, "run", label)
        frame.insert(1, "setting", setting)
        frames.append(frame)
    if not frames:
        raise ConfigError(
            f"no update has been logged yet in {', '.join(map(str, found[:3]))}; there is no lag to show"
        )
    return pd.concat(frames, ignore_index=True)


def lag_by_run(updates: pd.DataFrame, scores: pd.DataFrame) -> pd.DataFrame:
    """A row per run: setting, env, seed, score, and its lag (mean, mean 90 % quantile, most), |log rho|, clipped share.

    `updates`: of `lag_by_update`; `scores`: of `run_scores` for the same runs. Each update counts once.
    """
    grouped = updates.groupby("run", sort=False)
    table = grouped.agg(
        lag_mean=("lag_mean", "mean"),
        lag_p90=("lag_p90", "mean"),
        lag_max=("lag_max", "max"),
        log_rho_p90=("log_rho_p90", "mean"),
        approx_kl=("approx_kl", "mean"),
        clip_fraction=("clip_fraction", "mean"),
        rho_clip_fraction=("rho_clip_fraction", "mean"),
    ).reset_index()
    columns = ["run", "setting", "env", "seed", "score", "source", "status"]
    return scores[columns].merge(table, on="run", how="inner")


def lag_histogram(runs: Sequence[str | Path]) -> pd.DataFrame:
    """Share of each run's trained env_steps by lag: run, lag, share (of every use, where batches are used again)."""
    found = find_runs(runs)
    frames = []
    for run, label in zip(found, run_labels(found), strict=True):
        env_steps = load_run(run, "lag")["lag"].groupby("lag")["env_steps"].sum()
        share = env_steps / max(int(env_steps.sum()), 1)
        frames.append(pd.DataFrame({"run": label, "lag": share.index, "share": share.to_numpy()}))
    return pd.concat(frames, ignore_index=True)


def correlation(table: pd.DataFrame) -> pd.DataFrame:
    """Of each environment with at least four runs: rank correlation of lag_mean and score, p value, runs.

    Two-sided p of a permutation test, from 20,000 shuffles. Environments in which all lags are equal are left out.
    """
    rows = []
    for env, group in table.dropna(subset=["lag_mean", "score"]).groupby("env"):
        lag, score = (group[name].rank().to_numpy(np.float64) for name in ("lag_mean", "score"))
        if len(group) < FEWEST_RUNS or not lag.std() or not score.std():
            continue
        rng = np.random.default_rng(0)
        shuffled = rng.permuted(np.tile(score, (SHUFFLES, 1)), axis=1)
        seen, null = _correlate(lag, score[None])[0], _correlate(lag, shuffled)
        p = (1 + np.count_nonzero(np.abs(null) >= abs(seen) - 1e-12)) / (1 + SHUFFLES)
        row = {"env": env, "runs": len(group), "settings": group["setting"].nunique()}
        rows.append(row | {"rank_correlation": float(seen), "p": float(p)})
    return pd.DataFrame(rows, columns=["env", "runs", "settings", "rank_correlation", "p"])


def sentences(related: pd.DataFrame) -> list[str]:
    """What `correlation` found, in words."""
    return [
        f"On {row.env}, {row.runs} runs of {row.settings} setting{'s' if row.settings > 1 else ''}: rank correlation "
        f"of mean lag and score {row.rank_correlation:+.2f}, p = {row.p:.2g}; what else differs between them may be "
        "the cause."
        for row in related.itertuples()
    ]


def draw(updates: pd.DataFrame, histogram: pd.DataFrame, table: pd.DataFrame) -> Figure:
    """The four panels; `table`: of `lag_by_run`."""
    figure = new_figure(10.5, 7)
    axes = figure.subplots(2, 2)
    names = list(dict.fromkeys(updates["setting"]))
    alpha = 1.0 if updates["run"].nunique() < 5 else 0.6
    rho = bool(updates["log_rho_p90"].notna().any())
    for (_, setting), rows in updates.groupby(["run", "setting"], sort=False):
        ink, line, thin = color(names.index(setting)), style(names.index(setting)), _bins(rows)
        x = thin["env_steps"]
        label = setting if setting not in axes[0, 0].get_legend_handles_labels()[1] else None
        axes[0, 0].plot(x, thin["lag_mean"], line, color=ink, linewidth=1.5, alpha=alpha, label=label)
        axes[0, 0].fill_between(x, thin["lag_mean"], thin["lag_p90"], color=ink, alpha=0.15, linewidth=0)
        axes[1, 0].plot(
            x, thin["log_rho_p90" if rho else "approx_kl"], line, color=ink, linewidth=1.3, alpha=alpha
        )
    settings = dict(zip(updates["run"], updates["setting"], strict=True))
    for run, rows in histogram.groupby("run", sort=False):
        place = names.index(settings[run]) if run in settings else 0
        x, up_to = np.repeat(rows["lag"], 2), np.repeat(np.append(0.0, rows["share"].cumsum()), 2)[1:-1]
        axes[0, 1].plot(x, up_to, style(place), color=color(place), linewidth=1.5)
    _against_return(axes[1, 1], updates, table, names)
    for axis in (axes[0, 0], axes[1, 0]):
        env_steps_axis(axis)
    axes[0, 0].set(ylabel="lag (updates)", ylim=(0, None))
    axes[0, 1].set(xlabel="lag (updates)", ylabel="share of env_steps", ylim=(0, 1.03))
    axes[1, 0].set_ylabel("90 % quantile of |log rho| (nat)" if rho else "approx. KL (nat)")
    titles = (
        "lag: mean, band to the 90 % quantile",
        "env_steps with at most this lag",
        "distance from the acting policy",
    )
    for axis, title in zip((axes[0, 0], axes[0, 1], axes[1, 0]), titles, strict=True):
        tidy(axis, title)
    legend_below(figure, axes[0, 0])
    return figure


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line. Returns the exit code: 0, or 2 for runs or a file that cannot be used."""
    parser = make_parser("lag", __doc__, EXAMPLES, "one row per update")
    parser.add_argument(
        "--by",
        action="append",
        default=[],
        metavar="KEY",
        help="setting that gives the colors (default: what differs)",
    )
    return run_script(parser, arguments, _work)


def _work(options: argparse.Namespace) -> Output:
    updates = lag_by_update(options.runs, by=options.by)
    table = lag_by_run(updates, run_scores(options.runs, by=options.by, unfinished=True))
    related = correlation(table)
    text = markdown(table)
    text += "".join(f"\n{one}\n" for one in sentences(related))
    return Output(updates, draw(updates, lag_histogram(options.runs), table) if options.out else None, text)


def _quantile(lag: pd.DataFrame, share: float) -> pd.Series:
    """Of each update the smallest lag that at least this share of its env_steps does not exceed."""
    ordered = lag.sort_values(["update", "lag"], kind="stable")
    grouped = ordered.groupby("update")["env_steps"]
    reached = grouped.cumsum() >= share * grouped.transform("sum")
    return ordered[reached].groupby("update")["lag"].first()


def _bins(rows: pd.DataFrame) -> pd.DataFrame:
    """At most BINS rows: means over neighboring updates."""
    place = np.arange(len(rows)) * BINS // max(len(rows), BINS)
    return rows[["env_steps", "lag_mean", "lag_p90", "log_rho_p90", "approx_kl"]].groupby(place).mean()


def _against_return(axis: Any, updates: pd.DataFrame, table: pd.DataFrame, names: Sequence[str]) -> None:
    if len(table) == 1:
        place = np.arange(len(updates)) * PARTS // len(updates)
        parts = updates[["lag_mean", "return_mean", "env_steps"]].groupby(place).mean().dropna()
        axis.scatter(parts["lag_mean"], parts["return_mean"], c=parts["env_steps"], cmap="viridis")
        axis.plot(parts["lag_mean"], parts["return_mean"], color="#BBBBBB", linewidth=0.8, zorder=0)
        axis.set(xlabel="mean lag (updates)", ylabel="episode return (raw)")
        tidy(axis, "return against lag: tenths of the run, late ones bright")
        if not len(parts):
            say(axis, "no training episode has ended")
        return
    for row in table.itertuples():
        axis.plot(row.lag_mean, row.score, "o", color=color(names.index(row.setting)), alpha=0.8)
    axis.set(xlabel="mean lag (updates)", ylabel=f"score: return ({table['source'].iloc[0]})")
    tidy(axis, "return against lag: a point per run")
    if table["env"].nunique() > 1:
        axis.text(0.02, 0.02, "several environments", color=FAINT, fontsize=8, transform=axis.transAxes)


def _correlate(one: npt.NDArray[np.float64], others: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Pearson correlation of [n] with every row of [k, n]."""
    first, second = one - one.mean(), others - others.mean(axis=1, keepdims=True)
    return np.asarray(second @ first / (np.linalg.norm(first) * np.linalg.norm(second, axis=1)))


if __name__ == "__main__":
    sys.exit(main())
