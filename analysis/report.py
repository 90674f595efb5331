"""Make one web page of one or more runs: what they did, how sure that is, how late the data was, where the time went.

The page is one file with its pictures and tables in it. It loads nothing from anywhere, so it can be mailed, kept
beside the runs and opened in any browser without a network. A section for which there is nothing yet says why. Works on
runs that are still going, were killed, or ended; needs neither MPI nor torch.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import page
import script
from aggregates import aggregates, normalize
from aggregates import draw as draw_aggregates
from compare import compare
from compare import draw as draw_comparison
from cost import cost
from cost import draw as draw_cost
from curves import curves
from lag import correlation, lag_by_run, lag_by_update, lag_histogram, sentences
from lag import draw as draw_lag
from look import clip
from report_runs import findings, origins, overview, sentence
from scores import left_out, notes, run_scores
from seed_bands import seed_bands
from sweeps import environments, find_runs, run_labels
from throughput import draw as draw_throughput
from throughput import intervals, throughput
from time_shares import draw as draw_time_shares
from time_shares import time_shares, traffic

from hpcrl.config import ConfigError
from hpcrl.storage import describe, find_run

EXAMPLES = """examples:
  python analysis/report.py runs/cartpole-impala-0-001 --out report.html
  python analysis/report.py runs/cartpole-*-4711 --out sweep.html --by algorithm.learning_rate
  python analysis/report.py runs --out all.html --reference Pong-v5=-20.7:14.6 --reference Breakout-v5=1.7:30.5

For the numbers behind a section give the same runs to curves.py, aggregates.py, compare.py, lag.py, throughput.py,
time_shares.py or cost.py with --csv FILE."""

RESAMPLES = 10_000
SHOWN = 12
"""runs whose settings and sentences are written out"""


def report(
    runs: Sequence[str | Path], *, by: Sequence[str] = (), references: Sequence[str] = (), title: str = ""
) -> str:
    """The page, as HTML. Raises ConfigError for a path that is no run.

    `by`: settings that tell groups of runs apart; `references`: scales of environments (see aggregates.py).
    """
    found = find_runs(runs)
    labels = run_labels(found)
    summaries = [describe(run) for run in script.progress(found, "reading runs")]
    title = title or (
        labels[0]
        if len(found) == 1
        else f"{len(found)} runs on {', '.join(sorted(set(environments(found))))}"
    )
    lead = page.listing(sentence(label, one) for label, one in zip(labels[:SHOWN], summaries, strict=False))
    if len(found) > SHOWN:
        lead += page.text(f"and {len(found) - SHOWN} more, in the table below", kind="note")
    builders: list[tuple[str, Callable[[], str]]] = [
        ("Runs", partial(_runs, labels, summaries)),
        ("Learning curves", partial(_curves, found, by)),
        ("Scores", partial(_scores, found, by, references)),
        ("Lag", partial(_lag, found, by)),
        ("Throughput", partial(_throughput, found)),
        ("Time", partial(_time, found)),
        ("Cost", partial(_cost, found)),
        ("Origin", partial(_origin, found, labels)),
    ]
    sections = []
    for name, build in script.progress(builders, "drawing"):
        try:
            sections.append((name, build()))
        except ConfigError as error:
            sections.append((name, page.text(f"Nothing to show: {error}", kind="note")))
    return page.page(title, lead, sections)


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line. Returns the exit code: 0, or 2 for runs or a file that cannot be used."""
    parser = argparse.ArgumentParser(
        prog="report.py",
        description=__doc__,
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("runs", nargs="+", metavar="RUN", help="run directory, or a folder of such")
    parser.add_argument(
        "--out", default="report.html", metavar="FILE", help="page to write (default: report.html)"
    )
    parser.add_argument(
        "--title", default="", metavar="TEXT", help="heading of the page (default: the run's name)"
    )
    parser.add_argument(
        "--by",
        action="append",
        default=[],
        metavar="KEY",
        help="setting that groups the runs (default: what differs)",
    )
    parser.add_argument(
        "--reference",
        action="append",
        default=[],
        metavar="ENV=LOW:HIGH",
        help="scale of an environment's returns: LOW becomes 0 and HIGH becomes 1 (may be repeated)",
    )
    options = parser.parse_args(arguments)
    try:
        if Path(options.out).suffix.lower() not in (".html", ".htm"):
            raise ConfigError(f"--out {options.out}: the page's name ends in .html")
        made = report(options.runs, by=options.by, references=options.reference, title=options.title)
        Path(options.out).write_text(made, encoding="utf-8")
    except (ConfigError, OSError, ValueError) as error:
        print(f"report: {error}", file=sys.stderr)
        return 2
    print(f"wrote {options.out} ({len(made) / 1e6:.1f} MB)")
    return 0


def _runs(labels: Sequence[str], summaries: Sequence[dict[str, Any]]) -> str:
    found = [text for label, one in zip(labels, summaries, strict=True) for text in findings(label, one)]
    good = page.text("No fault, drop or odd actor was recorded.", kind="note")
    return page.table(overview(labels, summaries)) + (page.listing(found, "bad") or good)


def _curves(runs: Sequence[str | Path], by: Sequence[str]) -> str:
    parts, envs = [], environments(runs)
    for env in dict.fromkeys(envs):  # returns of different environments have no common scale
        _, figure = curves([run for run, where in zip(runs, envs, strict=True) if where == env])
        parts.append(
            page.picture(figure, f"episode return on {env} against env_steps and wall time, a line per run")
        )
    if len(runs) > 1:
        try:
            _, bands = seed_bands(runs, by=by)
            parts.append(
                page.picture(bands, "episode return over the seeds of each setting, with 95 % intervals")
            )
        except ConfigError as error:
            parts.append(page.text(f"No bands: {error}.", kind="note"))
    return "".join(parts)


def _scores(runs: Sequence[str | Path], by: Sequence[str], references: Sequence[str]) -> str:
    scores = run_scores(runs, by=by)
    if references:
        scores = normalize(scores, references)
    table = aggregates(scores, normalized=bool(references), resamples=RESAMPLES)
    parts = [page.listing(filter(None, [*notes(scores), left_out(scores)]), "note"), page.table(table)]
    if scores["counts"].sum() > 1:
        parts.insert(
            1, page.picture(draw_aggregates(scores, table, normalized=bool(references)), "scores by setting")
        )
    try:
        compared = compare(scores, normalized=bool(references), resamples=RESAMPLES)
    except ConfigError as error:
        return "".join([*parts, page.text(f"No comparison: {error}.", kind="note")])
    parts.append(page.listing(compared["statement"]))
    parts.append(
        page.picture(draw_comparison(scores, compared), "probability of improvement over the baseline")
    )
    return "".join([*parts, page.table(compared.drop(columns="statement"))])


def _lag(runs: Sequence[str | Path], by: Sequence[str]) -> str:
    updates = lag_by_update(runs, by=by)
    table = lag_by_run(updates, run_scores(runs, by=by, unfinished=True))
    figure = draw_lag(updates, lag_histogram(runs), table)
    alt = "lag over env_steps, its distribution, distance from the acting policy, return against lag"
    return page.listing(sentences(correlation(table))) + page.picture(figure, alt) + page.table(table)


def _throughput(runs: Sequence[str | Path]) -> str:
    table = throughput(runs)
    picture = page.picture(draw_throughput(table, intervals(runs)), "env_steps/s over time and by ranks")
    return picture + page.table(table.drop(columns=["setting", "env_steps", "updates"]))


def _time(runs: Sequence[str | Path]) -> str:
    table = time_shares(runs)
    moved = traffic(runs)
    parts = [page.picture(draw_time_shares(table), "shares of the wall time by role and hop")]
    parts.append(page.table(table.drop(columns="waiting"), "hops"))
    parts.append(
        page.table(moved, "traffic") if len(moved) else page.text("One rank: nothing traveled.", kind="note")
    )
    return "".join(parts)


def _cost(runs: Sequence[str | Path]) -> str:
    table = cost(runs)
    return page.picture(draw_cost(table), "node-hours of each run, and return against them") + page.table(
        table
    )


def _origin(runs: Sequence[str | Path], labels: Sequence[str]) -> str:
    parts = [page.table(origins(runs, labels))]
    for run, label in list(zip(runs, labels, strict=True))[:SHOWN]:
        try:
            config = json.loads((find_run(run) / "config.json").read_text(encoding="utf-8"))
        except (OSError, ValueError):
            continue
        parts.append(page.details(f"settings of {clip(label)}", json.dumps(config, indent=2)))
    return "".join(parts)


if __name__ == "__main__":
    sys.exit(main())
