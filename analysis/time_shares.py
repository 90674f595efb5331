"""Show where the time of each role went, hop by hop, and what traveled between the ranks.

A bar per run and role: the mean over its ranks, as shares of the wall time from the first env_step of the attempt to
the role's end. Hatched is waiting for others. "not timed" is what no hop covers: waiting between hops, the evaluation,
the end, and, where a rank has several roles, the others of them. Hops are in the order of a transition's way
(ARCHITECTURE.md). An attempt that was killed leaves no times. Needs neither MPI nor torch.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd
from load import load_run
from look import INK, clip, markdown, new_figure, tidy
from matplotlib import colormaps
from matplotlib.figure import Figure
from script import Output, make_parser, progress, run_script
from sweeps import find_runs, run_labels

from hpcrl.config import ConfigError

EXAMPLES = """examples:
  python analysis/time_shares.py runs/cartpole-impala-0-001 --out time.png
  python analysis/time_shares.py runs/scale-* --out time.svg --csv time.csv
  python analysis/time_shares.py runs/cartpole-impala-0-001 --traffic --csv traffic.csv

The CSV has one row per run, attempt, role and hop: ranks, seconds (mean over the ranks), share (of the wall time), and
the smallest and largest share of a rank, calls (mean), ms_per_call, waiting. With --traffic: one per run, attempt and
kind of message, from role to role: edges, messages, megabytes, MB_per_s, wait_s (for a free slot, all edges)."""

ORDER = (
    "grant.wait",
    "policy.fetch",
    "algorithm.act",
    "env.send",
    "env.recv",
    "trajectory.write",
    "algorithm.gradient",
    "stream.send",
    "replay.insert",
    "replay.sample",
    "batch.wait",
    "algorithm.update",
    "reducer.mean_gradients",
    "optimizer.step",
    "publisher.publish",
)
WITHIN = {"reducer.mean_gradients": "algorithm.update"}
"""hops whose time lies inside another's, from which it is taken"""
REST = "not timed"


def time_shares(runs: Sequence[str | Path]) -> pd.DataFrame:
    """A row per run, attempt, role and hop; the shares of a role add up to 1 with the hop "not timed".

    Raises ConfigError for a path that is no run, or where no run has any times yet.
    """
    found = find_runs(runs)
    frames = []
    for run, label in progress(list(zip(found, run_labels(found), strict=True)), "reading runs"):
        timers = load_run(run, "timers")["timers"]
        if len(timers):
            frames.append(_of_run(timers).assign(run=label))
    if not frames:
        raise ConfigError(
            f"no times have been recorded in {', '.join(map(str, found[:3]))}: they are written when an attempt ends "
            "in order, so it is still going on or was killed"
        )
    frame = pd.concat(frames, ignore_index=True)
    return frame[["run", *frame.columns.drop("run")]]


def traffic(runs: Sequence[str | Path]) -> pd.DataFrame:
    """A row per run, attempt, stream and pair of roles; empty where nothing traveled (one rank)."""
    found = find_runs(runs)
    frames = []
    for run, label in zip(found, run_labels(found), strict=True):
        tables = load_run(run, "edges", "ranks")
        edges = tables["edges"].groupby(["attempt", "stream", "source", "dest"], as_index=False).last()
        roles = tables["ranks"].set_index(["attempt", "world_rank"])["role"].to_dict()
        for end in ("source", "dest"):
            keys = zip(edges["attempt"], edges[end], strict=True)
            edges[end] = [roles.get(key, "?") for key in keys]
        grouped = edges.groupby(["attempt", "stream", "source", "dest"], as_index=False).agg(
            edges=("bytes", "size"),
            messages=("messages", "sum"),
            megabytes=("bytes", lambda values: values.sum() / 1e6),
            seconds=("time_s", "max"),
            wait_s=("wait_s", lambda values: values.sum(min_count=1)),
        )
        grouped["MB_per_s"] = grouped["megabytes"] / grouped.pop("seconds")
        grouped.insert(0, "run", label)
        frames.append(grouped)
    return pd.concat(frames, ignore_index=True).sort_values(
        ["run", "attempt", "megabytes"], ascending=[True, True, False], kind="stable", ignore_index=True
    )


def draw(table: pd.DataFrame) -> Figure:
    """A stacked bar per run, attempt and role."""
    bars = list(table.groupby(["run", "attempt", "role"], sort=False))
    hops = [hop for hop in _ordered(table["hop"]) if hop != REST]
    figure = new_figure(10.5, 1.7 + 0.36 * len(bars) + 0.06 * len(hops))
    axis = figure.subplots()
    several = table.groupby("run")["attempt"].nunique().max() > 1
    names = []
    for place, ((run, attempt, role), rows) in enumerate(bars):
        shares, left = dict(zip(rows["hop"], rows["share"], strict=True)), 0.0
        for index, hop in enumerate([*hops, REST]):
            if not shares.get(hop):
                continue
            ink = "#EEEEEE" if hop == REST else colormaps["tab20"](index % 20)
            label = hop if hop not in axis.get_legend_handles_labels()[1] else None
            hatch = "///" if is_waiting(hop) else None
            axis.barh(place, shares[hop], left=left, color=ink, hatch=hatch, edgecolor="white", label=label)
            if shares[hop] > 0.06:
                axis.text(
                    left + shares[hop] / 2,
                    place,
                    f"{100 * shares[hop]:.0f} %",
                    ha="center",
                    va="center",
                    fontsize=7.5,
                    color=INK,
                )
            left += shares[hop]
        ranks = int(rows["ranks"].iloc[0])
        named = f"{clip(run, 40)}{f', attempt {attempt}' if several else ''}"
        names.append(f"{named}\n{role}{f' x {ranks}' if ranks > 1 else ''}")
    axis.set_yticks(range(len(bars)), names, fontsize=8)
    axis.set(xlim=(0, 1), ylim=(len(bars) - 0.4, -0.6), xlabel="share of the wall time")
    axis.xaxis.set_major_formatter(lambda value, _: f"{100 * value:.0f} %")
    tidy(axis, "where the time went (hatched: waiting for others)")
    drawn = dict(zip(*reversed(axis.get_legend_handles_labels()), strict=True))
    named = [hop for hop in [*hops, REST] if hop in drawn]
    figure.legend([drawn[hop] for hop in named], named, loc="outside right upper", frameon=False, fontsize=8)
    return figure


def is_waiting(hop: str) -> bool:
    """Whether the time of this hop is spent waiting for others, not working."""
    return hop.endswith(".wait") or hop == "policy.fetch"


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line. Returns the exit code: 0, or 2 for runs or a file that cannot be used."""
    parser = make_parser("time_shares", __doc__, EXAMPLES, "one row per run, attempt, role and hop")
    parser.add_argument("--traffic", action="store_true", help="print and write what traveled, not the times")
    return run_script(parser, arguments, _work)


def _work(options: argparse.Namespace) -> Output:
    if options.traffic:
        found = traffic(options.runs)
        if not len(found):
            raise ConfigError(
                "nothing traveled between ranks in these runs (one rank each), or nothing was recorded yet"
            )
        return Output(found, None, markdown(found), "--traffic has no picture" if options.out else "")
    table = time_shares(options.runs)
    columns = ["run", "role", "hop", "ranks", "seconds", "share", "ms_per_call"]
    return Output(table, draw(table) if options.out else None, markdown(table[columns]))


def _of_run(timers: pd.DataFrame) -> pd.DataFrame:
    rank = ["attempt", "role", "role_rank"]
    last = timers.groupby([*rank, "hop"], as_index=False).last()
    wall = timers.groupby(rank)["time_s"].max()
    for inner, outer in WITHIN.items():
        inside = last[last["hop"] == inner].set_index(rank)["seconds"]
        around = last["hop"] == outer
        last.loc[around, "seconds"] -= [
            inside.get(key, 0.0) for key in last.loc[around, rank].itertuples(index=False, name=None)
        ]
    used = last.groupby(rank)["seconds"].sum()
    wall = wall.combine(used, max)  # what was done before the first env_step is timed, too
    last["wall"] = wall.loc[pd.MultiIndex.from_frame(last[rank])].to_numpy()
    rest = pd.DataFrame({"wall": wall, "seconds": wall - used}).reset_index()
    rows = pd.concat([last, rest.assign(hop=REST)], ignore_index=True)
    rows["share"] = rows["seconds"] / rows["wall"]
    grouped = rows.groupby(["attempt", "role", "hop"], as_index=False).agg(
        ranks=("role_rank", "nunique"),
        seconds=("seconds", "mean"),
        share=("share", "mean"),
        share_min=("share", "min"),
        share_max=("share", "max"),
        calls=("count", "mean"),
    )
    grouped["ms_per_call"] = 1000 * grouped["seconds"] / grouped["calls"]
    grouped["waiting"] = grouped["hop"].map(is_waiting)
    order = {hop: place for place, hop in enumerate(_ordered(grouped["hop"]))}
    roles = {"actor": 0, "replay": 1, "learner": 2}
    keys = pd.DataFrame({"attempt": grouped["attempt"], "role": grouped["role"].map(roles).fillna(3)})
    keys["hop"] = grouped["hop"].map(order)
    return grouped.loc[keys.sort_values(["attempt", "role", "hop"], kind="stable").index].reset_index(
        drop=True
    )


def _ordered(hops: Any) -> list[str]:
    """Each hop once, in the order of a transition's way; unknown ones after it, the rest last."""
    seen = sorted(set(hops))
    known = [hop for hop in ORDER if hop in seen]
    return [
        *known,
        *(hop for hop in seen if hop not in ORDER and hop != REST),
        *([REST] if REST in seen else []),
    ]


if __name__ == "__main__":
    sys.exit(main())
