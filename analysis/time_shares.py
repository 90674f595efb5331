"""Show where the time of each role went, hop by hop, and what traveled between the ranks.

A bar per run and role: the mean over its ranks, as shares of the age of their processes when they wrote it down, start
included. A share is a hop's own: what lies within it under a name of its own does not count, so the shares of a role
add up. Hatched is waiting for others. What each hop is, and which lie within which: analysis/README.md, table timers.
"other roles" are those of the same rank, where it has several. Of an attempt that was killed the times are those it had
written until then. In files without own times "not timed" is what no hop covered, and the wall time begins with the
first env_step. Needs neither MPI nor torch.
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
from hpcrl.config.hops import HOPS

EXAMPLES = """examples:
  python analysis/time_shares.py runs/cartpole-impala-0-001 --out time.png
  python analysis/time_shares.py runs/scale-* --out time.svg --csv time.csv
  python analysis/time_shares.py runs/cartpole-impala-0-001 --kinds
  python analysis/time_shares.py runs/cartpole-impala-0-001 --traffic --csv traffic.csv

The CSV has one row per run, attempt, role and hop: ranks, seconds (mean over the ranks), share (of the wall time), and
the smallest and largest share of a rank, calls (mean), ms_per_call, waiting, kind. With --kinds: one per run, attempt
and role, with the shares of compute, communicate, wait and rest. With --traffic: one per run, attempt and kind of
message, from role to role: edges, messages, megabytes, MB_per_s, wait_s (of the senders, for a free slot), dest_wait_s
(of the receivers, for such a message; empty where they wait for other things, too)"""

WITHIN = {"reducer.mean_gradients": "algorithm.update"}
"""hops whose time lies inside another's, from which it is taken where a file has no own times"""
REST = "not timed"
OTHERS = "other roles"
SMALL = 0.005
"""share below which, in every bar, a hop gets no color of its own"""
KINDS = ("compute", "communicate", "wait", "rest")
AT_RECEIVER = {
    "grant": "grant.wait",
    "parameters": "policy.fetch",
    "batch": "batch.wait",
    "trajectory": "role.wait",
}
"""kind of message -> hop in which its receiver waits for one"""


def time_shares(runs: Sequence[str | Path]) -> pd.DataFrame:
    """A row per run, attempt, role and hop; the shares of a role add up to 1, with the hops OTHERS and REST.

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
            f"no times have been recorded in {', '.join(map(str, found[:3]))}: the first are written some seconds "
            "after an attempt has begun"
        )
    frame = pd.concat(frames, ignore_index=True)
    return frame[["run", *frame.columns.drop("run")]]


def by_kind(table: pd.DataFrame) -> pd.DataFrame:
    """Of the table of `time_shares` a row per run, attempt and role: ranks, and shares of KINDS in its own time."""
    own = table[table["kind"].isin(KINDS)]
    shares = own.pivot_table(
        index=["run", "attempt", "role"],
        columns="kind",
        values="share",
        aggfunc="sum",
        fill_value=0.0,
        sort=False,
    ).reindex(columns=list(KINDS), fill_value=0.0)
    shares = shares.div(shares.sum(axis=1), axis=0)
    ranks = own.groupby(["run", "attempt", "role"], sort=False)["ranks"].max()
    shares.insert(0, "ranks", ranks)
    return shares.reset_index().rename_axis(columns=None)


def traffic(runs: Sequence[str | Path]) -> pd.DataFrame:
    """A row per run, attempt, stream and pair of roles; empty where nothing traveled (one rank)."""
    found = find_runs(runs)
    frames = []
    for run, label in zip(found, run_labels(found), strict=True):
        tables = load_run(run, "edges", "ranks", "timers")
        edges = tables["edges"].groupby(["attempt", "stream", "source", "dest"], as_index=False).last()
        roles = tables["ranks"].set_index(["attempt", "world_rank"])["role"].to_dict()
        for end in ("source", "dest"):
            keys = zip(edges["attempt"], edges[end], strict=True)
            edges[end] = ["all learners" if key[1] < 0 else roles.get(key, "?") for key in keys]
        grouped = edges.groupby(["attempt", "stream", "source", "dest"], as_index=False).agg(
            edges=("bytes", "size"),
            messages=("messages", "sum"),
            megabytes=("bytes", lambda values: values.sum() / 1e6),
            seconds=("time_s", "max"),
            wait_s=("wait_s", lambda values: values.sum(min_count=1)),
        )
        grouped["MB_per_s"] = grouped["megabytes"] / grouped.pop("seconds")
        waits = _waits_of_receivers(tables["timers"])
        keys = zip(*(grouped[name] for name in ("attempt", "dest", "stream")), strict=True)
        grouped["dest_wait_s"] = [
            waits.get((attempt, role, AT_RECEIVER.get(stream)), float("nan"))
            for attempt, role, stream in keys
        ]
        grouped.insert(0, "run", label)
        frames.append(grouped)
    return pd.concat(frames, ignore_index=True).sort_values(
        ["run", "attempt", "megabytes"], ascending=[True, True, False], kind="stable", ignore_index=True
    )


def draw(table: pd.DataFrame) -> Figure:
    """A stacked bar per run, attempt and role."""
    large = table.groupby("hop")["share"].max()
    small = [hop for hop in large.index[large < SMALL] if hop not in (OTHERS, REST)]
    table = table.assign(hop=table["hop"].where(~table["hop"].isin(small), f"each below {SMALL:.1%}"))
    bars = list(table.groupby(["run", "attempt", "role"], sort=False))
    hops = [hop for hop in _ordered(table["hop"]) if hop not in (OTHERS, REST)]
    figure = new_figure(10.5, max(1.7 + 0.36 * len(bars), 0.8 + 0.19 * len(hops)))
    axis = figure.subplots()
    several = table.groupby("run")["attempt"].nunique().max() > 1
    names = []
    for place, ((run, attempt, role), rows) in enumerate(bars):
        shares, left = rows.groupby("hop")["share"].sum().to_dict(), 0.0
        for index, hop in enumerate([*hops, OTHERS, REST]):
            if not shares.get(hop):
                continue
            ink = "#EEEEEE" if hop in (OTHERS, REST) else colormaps["tab20"](index % 20)
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
    named = [hop for hop in [*hops, OTHERS, REST] if hop in drawn]
    figure.legend([drawn[hop] for hop in named], named, loc="outside right upper", frameon=False, fontsize=8)
    return figure


def is_waiting(hop: str) -> bool:
    """Whether the time of this hop is spent waiting for others, not working."""
    return kind_of(hop) == "wait"


def kind_of(hop: str) -> str:
    """One of KINDS, "span" (beside the rank's time), or "" for OTHERS, REST and what is not known."""
    return HOPS[hop].kind if hop in HOPS else ""


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line. Returns the exit code: 0, or 2 for runs or a file that cannot be used."""
    parser = make_parser("time_shares", __doc__, EXAMPLES, "one row per run, attempt, role and hop")
    parser.add_argument("--kinds", action="store_true", help="print and write the sums over kinds of hops")
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
    picture = draw(table) if options.out else None
    if options.kinds:
        kinds = by_kind(table)
        return Output(kinds, picture, markdown(kinds))
    columns = ["run", "role", "hop", "ranks", "seconds", "share", "ms_per_call"]
    return Output(table, picture, markdown(table[columns]))


def _of_run(timers: pd.DataFrame) -> pd.DataFrame:
    rank = ["attempt", "role", "role_rank"]
    last = timers.groupby([*rank, "hop"], as_index=False).last()
    last = last[last["hop"].map(kind_of) != "span"].reset_index(drop=True)
    has_own = last.groupby(rank)["own_s"].transform("count") > 0
    last["seconds"] = last["own_s"].where(has_own, _without_inner(last, rank))
    used = last.groupby(rank)["seconds"].sum()
    # what was done before the first env_step is timed, too
    elapsed = timers.groupby(rank)["time_s"].max().combine(used, max)
    wall = timers.groupby(rank)["age_s"].max().fillna(elapsed)
    last["wall"] = wall.loc[pd.MultiIndex.from_frame(last[rank])].to_numpy()
    rest = pd.DataFrame({"wall": wall, "seconds": wall - used}).reset_index()
    owns = timers.groupby(rank)["own_s"].count().to_numpy() > 0
    rest["hop"] = [OTHERS if own else REST for own in owns]
    rest = rest[~owns | (rest["seconds"] > 1e-6 * rest["wall"])]
    rows = pd.concat([last, rest], ignore_index=True)
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
    grouped["kind"] = grouped["hop"].map(kind_of)
    order = {hop: place for place, hop in enumerate(_ordered(grouped["hop"]))}
    roles = {"actor": 0, "replay": 1, "learner": 2}
    keys = pd.DataFrame({"attempt": grouped["attempt"], "role": grouped["role"].map(roles).fillna(3)})
    keys["hop"] = grouped["hop"].map(order)
    return grouped.loc[keys.sort_values(["attempt", "role", "hop"], kind="stable").index].reset_index(
        drop=True
    )


def _without_inner(last: pd.DataFrame, rank: list[str]) -> pd.Series:
    """Seconds of each row of a file without own times, less what of WITHIN lies inside."""
    seconds = last["seconds"].copy()
    for inner, outer in WITHIN.items():
        inside = last[last["hop"] == inner].set_index(rank)["seconds"]
        around = last["hop"] == outer
        seconds[around] -= [
            inside.get(key, 0.0) for key in last.loc[around, rank].itertuples(index=False, name=None)
        ]
    return seconds


def _waits_of_receivers(timers: pd.DataFrame) -> dict[tuple[int, str, str], float]:
    """Seconds in each hop of AT_RECEIVER, over all ranks of a role, by attempt, role and hop."""
    last = timers.groupby(["attempt", "role", "role_rank", "hop"], as_index=False).last()
    sums = last[last["hop"].isin(AT_RECEIVER.values())].groupby(["attempt", "role", "hop"])["seconds"].sum()
    return {tuple(key): float(seconds) for key, seconds in sums.items()}


def _ordered(hops: Any) -> list[str]:
    """Each hop once, in the order of a transition's way; unknown ones after it, the rest last."""
    seen = sorted(set(hops))
    last = [hop for hop in (OTHERS, REST) if hop in seen]
    known = [hop for hop in HOPS if hop in seen]
    return [*known, *(hop for hop in seen if hop not in HOPS and hop not in last), *last]


if __name__ == "__main__":
    sys.exit(main())
