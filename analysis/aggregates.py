"""Sum up many runs robustly: one number per setting, over all its seeds and environments, with an interval.

The interquartile mean (IQM: the mean of the middle half of all scores) is the number to report; median, mean and
optimality gap stand beside it. Intervals are 95 % percentile intervals of a stratified bootstrap, which draws seeds
anew inside each environment (Agarwal et al. 2021). With few seeds they are too narrow: read the column `seeds` first.
The right panel shows the whole distribution: the share of runs above each score.

A run's score is the mean return of its last evaluation, or of its last 100 training episodes where not all runs have an
evaluation; runs that did not finish are left out and named. Needs neither MPI nor torch.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from functools import partial

import numpy as np
import numpy.typing as npt
import pandas as pd
from look import color, legend_below, markdown, new_figure, style, tidy
from matplotlib.figure import Figure
from robust import (
    LEVEL,
    RESAMPLES,
    bootstrap,
    estimate,
    iqm,
    mean,
    median,
    optimality_gap,
    performance_profile,
)
from scores import SOURCES, by_setting, left_out, need_scores, notes, run_scores
from script import Output, make_parser, progress, run_script

from hpcrl.config import ConfigError

EXAMPLES = """examples:
  python analysis/aggregates.py runs/cartpole-*-4711 --out iqm.png --csv iqm.csv
  python analysis/aggregates.py runs --by algorithm.name --at 1000000      (as they stood after 1M env_steps)
  python analysis/aggregates.py runs --reference Pong-v5=-20.7:14.6 --reference Breakout-v5=1.7:30.5

The last one puts scores of different environments on one scale: 0 is the first number (a random policy), 1 the second
(a person, or the best known). The CSV has one row per setting and aggregate: setting, aggregate, value, low, high,
seeds (fewest in an environment), environments, runs, source."""

AGGREGATES = {"IQM": iqm, "median": median, "mean": mean}
PROFILE_POINTS, PROFILE_RESAMPLES = 101, 1_000


def aggregates(scores: pd.DataFrame, *, normalized: bool = False, resamples: int = RESAMPLES) -> pd.DataFrame:
    """A row per setting and aggregate: value, low, high, seeds, environments, runs, source.

    `scores`: the table of `run_scores`, of which only what counts is used. `normalized`: they are (see `normalize`), so
    the optimality gap has a meaning. Raises ConfigError where nothing counts, or where scores of several environments
    are not normalized.
    """
    need_scores(scores)
    counted = scores[scores["counts"]]
    envs = sorted(counted["env"].unique())
    if len(envs) > 1 and not normalized:
        raise ConfigError(
            f"these runs are of {len(envs)} environments ({', '.join(envs[:4])}), whose returns have different scales; "
            "put them on one by --reference ENV=LOW:HIGH for each, or give the runs of one environment"
        )
    chosen = AGGREGATES | ({"optimality gap": optimality_gap} if normalized else {})
    todo = [(setting, by_env, name) for setting, by_env in by_setting(scores).items() for name in chosen]
    rows = []
    for setting, by_env, name in progress(todo, "bootstrap"):
        tasks = list(by_env.values())
        fewest = min(len(task) for task in tasks)
        value = estimate(tasks, chosen[name], resamples=resamples if fewest > 1 else 0)
        row = {"setting": setting, "aggregate": name, **value._asdict(), "seeds": fewest}
        runs = sum(len(task) for task in tasks)
        rows.append(row | {"environments": len(tasks), "runs": runs, "source": counted["source"].iloc[0]})
    return pd.DataFrame(rows)


def normalize(scores: pd.DataFrame, references: Sequence[str]) -> pd.DataFrame:
    """Scores on one scale: 0 at the low and 1 at the high end of each "ENV=LOW:HIGH".

    Raises ConfigError for a reference that is not written like that, or an environment without one.
    """
    ends = {}
    for text in references:
        env, _, numbers = text.rpartition("=")
        try:
            low, high = map(float, numbers.split(":"))
        except ValueError:
            low = high = 0.0
        if not env or low == high:
            raise ConfigError(
                f"--reference {text}: write ENV=LOW:HIGH with two different numbers, as CartPole-v1=20:500"
            )
        ends[env] = (low, high)
    missing = sorted(set(scores["env"]) - set(ends))
    if missing:
        raise ConfigError(f"no --reference for {', '.join(missing)}; given are {', '.join(ends)}")
    low, high = (scores["env"].map({env: pair[place] for env, pair in ends.items()}) for place in (0, 1))
    return scores.assign(score=(scores["score"] - low) / (high - low))


def draw(scores: pd.DataFrame, table: pd.DataFrame, *, normalized: bool = False) -> Figure:
    """Left: the IQM of each setting and its interval. Right: the share of runs above each score."""
    groups = {setting: list(by_env.values()) for setting, by_env in by_setting(scores).items()}
    figure = new_figure(10.5, max(3.6, 2.2 + 0.3 * len(groups)))
    left, right = figure.subplots(1, 2)
    middle = table[table["aggregate"] == "IQM"].set_index("setting")
    unit = "normalized score" if normalized else "episode return (raw)"
    values = np.concatenate([task for tasks in groups.values() for task in tasks])
    thresholds = np.linspace(values.min(), values.max(), PROFILE_POINTS)
    for index, (setting, tasks) in enumerate(groups.items()):
        row, ink = middle.loc[setting], color(index)
        left.plot(
            [row["low"], row["high"]],
            [index, index],
            color=ink,
            linewidth=9,
            alpha=0.3,
            solid_capstyle="butt",
        )
        left.plot(row["value"], index, "|", color=ink, markersize=15, markeredgewidth=2.5)
        every = np.concatenate(tasks)
        left.plot(every, np.full(len(every), index), "o", color=ink, markersize=3, alpha=0.6)
        share, low, high = _profile(tasks, thresholds)
        label = f"{setting} ({row['seeds']} seed{'s' if row['seeds'] > 1 else ''})"
        right.step(thresholds, share, style(index), where="post", color=ink, label=label)
        right.fill_between(thresholds, low, high, step="post", color=ink, alpha=0.12, linewidth=0)
    left.set_yticks(range(len(groups)), list(groups))
    left.set_ylim(len(groups) - 0.4, -0.6)
    left.set_xlabel(unit)
    right.set(xlabel=f"score τ, {unit}", ylabel="share of runs above τ")
    tidy(left, "interquartile mean, 95 % interval, runs")
    tidy(right, "performance profile")
    legend_below(figure, right)
    return figure


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line. Returns the exit code: 0, or 2 for runs or a file that cannot be used."""
    parser = make_parser("aggregates", __doc__, EXAMPLES, "one row per setting and aggregate")
    score_options(parser)
    return run_script(parser, arguments, _work)


def score_options(parser: argparse.ArgumentParser) -> None:
    """Options that say which score of which runs counts; shared with compare.py."""
    parser.add_argument(
        "--by",
        action="append",
        default=[],
        metavar="KEY",
        help="setting that tells the groups apart, for example algorithm.name (may be repeated; default: what differs)",
    )
    parser.add_argument(
        "--score", choices=SOURCES, default="auto", help="what a run is worth (default: auto, see above)"
    )
    parser.add_argument("--at", type=int, metavar="N", help="the score after N env_steps, not at the end")
    parser.add_argument("--unfinished", action="store_true", help="count runs that did not finish, too")
    parser.add_argument(
        "--reference",
        action="append",
        default=[],
        metavar="ENV=LOW:HIGH",
        help="scale of an environment's returns: LOW becomes 0 and HIGH becomes 1 (may be repeated)",
    )
    parser.add_argument(
        "--resamples",
        type=int,
        default=RESAMPLES,
        metavar="N",
        help=f"of the bootstrap (default: {RESAMPLES})",
    )


def chosen_scores(options: argparse.Namespace) -> pd.DataFrame:
    """The scores that the options of `score_options` ask for, normalized where references are given."""
    if options.resamples < 100:
        raise ConfigError(f"--resamples {options.resamples} must be at least 100; intervals come from them")
    found = run_scores(
        options.runs, by=options.by, source=options.score, at=options.at, unfinished=options.unfinished
    )
    return normalize(found, options.reference) if options.reference else found


def _profile(
    tasks: Sequence[npt.NDArray[np.float64]], thresholds: npt.NDArray[np.float64]
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    share = performance_profile(tasks, thresholds)
    ends = []
    for threshold in thresholds.tolist():
        above = partial(_share_above, threshold=threshold)
        drawn = bootstrap(tasks, above, resamples=PROFILE_RESAMPLES, seed=0)
        ends.append(np.quantile(drawn, [(1 - LEVEL) / 2, (1 + LEVEL) / 2]))
    low, high = np.array(ends).T
    return share, low, high


def _share_above(samples: Sequence[npt.NDArray[np.float64]], threshold: float) -> npt.NDArray[np.float64]:
    return np.asarray(np.mean([(task > threshold).mean(axis=-1) for task in samples], axis=0))


def _work(options: argparse.Namespace) -> Output:
    scores = chosen_scores(options)
    normalized = bool(options.reference)
    table = aggregates(scores, normalized=normalized, resamples=options.resamples)
    figure = draw(scores, table, normalized=normalized) if options.out else None
    return Output(table, figure, markdown(table), "; ".join(filter(None, [left_out(scores), *notes(scores)])))


if __name__ == "__main__":
    sys.exit(main())
