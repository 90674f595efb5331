"""Say whether settings differ, and how sure that is: each one against a baseline.

For each pair: the interquartile means and the interval of their difference, the probability of improvement (that a run
of the one scores higher than a run of the other, ties as 1/2; Agarwal et al. 2021) with its 95 % bootstrap interval,
and the p value of a permutation test inside each environment, which for few runs is exact (of one environment: the
Wilcoxon-Mann-Whitney test). Several comparisons are corrected for their number (Holm 1979). A sentence says what may be
concluded at the 5 % level, and where that few seeds can show nothing, how many could.

A run's score is the mean return of its last evaluation, or of its last 100 training episodes where not all runs have an
evaluation; runs that did not finish are left out and named. Needs neither MPI nor torch.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
from aggregates import chosen_scores, score_options
from look import color, markdown, new_figure, tidy
from matplotlib.figure import Figure
from robust import RESAMPLES, difference, holm, iqm, permutation_p, probability_of_improvement, smallest_p
from scores import by_setting, left_out, need_scores, notes
from script import Output, make_parser, progress, run_script

from hpcrl.config import ConfigError

EXAMPLES = """examples:
  python analysis/compare.py runs/cartpole-*-4711 --out compare.png
  python analysis/compare.py runs --by algorithm.name --baseline ppo --csv compare.csv
  python analysis/compare.py runs --at 500000 --score training      (at equal env_steps, by training returns)

The CSV has one row per comparison: setting, baseline, environments, seeds and baseline_seeds (fewest in an
environment), iqm, baseline_iqm, difference and its low and high end (NaN where environments have different scales and
no --reference), probability of improvement and its ends, p, p_corrected, smallest_p (that so many seeds could give),
verdict, statement."""

ALPHA = 0.05
MOST_SEEDS = 50


def compare(
    scores: pd.DataFrame,
    *,
    baseline: str | None = None,
    normalized: bool = False,
    resamples: int = RESAMPLES,
) -> pd.DataFrame:
    """A row per setting other than the baseline, with a sentence in `statement`.

    `scores`: the table of `run_scores`, of which only what counts is used. `baseline`: a setting's name; None: the
    first. Only environments that both have are compared. Raises ConfigError where there is nothing to compare.
    """
    need_scores(scores)
    groups = by_setting(scores)
    if len(groups) < 2:
        raise ConfigError(
            f"all runs that count are of one setting ({next(iter(groups))}); a comparison needs two: give more runs, "
            "or name the setting that tells them apart by --by KEY"
        )
    baseline = baseline if baseline is not None else next(iter(groups))
    if baseline not in groups:
        raise ConfigError(f"--baseline {baseline!r} is none of the settings {'; '.join(groups)}")
    others = [setting for setting in groups if setting != baseline]
    rows = [
        _pair(setting, groups[setting], baseline, groups[baseline], normalized, resamples)
        for setting in progress(others, "bootstrap")
    ]
    frame = pd.DataFrame(rows)
    frame["p_corrected"] = holm(frame["p"].tolist())
    frame["verdict"] = [_verdict(row, len(frame)) for row in frame.itertuples()]
    frame["statement"] = [_statement(row, len(frame)) for row in frame.itertuples()]
    return frame


def draw(scores: pd.DataFrame, table: pd.DataFrame) -> Figure:
    """Left: probability of improvement over the baseline, with its interval. Right: the runs' scores."""
    groups = by_setting(scores)
    figure = new_figure(10.5, max(2.8, 1.9 + 0.35 * len(groups)))
    left, right = figure.subplots(1, 2)
    for place, row in enumerate(table.itertuples()):
        ink = color(place + 1)
        left.plot(
            [row.p_low, row.p_high], [place, place], color=ink, linewidth=9, alpha=0.3, solid_capstyle="butt"
        )
        left.plot(row.probability, place, "|", color=ink, markersize=15, markeredgewidth=2.5)
    left.axvline(0.5, color="#999999", linewidth=1, linestyle="--")
    left.set(xlim=(0, 1), ylim=(len(table) - 0.4, -0.6), xlabel=f"P(better than {table['baseline'].iloc[0]})")
    left.set_yticks(range(len(table)), [f"{row.setting}\n{row.verdict}" for row in table.itertuples()])
    names = [table["baseline"].iloc[0], *table["setting"]]
    for place, setting in enumerate(names):
        for env, values in groups[setting].items():
            several = len({env for by_env in groups.values() for env in by_env}) > 1
            right.plot(values, np.full(len(values), place), "o", color=color(place), alpha=0.7)
            if several and len(values):
                right.annotate(env, (values[0], place), xytext=(0, 6), textcoords="offset points", fontsize=6)
    right.set_yticks(range(len(names)), names)
    right.set_ylim(len(names) - 0.4, -0.6)
    right.set_xlabel("score of each run")
    tidy(left, "probability of improvement, 95 % interval")
    tidy(right, "runs")
    return figure


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line. Returns the exit code: 0, or 2 for runs or a file that cannot be used."""
    parser = make_parser("compare", __doc__, EXAMPLES, "one row per comparison")
    score_options(parser)
    parser.add_argument(
        "--baseline", metavar="SETTING", help="what the others are compared with (default: the first)"
    )
    return run_script(parser, arguments, _work)


def statements(table: pd.DataFrame) -> str:
    """The sentences, one a line."""
    return "".join(f"{text}\n" for text in table["statement"])


def _work(options: argparse.Namespace) -> Output:
    scores = chosen_scores(options)
    normalized = bool(options.reference)
    table = compare(scores, baseline=options.baseline, normalized=normalized, resamples=options.resamples)
    shown = table[
        [
            "setting",
            "baseline",
            "seeds",
            "iqm",
            "baseline_iqm",
            "probability",
            "p_low",
            "p_high",
            "p_corrected",
        ]
    ]
    text = markdown(shown) + "\n" + statements(table)
    warning = "; ".join(filter(None, [left_out(scores), *notes(scores)]))
    return Output(table, draw(scores, table) if options.out else None, text, warning)


def _pair(
    setting: str,
    mine: dict[str, npt.NDArray[np.float64]],
    baseline: str,
    theirs: dict[str, npt.NDArray[np.float64]],
    normalized: bool,
    resamples: int,
) -> dict[str, Any]:
    envs = [env for env in mine if env in theirs]
    if not envs:
        raise ConfigError(
            f"{setting} has runs on {', '.join(mine)} and {baseline} on {', '.join(theirs)}: different environments "
            "cannot be compared; give runs of both on the same one"
        )
    one, other = [mine[env] for env in envs], [theirs[env] for env in envs]
    row: dict[str, Any] = {"setting": setting, "baseline": baseline, "environments": ", ".join(envs)}
    row |= {"seeds": min(map(len, one)), "baseline_seeds": min(map(len, other))}
    single = min(row["seeds"], row["baseline_seeds"]) < 2
    drawn = 0 if single else resamples
    if normalized or len(envs) == 1:
        gap = difference(one, other, iqm, resamples=drawn)
        row |= {"iqm": _iqm(one), "baseline_iqm": _iqm(other), "difference": gap.value}
        row |= {"difference_low": gap.low, "difference_high": gap.high}
    else:
        keys = ("iqm", "baseline_iqm", "difference", "difference_low", "difference_high")
        row |= dict.fromkeys(keys, np.nan)
    wins = probability_of_improvement(one, other, resamples=drawn)
    row |= {"probability": wins.value, "p_low": wins.low, "p_high": wins.high}
    sizes = [(len(a), len(b)) for a, b in zip(one, other, strict=True)]
    return row | {"p": permutation_p(one, other, resamples=resamples), "smallest_p": smallest_p(sizes)}


def _iqm(tasks: Sequence[npt.NDArray[np.float64]]) -> float:
    return float(iqm([task[None] for task in tasks])[0])


def _verdict(row: Any, comparisons: int) -> str:
    if row.p_corrected > ALPHA:
        return "too few seeds" if row.smallest_p * comparisons > ALPHA else "no difference shown"
    return "better" if row.probability > 0.5 else "worse"


def _statement(row: Any, comparisons: int) -> str:
    where = f"On {row.environments}"
    seeds = f"{row.seeds} against {row.baseline_seeds} seeds"
    means = "" if np.isnan(row.iqm) else f", interquartile mean {row.iqm:.4g} against {row.baseline_iqm:.4g}"
    wins = f"a run of {row.setting} beats one of {row.baseline} with probability {row.probability:.2f}"
    wins += "" if np.isnan(row.p_low) else f" (95 % interval {row.p_low:.2f} to {row.p_high:.2f})"
    p = f"p = {row.p_corrected:.2g}" + (
        f", corrected for {comparisons} comparisons" if comparisons > 1 else ""
    )
    start = f"{where} ({seeds}){means}: {wins}, {p}. "
    if row.verdict == "too few seeds":
        return start + (
            f"So few seeds cannot show a difference at the 5 % level (smallest p possible: "
            f"{min(1.0, row.smallest_p * comparisons):.2g}); {_enough(row, comparisons)} seeds of each could."
        )
    if row.verdict == "no difference shown":
        return start + "No difference is shown at the 5 % level; that is no proof that there is none."
    return start + f"{row.setting} is {row.verdict} than {row.baseline} at the 5 % level."


def _enough(row: Any, comparisons: int) -> int:
    """Seeds of each setting per environment from which on a difference can be shown at all."""
    environments = row.environments.count(", ") + 1
    return next(n for n in range(2, MOST_SEEDS) if smallest_p([(n, n)] * environments) * comparisons <= ALPHA)


if __name__ == "__main__":
    sys.exit(main())
